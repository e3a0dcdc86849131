"""Imports the modules that entry points name, and keeps the names of Python's modules for Python.

A script finds ``queue.py`` next to it, not Python's module. A child process has imported Python's ``queue`` before the
model, and libraries that it imports later need Python's ``calendar``. So each such name means Python's module, and mops
refuses a project whose model or targets import its own file by such a name. Runs in children: the standard library
only.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from mops.errors import known_name
from mops.study.entry_point import EntryPoint

_LIBRARIES = frozenset(("site-packages", "dist-packages"))


class CannotLoad(Exception):
    """The model or a target does not meet docs/reference/models.md; the message tells what mops found."""

    def __init__(self, message: str, missing: str = ""):
        super().__init__(message)
        self.missing = missing  # the entry point whose file or module does not exist; empty: another reason
        self.others: list[str] = []  # the messages for the other entry points of the study that mops cannot load


def imported(text: str, folders: Sequence[Path]) -> ModuleType:
    """Import the module or the file of an entry point; the folders of the project are those on sys.path, in order."""
    entry = EntryPoint.parse(text)
    path = file_of(entry, folders)
    if entry.path is None:
        name = str(entry.module)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if path is None and error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise CannotLoad(f"module {name!r} was not found", missing=text) from None
            raise
        file = getattr(module, "__file__", None)
        # If the project has its file, no library may take its place. An editable install is none.
        if path is not None and file is not None and _is_of_library(Path(file).resolve()):
            raise CannotLoad(
                f"module {name!r} of {text!r} is {file}, not {path.name} of the project; rename {path.name}"
            )
        return module
    if path is None:
        raise CannotLoad(f"the project has no file {entry.path!r}", missing=text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{entry.path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def file_of(entry: EntryPoint, folders: Sequence[Path]) -> Path | None:
    """Return the file of an entry point in the project; None: the project has none."""
    names = (entry.file,) if entry.path else (f"{entry.file.removesuffix('.py')}/__init__.py", entry.file)
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def attribute(module: ModuleType, name: str, text: str) -> Any:
    """Return what an entry point names in its module."""
    try:
        return getattr(module, name)
    except AttributeError:
        own = sorted(n for n, value in vars(module).items() if n[0] != "_" and not isinstance(value, ModuleType))
        advice = known_name(name, own, otherwise=f"it has: {', '.join(own[:20]) or 'nothing public'}")
        raise CannotLoad(f"the module of {text!r} has no {name!r}; {advice}") from None


class PythonModules:
    """A finder of modules that finds these names in Python only; first in ``sys.meta_path``, before the project."""

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the module of Python, if the name is one of these."""
        return _python_spec(name) if name in self._names else None


def shadowing_files(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the modules in these folders that have the names of Python's modules, by name: a file, or a package."""
    found: dict[str, Path] = {}
    for folder in filter(Path.is_dir, folders):  # of a derived job, the new code may lack one
        stems = {entry.name.partition(".")[0] for entry in folder.iterdir()}
        for name in sorted(stems & sys.stdlib_module_names):
            spec = PathFinder.find_spec(name, [str(folder)])
            if spec is not None and spec.has_location and _python_spec(name) is not None:
                found.setdefault(name, Path(str(spec.origin)))
    return found


def refusal(
    entries: Sequence[str],  # the entry points of the model and the targets
    shadowing: Mapping[str, Path],  # shadowing_files(folders)
    folders: Sequence[Path],  # of the project: those on sys.path, in the same order
    root: Path,  # the folder to which paths in the text are relative
) -> str | None:
    """Return why the model or a target cannot have its modules; None: none has the name of a module of Python."""

    def because(file: Path, why: str) -> str:
        own = (file.parent if file.stem == "__init__" else file).relative_to(root)
        return f"the project's {own}, {why}, has the name of a module of Python; rename {own}"

    todo: list[Path] = []
    for text in entries:
        entry = EntryPoint.parse(text)
        if entry.path is None:
            top = str(entry.module).partition(".")[0]
            if top in shadowing:
                return because(shadowing[top], f"which {text!r} names")
            todo += _files_of(str(entry.module), folders)
        elif (file := file_of(entry, folders)) is not None:
            if _python_spec(file.stem) is not None:
                return because(file, f"which {text!r} names")
            todo.append(file)
    if not shadowing or (found := _importer(todo, shadowing, folders)) is None:
        return None
    name, importer = found
    return because(shadowing[name], f"which {importer.relative_to(root)} imports")


def _importer(todo: list[Path], shadowing: Mapping[str, Path], folders: Sequence[Path]) -> tuple[str, Path] | None:
    """Return a shadowing name and the file that imports it, of the files that the first ones need."""
    seen = set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for level, module in _imports(file):
            top = module.partition(".")[0]
            if level == 0 and top in shadowing:
                return top, file
            todo += _files_of(module, folders if level == 0 else file.parents[level - 1 : level])
    return None


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield each import of a file, also in functions: its level, 0 if it is absolute, and its dotted name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the import tells what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, f"{node.module or ''}.{alias.name}".lstrip(".")) for alias in node.names)


def _files_of(module: str, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that may run when a module is imported: its own, and those of the packages around it."""
    for folder in folders:
        path = folder
        for name in module.split("."):
            path /= name
            yield from (file for file in (path / "__init__.py", path.with_name(f"{name}.py")) if file.is_file())


def _python_spec(name: str) -> ModuleSpec | None:
    """Find a module of Python without an import; a Python may lack some."""
    if name not in sys.stdlib_module_names:
        return None
    for finder in (BuiltinImporter, FrozenImporter):
        if (spec := finder.find_spec(name)) is not None:
            return spec
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    entries = [Path(entry).resolve() for entry in sys.path]
    found = [str(entry) for entry in entries if entry.is_relative_to(standard) and not _is_of_library(entry)]
    return PathFinder.find_spec(name, found)


def _is_of_library(path: Path) -> bool:
    return not _LIBRARIES.isdisjoint(path.parts)
