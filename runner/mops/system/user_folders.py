"""The user's folders for caches, configuration and state, as the XDG Base Directory Specification has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_IN_HOME = {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".local/state"}


def user_folder(variable: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder ``mops`` below what a variable names, such as ``XDG_CACHE_HOME``, or below its default.

    Raises
    ------
    RuntimeError
        The user has no home folder, and the variable names no absolute path.
    """
    base = Path(environ.get(variable, ""))
    if not base.is_absolute():  # the specification has relative ones ignored
        base = Path(environ.get("HOME") or Path.home()) / _IN_HOME[variable]
    return base / "mops"
