"""Finds the code that the user may mean by a module or a file that was not found: elsewhere, or with a similar name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mops.errors import nearest
from mops.study.entry_point import EntryPoint
from mops.units import listed

_SHOWN = 3
_INIT = "__init__.py"


@dataclass(frozen=True)
class Advice:
    """The end of an error's first line, and its hint."""

    found: str
    hint: str | None


def python_files(root: Path) -> list[str]:
    """Return the Python files of an unpacked bundle, relative to its root, sorted."""
    found = []
    for folder, _, names in os.walk(root):
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    return sorted(found)


def advice_for_entry(entry: str, files: Sequence[str], folders: Sequence[str]) -> Advice | None:
    """Return what to write for an entry point whose file was not found; None: nothing in the project is like it."""
    parsed = EntryPoint.parse(entry)
    name = f":{parsed.name}" if parsed.name else ""
    if found := _of_this_name(parsed.file, files):
        written = _written(found[0], folders)
        return Advice(f"; the project has {listed(found, _SHOWN)}", f"write '{written}{name}' in the study")
    if parsed.path is not None:
        near = nearest(parsed.path, files)
    else:
        modules = [*_modules(files, folders)]
        near = nearest(str(parsed.module), modules)
        module, _, function = str(parsed.module).rpartition(".")
        if near in (None, module) and module in modules and not name:
            near = f"{module}:{function}"  # a dot in place of the colon
    return Advice(f"; did you mean {near!r}?", f"write '{near}{name}' in the study") if near else None


def advice_for_import(module: str, files: Sequence[str], folders: Sequence[str]) -> Advice | None:
    """Return how to import a module that the code of the project does not find; None: the project has none like it."""
    if found := _of_this_name(f"{module.replace('.', '/')}.py", files):
        written = _written(found[0], folders)
        if not written.endswith(".py") and written != module:
            return Advice("", f"the project has {listed(found, _SHOWN)}: import it as {written}")
        return None
    near = nearest(module, _modules(files, folders)) if "." in module else None
    return Advice("", f"did you mean {near!r}?") if near else None


def advice_for_imported(missing: str, files: Sequence[str]) -> Advice | None:
    """Return what to do about a module that this program has from a file outside the bundle; None: it has not."""
    name = missing.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_library = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    is_library |= name.partition(".")[0] in sys.stdlib_module_names
    if not file or is_library or any(file.endswith(f"/{packed}") for packed in files):
        return None
    do = "move it to the project, name its folder with project=, or check .mopsignore"
    return Advice("", f"{name} is {file}, which the bundle of the project does not have: {do}")


def _of_this_name(file: str, files: Sequence[str]) -> list[str]:
    """Return the files elsewhere that end like this one, the shortest path first; a package ends in its folder."""
    package = f"{file.removesuffix('.py')}/{_INIT}"
    found = [name for name in files if f"/{name}".endswith((f"/{file}", f"/{package}"))]
    return sorted(found, key=lambda name: (name.count("/"), name))


def _written(file: str, folders: Sequence[str]) -> str:
    """Return how an entry point names a file: as a module if it can be imported, else as a path."""
    return min(_names(file, folders), key=len, default=file)


def _modules(files: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    for file in files:
        yield from _names(file, folders)


def _names(file: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the dotted names of a file, one for each folder of imports that contains it."""
    for folder in folders:
        path = PurePosixPath(file)
        if path.is_relative_to(folder):
            inside = path.relative_to(folder)
            parts = inside.parent.parts if inside.name == _INIT else inside.with_suffix("").parts
            if parts and all(map(str.isidentifier, parts)):
                yield ".".join(parts)
