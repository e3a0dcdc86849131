"""Writes the files with which functions of a notebook or program go to child processes."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import linecache
import platform
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from mops.errors import ModelError
from mops.project import functions_loader
from mops.project.function_content import WHERE, FunctionContent, reference

# The most bytes that the functions of a job take along. Each process that runs simulations has them in memory.
LIMIT_BYTES = 100 << 20

_LIBRARIES = frozenset(("site-packages", "dist-packages"))


def shipped(functions: Mapping[str, object], module: str, root: Path) -> dict[str, bytes]:
    """Return the files that hold functions, given by the names that entry points give them."""
    # ``module``: what the files are called
    # ``root``: in tracebacks, the functions' files are relative to it
    content = FunctionContent(LIMIT_BYTES)
    for name, function in functions.items():
        content.add(name, function)
    files = {file: _shown(file, of, root) for file, of in content.files.items()}
    texts = {shown: "".join(linecache.getlines(file)) for file, shown in files.items() if shown != file}
    record = {
        "python": platform.python_version(),
        "functions": list(functions),
        "sources": {shown: text for shown, text in sorted(texts.items()) if text},
        "packages": {one.name: one.version for one in importlib.metadata.distributions() if one.name},
    }
    loader = Path(functions_loader.__file__).read_text(encoding="utf-8")
    code = f"{loader}\n\nDIGEST = {content.digest!r}\nglobals().update(load(__file__))\n"
    return {
        f"{module}.py": code.encode(),
        f"{module}.pickle": _pickled(dict(functions), files),
        f"{module}.json": json.dumps(record, indent=1, sort_keys=True).encode(),
    }


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
