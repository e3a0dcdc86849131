"""Names the code of functions and classes that a program gives to ``mops.submit``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mops.errors import ModelError

Code = str | Callable[..., Any]
"""An entry point as text, or a function or class of an imported module."""

_WHERE = "the model or target"


def entry_point(code: object, root: Path) -> str:
    """Return the entry point of a function or class; text is returned as it is.

    Child processes import the model, so they need a file or module and a name in it.

    Parameters
    ----------
    root
        The project root, all links resolved.

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
    return f"{_place(module, root)}:{name}"


def _place(module: ModuleType, root: Path) -> str:
    """Return how an entry point names a module: by its name, or by its file if the root does not lead to the name."""
    file, dotted = getattr(module, "__file__", None), module.__name__
    if not file or not (path := Path(file).resolve()).is_relative_to(root) or path.suffix != ".py":
        return dotted
    inside = path.relative_to(root)
    found = inside.with_suffix("").as_posix()
    as_path = dotted.replace(".", "/")
    return dotted if found in (as_path, f"{as_path}/__init__") or "." in dotted else inside.as_posix()
