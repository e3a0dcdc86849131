"""Decides which changed files of a project may change what its model computes. Pure.

New code of targets may score stored simulations only if the model is the same. mops cannot know what a model reads. So
every file counts as the model's, with few exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from mops.project.function_files import is_from_function_file, is_function_file
from mops.project.project import REGISTRY, ModelSpec
from mops.study.entry_point import EntryPoint

_TEXTS = {".md", ".rst", ".log", ".ipynb"}
_SETTINGS = {"mops.toml", ".mopsignore", REGISTRY}
_LISTS_FOLDERS = re.compile(r"\b(i?glob|rglob|iterdir|listdir|scandir|walk)\s*\(|[\"'][^\"'\n]*\*[^\"'\n]*[\"']")
_IMPORTS_COMPUTED_NAMES = re.compile(r"\b(importlib|__import__|runpy|pkgutil|exec|eval)\b")


def model_files(
    # How each file, relative to the project root, has changed: `added`, `removed` or `changed`.
    changed: Mapping[str, str],
    sources: Mapping[str, str],  # the text of each Python and JSON file before and after the change, by its path
    spec: ModelSpec,
) -> list[str]:
    """Return the changed files that may belong to the model."""
    # Every file does, except:
    # - Python files that the model's file does not name, directly or through other files. If one of these imports
    #   modules by computed names, no file is excepted.
    # - files that were added, if the model's Python files name neither file, folder nor ending, and list no folder
    # - texts (.md, .rst, .log), notebooks, study files, mops.toml, .mopsignore and the registry
    # - files with functions that a notebook or program defined, if the model is not among these
    # The text of a model that a notebook or program defined is not a file of the project. So only the last two apply.
    python = {name: text for name, text in sources.items() if name.endswith(".py")}
    of_model = _named_by_model(python, spec)
    code = "\n".join(python[name] for name in of_model)
    is_text = bool(of_model) and not is_from_function_file(spec.model)
    knows_all = is_text and not _IMPORTS_COMPUTED_NAMES.search(code)
    others = python.keys() - of_model if knows_all else set()
    if knows_all and not _LISTS_FOLDERS.search(code):
        new = [name for name, how in changed.items() if how == "added"]
        others |= {name for name in new if not _is_named(name, code)}
    return [name for name in changed if name not in others and not _is_no_code(name, sources.get(name, ""), spec)]


def _is_named(name: str, code: str) -> bool:
    """Tell whether code has the name of a file, of one of its folders, or its ending."""
    path = PurePosixPath(name)
    if path.suffix == ".py":  # it may hide a module of a library
        return True
    words = [path.stem, *path.parts[:-1]]
    return path.suffix in code or any(re.search(rf"\b{re.escape(word)}\b", code) for word in words)


def _is_no_code(name: str, text: str, spec: ModelSpec) -> bool:
    path = PurePosixPath(name)
    if path.suffix in _TEXTS or name in _SETTINGS:
        return True
    if is_function_file(name):  # the digest of the functions is in the Python file
        return name != EntryPoint.parse(spec.model).file
    return path.suffix == ".json" and _is_study(text)


def _is_study(text: str) -> bool:
    try:
        data = json.loads(text)
    except ValueError:
        return False
    return isinstance(data, dict) and {"model", "parameter_sets"} <= data.keys()


def _named_by_model(python: Mapping[str, str], spec: ModelSpec) -> set[str]:
    """Return the model's Python files: its own, those that they name, and the packages above them."""
    words = {name: re.compile(rf"\b{re.escape(_module(name))}\b") for name in python}
    found: set[str] = set()
    left = [name for name in python if _is_file_of(name, spec.model)]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += [other for other in python if words[other].search(python[name])]
            left += {str(folder / "__init__.py") for folder in PurePosixPath(name).parents} & python.keys()
    return found


def _is_file_of(name: str, entry: str) -> bool:
    file = EntryPoint.parse(entry).file
    return name == file or name.endswith((f"/{file}", f"{file.removesuffix('.py')}/__init__.py"))


def _module(name: str) -> str:
    """Return the last part of the name with which other files import a file."""
    path = PurePosixPath(name)
    return path.parent.name if path.stem == "__init__" else path.stem
