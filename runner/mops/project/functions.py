"""Names the code of functions and classes that a program gives to ``mops.submit``, and writes their files."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import keyword
import linecache
import platform
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from mops.errors import ModelError, UsageError
from mops.project import functions_loader
from mops.project.function_content import WHERE, FunctionContent, reference
from mops.project.function_files import free_module
from mops.project.import_folders import files_of, import_folders

Code = str | Callable[..., Any]  # an entry point as text, or a function or class

# The most bytes that the functions of a job take along. Each process that runs simulations has them in memory.
LIMIT_BYTES = 100 << 20

_LIBRARIES = frozenset(("site-packages", "dist-packages"))


class GivenCode:
    """The functions and classes that a program gives to mops."""

    # Child processes import what is in a module. What is defined in a notebook, in a program or inside another function
    # goes into the bundle by value. ``taken``: files of the bundle that hold functions of an earlier submit.
    def __init__(self, root: Path, folder: Path, taken: Collection[str] = ()):
        self._root, self._folder = root, folder
        self._module = free_module(taken)
        self._by_value: dict[str, object] = {}
        # For each entry point of an object that child processes import: the file of its module.
        self.imported: dict[str, str] = {}

    def model(self, code: object) -> str:
        """Return the entry point of a model; text is returned as it is."""
        return self._entry_point(code, "model")

    def targets(self, codes: Sequence[object]) -> list[str]:
        """Return the entry points of targets. UsageError: they are no list."""
        if isinstance(codes, str) or not isinstance(codes, Sequence):
            what = repr(codes) if isinstance(codes, str) else f"of type {type(codes).__name__}"
            raise UsageError(f"the targets are {what}, not a list", where="targets", hint="write targets=[...]")
        return [self._entry_point(code, "target") for code in codes]

    def files(self) -> dict[str, bytes]:
        """Return the files of the bundle that hold functions; none if child processes import all of them."""
        if not self._by_value:
            return {}
        content = FunctionContent(LIMIT_BYTES)
        for name, function in self._by_value.items():
            content.add(name, function)
        files = {file: _shown(file, of, self._root) for file, of in content.files.items()}
        texts = {shown: "".join(linecache.getlines(file)) for file, shown in files.items() if shown != file}
        record = {
            "python": platform.python_version(),
            "functions": list(self._by_value),
            "sources": {shown: text for shown, text in sorted(texts.items()) if text},
            "packages": {one.name: one.version for one in importlib.metadata.distributions() if one.name},
        }
        loader = Path(functions_loader.__file__).read_text(encoding="utf-8")
        code = f"{loader}\n\nDIGEST = {content.digest!r}\nglobals().update(load(__file__))\n"
        return {
            f"{self._module}.py": code.encode(),
            f"{self._module}.pickle": _pickled(self._by_value, files),
            f"{self._module}.json": json.dumps(record, indent=1, sort_keys=True).encode(),
        }

    def _entry_point(self, code: object, role: str) -> str:
        if isinstance(code, str):
            return code
        function = code
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", None)
        if not (callable(function) and isinstance(name, str)):
            raise ModelError(
                f"an object of type {type(code).__name__} is not a function or class",
                where=WHERE,
                hint="pass a function, a class, or text like 'module:name'",
            )
        module = sys.modules.get(getattr(code, "__module__", None) or "")
        if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is code:
            place, file = _place(module, self._root, self._folder)
            if file is not None:
                self.imported[f"{place}:{name}"] = file
            return f"{place}:{name}"
        name = name if name.isidentifier() and not keyword.iskeyword(name) else role  # a lambda's is that of its role
        keys = (name if number == 1 else f"{name}_{number}" for number in count(1))
        key = next(key for key in keys if self._by_value.setdefault(key, code) is code)
        return f"{self._module}:{key}"


def _place(module: ModuleType, root: Path, folder: Path) -> tuple[str, str | None]:
    """Return how an entry point names a module, and the module's file, relative to the root if it is below the root."""
    dotted, file = module.__name__, getattr(module, "__file__", None)
    if file is None or Path(file).suffix != ".py":
        return dotted, None
    path = Path(file).resolve()
    if not path.is_relative_to(root):
        return dotted, str(path)
    inside = path.relative_to(root).as_posix()
    found = files_of(dotted, import_folders(root, folder, [dotted]), lambda name: (root / name).is_file())
    is_found = next(iter(found.values()), None) == inside
    if is_found or "." in dotted or _LIBRARIES.intersection(path.parts):
        return dotted, inside
    # No folder from which child processes import has the module, or another folder before it has one of this name.
    return inside if "/" in inside else f"./{inside}", inside


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions, with other names for the files of their code."""

    def __init__(self, target: io.BytesIO, files: Mapping[str, str]):
        reduce = cloudpickle.Pickler.dispatch_table[CodeType]

        def renamed(code: CodeType) -> Any:
            return reduce(code.replace(co_filename=files.get(code.co_filename, code.co_filename)))

        own = {CodeType: renamed, functools._lru_cache_wrapper: _cached}
        self.dispatch_table = ChainMap(own, cloudpickle.Pickler.dispatch_table)
        super().__init__(target)  # reads the table


def _cached(function: functools._lru_cache_wrapper[Any]) -> Any:
    """Reduce a function with lru_cache or cache, without its results; pickle would take only its name."""
    if reference(function) is not None:
        return function.__reduce__()
    size, typed = function.cache_parameters().values()
    made_of = (function.__wrapped__, size, typed, functools._CacheInfo)
    return functools._lru_cache_wrapper, made_of, vars(function)


def _pickled(functions: dict[str, object], files: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    try:
        _Pickler(data, files).dump(functions)
    except Exception as bad:  # methods of the user's classes may raise anything
        raise ModelError(
            f"{', '.join(functions)} cannot go to the processes that run simulations: {bad}",
            where=WHERE,
            hint="write the functions to a file of the project, and import them from there",
        ) from bad
    return data.getvalue()


def _shown(file: str, function: str, root: Path) -> str:
    """Return how tracebacks name a file of code: without this process's temporary folders, and without its user."""
    path = Path(file)
    if _LIBRARIES.intersection(path.parts):
        return file
    if path.is_file():
        real = path.resolve()
        return real.relative_to(root).as_posix() if real.is_relative_to(root) else path.name
    # The cells of a notebook are files that do not exist, with names that differ in each process.
    return file.strip("<>") if file.startswith("<") else f"cell of {function}"
