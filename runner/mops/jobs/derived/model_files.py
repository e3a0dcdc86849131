"""Decides which changed files of a project may change what its model computes. Pure.

New code of targets may score stored simulations only if the model is the same. mops cannot know what a model reads. So
every file counts as the model's, except:

- the Python files of targets, and those that only they use, if no other Python file names them
- data files that were added, if no Python file lists a folder: unchanged code does not know their names
- tests, texts (``.md``, ``.rst``), notebooks, study files, ``mops.toml`` and the registry
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from mops.project.project import REGISTRY, ModelSpec
from mops.study.entry_point import EntryPoint

_TEXTS = {".md", ".rst", ".ipynb"}
_DATA = {".csv", ".parquet", ".json"}
_LISTS_FOLDERS = re.compile(r"\b(i?glob|rglob|iterdir|listdir|scandir|walk)\s*\(")


def model_files(changed: Mapping[str, str], sources: Mapping[str, str], spec: ModelSpec) -> list[str]:
    """Return the changed files that may belong to the model.

    Parameters
    ----------
    changed
        How each file has changed: ``added``, ``removed`` or ``changed``. Paths are relative to the project root.
    sources
        The text of each Python and JSON file before and after the change, by its path.
    spec
        The model and its targets.
    """
    others = _files_of_targets(sources, spec)
    if not any(_LISTS_FOLDERS.search(text) for name, text in sources.items() if name.endswith(".py")):
        others |= {name for name, how in changed.items() if how == "added" and PurePosixPath(name).suffix in _DATA}
    return [name for name in changed if name not in others and not _is_no_code(name, sources.get(name, ""))]


def _is_no_code(name: str, text: str) -> bool:
    path = PurePosixPath(name)
    if path.suffix in _TEXTS or name in ("mops.toml", REGISTRY):
        return True
    return _is_test(name) or (path.suffix == ".json" and _is_study(text))


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return "tests" in path.parts or path.name.startswith("test_") or path.name == "conftest.py"


def _is_study(text: str) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and {"model", "parameter_sets"} <= data.keys()


def _files_of_targets(sources: Mapping[str, str], spec: ModelSpec) -> set[str]:
    """Return the Python files that targets use and nothing else does."""
    python = {name: text for name, text in sources.items() if name.endswith(".py") and not _is_test(name)}
    words = {name: re.compile(rf"\b{re.escape(_module(name))}\b") for name in python}
    names = {name: {other for other in python if words[other].search(text)} for name, text in python.items()}
    named = {other for name, others in names.items() for other in others - {name}}
    targets = {name for name in python if any(_is_file_of(name, target) for target in spec.targets)}
    model = {name for name in python if _is_file_of(name, spec.model)}
    return _reached(targets, names) - _reached(model | (python.keys() - named - targets), names)


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
