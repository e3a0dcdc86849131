"""Finds the files of the code that a study names, and the folders from which child processes import.

The folders are, in this order: the project root, the root's ``src/``, and the study's folder and its ``src/`` if only
they have the code (docs/reference/study.md, "Where mops looks for code").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mops.errors import ModelError
from mops.project.function_files import is_from_function_file
from mops.project.project import ModelSpec
from mops.study.entry_point import EntryPoint

ROOT, SRC = ".", "src"
_HERE = "./"


def with_import_folders(
    spec: ModelSpec,
    names: Iterable[str],  # the files of the bundle
    study_folder: str | None = None,  # relative to the project root; None: it is outside
    # entry points of the registry, which are relative to the project root and not to the study's folder
    registered: Collection[str] = (),
    # For each entry point that a program gave as an object: the file that its module came from, relative to the project
    # root if it is in the project.
    imported: Mapping[str, str] | None = None,
) -> ModelSpec:
    """Return the code of a study with the folders from which child processes import it."""
    files = frozenset(names)
    entries = (spec.model, *spec.targets)
    has_code = [folder for folder in _folders(study_folder, files.__contains__, entries) if _has_code(folder, files)]
    of_project = [folder for folder in has_code if folder in (ROOT, SRC)]
    # Functions of a notebook import modules next to the notebook.
    used = set(has_code if any(map(is_from_function_file, entries)) else of_project)
    for entry in entries:
        found = files_of(entry, of_project if entry in registered else has_code, files.__contains__)
        _refuse_other_code(entry, list(found.values()), (imported or {}).get(entry))
        used.update(list(found)[:1])
    return replace(spec, import_folders=tuple(folder for folder in has_code if folder in used))


def import_folders(root: Path, study_folder: Path, entries: Iterable[str] = ()) -> list[str]:
    """Return the folders of a project that may hold code, relative to its root, before it is packed."""
    inside = relative_to(study_folder, root)
    return _folders(inside, lambda name: (root / name).is_file(), entries)


def relative_to(folder: Path, root: Path) -> str | None:
    """Return a folder relative to the project root; None: it is not below the root."""
    real = folder.resolve()
    return real.relative_to(root).as_posix() if real.is_relative_to(root) else None


def files_of(entry: str, folders: Iterable[str], has_file: Callable[[str], bool]) -> dict[str, str]:
    """Return the file of an entry point in each folder that has one. A path that begins with ``./`` is in the root."""
    parsed = EntryPoint.parse(entry)
    file = parsed.file
    if file.startswith(_HERE):
        folders = (ROOT,)
    # Python takes a package before a module of the same name.
    choices = (file,) if parsed.path else (f"{file.removesuffix('.py')}/__init__.py", file)
    found: dict[str, str] = {}
    for folder in folders:
        for choice in choices:
            if has_file(name := str(PurePosixPath(folder, choice))) and name not in found.values():
                found.setdefault(folder, name)
    return found


def _folders(study_folder: str | None, has_file: Callable[[str], bool], entries: Iterable[str]) -> list[str]:
    """Return every folder that may hold code. A folder ``src`` that is a package holds no other packages."""
    modules = [EntryPoint.parse(entry).module or "" for entry in entries]
    if any(module.partition(".")[0] == SRC for module in modules):
        return [ROOT, *([study_folder] if study_folder not in (None, ROOT, SRC) else [])]
    found = []
    for folder in (ROOT, study_folder):
        if folder is not None:
            src = str(PurePosixPath(folder, SRC))
            found += [folder, *([] if has_file(f"{src}/__init__.py") else [src])]
    return list(dict.fromkeys(found))


def _has_code(folder: str, files: Collection[str]) -> bool:
    return folder == ROOT or any(name.startswith(f"{folder}/") and name.endswith(".py") for name in files)


def _refuse_other_code(entry: str, found: list[str], imported: str | None) -> None:
    """Raise if it is not certain which file the user means, or if child processes would import another file."""
    if imported is not None and found and found[0] != imported:
        raise ModelError(
            f"the program has imported {imported}, and child processes would import {found[0]} of the project",
            where=entry,
            hint=f"install the project with 'pip install --editable .', or list {found[0]} in .mopsignore",
        )
    if imported is None and len(found) > 1:
        name = entry.partition(":")[2] or "name"
        choices = " or ".join(f"'{file if '/' in file else _HERE + file}:{name}'" for file in found)
        raise ModelError(
            f"the project has two files of this name: {' and '.join(found)}",
            where=entry,
            hint=f"write {choices}, or list one file in .mopsignore",
        )
