"""Names the code of functions and classes that a program gives to ``mops.submit``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mops.errors import ModelError
from mops.project.import_folders import files_of, import_folders

Code = str | Callable[..., Any]
"""An entry point as text, or a function or class of an imported module."""

_WHERE = "the model or target"
_LIBRARIES = frozenset(("site-packages", "dist-packages"))


def entry_point(code: object, root: Path, folder: Path, imported: dict[str, str]) -> str:
    """Return the entry point of a function or class; text is returned as it is.

    Child processes import the model, so they need a file or module and a name in it.

    Parameters
    ----------
    root
        The project root, all links resolved.
    folder
        The study's folder.
    imported
        Gets the file of the module, for an entry point that is not text.

    Raises
    ------
    ModelError
        The name of the object does not lead to it: it is defined in a notebook or in the program itself, inside
        something else, or is another object under a name that it took over, as decorated functions do.
    """
    if isinstance(code, str):
        return code
    name, full = getattr(code, "__name__", None), getattr(code, "__qualname__", None)
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    if not callable(code) or name is None or module is None:
        raise ModelError(
            f"an object of type {type(code).__name__} is not a function or class",
            where=_WHERE,
            hint="pass a function, a class, or text like 'module:name'",
        )
    if module.__name__ == "__main__":
        raise ModelError(
            f"{full} is defined in this notebook or program, and child processes import the model from a file",
            where=_WHERE,
            hint="write it to a file of the project, in a notebook with %%writefile model.py, and import it from there",
        )
    if name != full or getattr(module, name, None) is not code:
        raise ModelError(
            f"{module.__name__} has no object {name!r} that is this one, so child processes cannot import it",
            where=_WHERE,
            hint="define it with def or class at the top level of its file, under its own name",
        )
    place, file = _place(module, root, folder)
    entry = f"{place}:{name}"
    if file is not None:
        imported[entry] = file
    return entry


def _place(module: ModuleType, root: Path, folder: Path) -> tuple[str, str | None]:
    """Return how an entry point names a module, and the module's file, relative to the root if it is below the root.

    A module has its name. If no folder from which child processes import has the module, or another folder before it
    has one of this name, the module is named by its file.
    """
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
    return inside if "/" in inside else f"./{inside}", inside
