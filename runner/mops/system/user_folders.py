"""The user of this process: the name, and the folders for caches, configuration and state."""

from __future__ import annotations

import functools
import getpass
import logging
import os
import stat
import tempfile
from pathlib import Path

from platformdirs.unix import Unix

logger = logging.getLogger(__name__)

# The folders mops in those of the XDG Base Directory Specification, the same on every system. A property raises
# RuntimeError if the user has no home folder and the variable names no absolute path.
USER_FOLDERS = Unix("mops")


def user_name() -> str:
    """Return the user's login name; empty: the user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


def cache_path() -> Path:
    """Return the user's folder for caches; below the temporary folder if the home folder cannot be written."""
    return _folder("cache", os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))


def state_path() -> Path:
    """Return the user's folder for state; otherwise as :func:`cache_path`."""
    return _folder("state", os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME"))


@functools.cache
def _folder(kind: str, given: str | None, _home: str | None) -> Path:
    """Return a folder. It is chosen and logged once for each value of the variables."""
    try:
        path: Path = getattr(USER_FOLDERS, f"user_{kind}_path")
        if given and Path(given).is_absolute():  # a folder that the user names must be right
            return path
        path.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return path
        reason = f"{path} cannot be written"
    except RuntimeError:
        reason = "there is no home folder"
    except OSError as refused:
        reason = f"{path} cannot be made: {refused.strerror}"
    instead = _temporary() / kind
    instead.mkdir(exist_ok=True)
    logger.warning("%s; using %s; set XDG_%s_HOME to use another folder", reason, instead, kind.upper())
    return instead


def _temporary() -> Path:
    """Return the user's folder below the temporary folder. Processes of this user share it, and no other user."""
    folder = Path(tempfile.gettempdir(), f"mops-{os.geteuid()}")
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(1, "it belongs to another user", str(folder))
    return folder
