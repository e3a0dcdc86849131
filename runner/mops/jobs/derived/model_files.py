"""Decides which changed files of a project may change what its model computes. Pure.

New code of targets may score stored simulations only if the model is the same. mops cannot know what a model reads. So
every file counts as the model's, except:

- the Python files of targets, and those that only they use, if no other Python file names them; if another Python file
  imports modules by computed names, none
- Python files of tests that no other Python file names
- texts (``.md``, ``.rst``, ``.log``), notebooks, study files, ``mops.toml``, ``.mopsignore`` and the registry
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from mops.project.project import REGISTRY, ModelSpec
from mops.study.entry_point import EntryPoint

_TEXTS = {".md", ".rst", ".log", ".ipynb"}
_SETTINGS = {"mops.toml", ".mopsignore", REGISTRY}
_IMPORTS_COMPUTED_NAMES = re.compile(r"\b(importlib|__import__|runpy|pkgutil|exec|eval)\b")


def model_files(changed: Iterable[str], sources: Mapping[str, str], spec: ModelSpec) -> list[str]:
    """Return the changed files that may belong to the model.

    Parameters
    ----------
    changed
        Paths relative to the project root.
    sources
        The text of each Python and JSON file before and after the change, by its path.
    spec
        The model and its targets.
    """
    others = _other_code(sources, spec)
    return [name for name in changed if name not in others and not _is_no_code(name, sources.get(name, ""))]


def _is_no_code(name: str, text: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix in _TEXTS or name in _SETTINGS or (path.suffix == ".json" and _is_study(text))


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return "tests" in path.parts or path.name.startswith("test_") or path.name == "conftest.py"


def _is_study(text: str) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and {"model", "parameter_sets"} <= data.keys()


def _other_code(sources: Mapping[str, str], spec: ModelSpec) -> set[str]:
    """Return the Python files that only targets and tests use."""
    python = {name: text for name, text in sources.items() if name.endswith(".py")}
    words = {name: re.compile(rf"\b{re.escape(_module(name))}\b") for name in python}
    names = {name: _packages(name, python) for name in python}
    for name, text in python.items():
        names[name] |= {other for other in python if words[other].search(text)}
    tests = {name for name in python if _is_test(name)}
    targets = {name for name in python if any(_is_file_of(name, target) for target in spec.targets)}
    named = {other for name, others in names.items() if name not in tests for other in others - {name}}
    model = {name for name in python if _is_file_of(name, spec.model)}
    of_model = _reached(model | (python.keys() - named - targets - tests), names)
    if any(_IMPORTS_COMPUTED_NAMES.search(python[name]) for name in of_model):
        return set()
    return (_reached(targets, names) | tests) - of_model


def _packages(name: str, python: Mapping[str, str]) -> set[str]:
    """Return the files of the packages above a file: its import runs them."""
    return {str(folder / "__init__.py") for folder in PurePosixPath(name).parents} & python.keys()


def _reached(start: Iterable[str], names: Mapping[str, set[str]]) -> set[str]:
    """Return these files, the files that they name, and so on."""
    found: set[str] = set()
    left = list(start)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += names[name]
    return found


def _is_file_of(name: str, entry: str) -> bool:
    file = EntryPoint.parse(entry).file
    return name == file or name.endswith((f"/{file}", f"{file.removesuffix('.py')}/__init__.py"))


def _module(name: str) -> str:
    """Return the last part of the name with which other files import a file."""
    path = PurePosixPath(name)
    return path.parent.name if path.stem == "__init__" else path.stem
