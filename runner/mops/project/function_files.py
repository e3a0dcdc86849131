"""The files in a bundle that hold functions defined in a notebook or program, and their names.

- ``mops_functions.py``: a copy of :mod:`mops.project.functions_loader`; child processes import the functions from it
- ``mops_functions.pickle``: the functions, by cloudpickle
- ``mops_functions.json``: their source, Python's version, and the versions of all packages, for people

A derived job may add targets: their files are called ``mops_functions_2``, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path

from mops.study.entry_point import EntryPoint

_MODULE = "mops_functions"
_NAME = re.compile(rf"{_MODULE}(_\d+)?")
_SUFFIXES = (".py", ".pickle", ".json")

FunctionFiles = Mapping[str, bytes]  # the content of each file, by its name in the bundle


def free_module(files: Collection[str]) -> str:
    """Return the name of a module that has none of these files."""
    names = (f"{_MODULE}_{number}" if number > 1 else _MODULE for number in count(1))
    return next(name for name in names if f"{name}.py" not in files)


def is_function_file(name: str) -> bool:
    """Tell whether a file of a bundle holds functions."""
    stem, dot, suffix = name.partition(".")
    return f"{dot}{suffix}" in _SUFFIXES and _NAME.fullmatch(stem) is not None


def is_from_function_file(entry: str) -> bool:
    """Tell whether an entry point is a function that a notebook or program defined."""
    module = EntryPoint.parse(entry).module
    return module is not None and _NAME.fullmatch(module) is not None


def function_files(folder: Path) -> dict[str, bytes]:
    """Return the files with functions of an unpacked bundle."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if is_function_file(path.name)}
