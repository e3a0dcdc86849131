"""Keeps the names of Python's modules for Python, and finds the code of a project that wants another module.

A script finds ``queue.py`` next to it, not Python's module. A child process has imported Python's ``queue`` before the
model, and libraries that it imports later need Python's ``calendar``. So each such name means Python's module, and mops
refuses a project whose model or targets import its own file by such a name. Runs in children: the standard library
only.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

from mops.study.entry_point import EntryPoint

_LIBRARIES = frozenset(("site-packages", "dist-packages"))


def is_of_library(path: Path) -> bool:
    """Tell whether a path lies in a folder of installed libraries."""
    return not _LIBRARIES.isdisjoint(path.parts)


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


class PythonModules:
    """A finder of modules that finds these names in Python only; first in ``sys.meta_path``, before the project."""

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the module of Python, if the name is one of these."""
        return _python_spec(name) if name in self._names else None


def refusal(
    entries: Sequence[str],  # the entry points of the model and the targets
    files: Mapping[str, Path],  # shadowing_files(folders)
    folders: Sequence[Path],  # of the project: those on sys.path, in the same order
    root: Path,  # the folder to which paths in the text are relative
) -> str | None:
    """Return why the model or a target cannot have its modules; None: none has the name of a module of Python."""
    starts: list[Path] = []
    for text in entries:
        entry = EntryPoint.parse(text)
        if entry.path is not None:
            here = [folder / entry.path for folder in folders if (folder / entry.path).is_file()][:1]
            if here and _python_spec(here[0].stem) is not None:
                return _said(here[0], root, f"which {text!r} names")
        else:
            here = list(_files_of(str(entry.module), folders))
            if (top := str(entry.module).partition(".")[0]) in files:
                return _said(files[top], root, f"which {text!r} names")
        starts += here
    if not files or (found := _importer(starts, files, folders)) is None:
        return None
    name, importer = found
    return _said(files[name], root, f"which {importer.relative_to(root)} imports")


def _said(file: Path, root: Path, why: str) -> str:
    module = file.parent if file.stem == "__init__" else file
    own = module.relative_to(root)
    return f"the project's {own}, {why}, has the name of a module of Python; rename {own}"


def _importer(starts: Iterable[Path], names: Mapping[str, Path], folders: Sequence[Path]) -> tuple[str, Path] | None:
    """Return one of these names and a file that imports it, of those that the first files need."""
    todo, seen = list(starts), set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for level, module in _imports(file):
            top = module.partition(".")[0]
            if level == 0 and top in names:
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
        for part in module.split("."):
            path /= part
            yield from (file for file in (path / "__init__.py", path.with_name(f"{part}.py")) if file.is_file())


def _python_spec(name: str) -> ModuleSpec | None:
    # Without an import; a Python may lack some.
    if name not in sys.stdlib_module_names:
        return None
    for finder in (BuiltinImporter, FrozenImporter):
        if (spec := finder.find_spec(name)) is not None:
            return spec
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    entries = [Path(entry).resolve() for entry in sys.path]
    found = [str(entry) for entry in entries if entry.is_relative_to(standard) and not is_of_library(entry)]
    return PathFinder.find_spec(name, found)
