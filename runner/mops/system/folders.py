"""Makes folders read-only, and removes them. Child processes import this: standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def make_read_only(root: Path) -> None:
    """Take the right to write from a folder, from every folder in it, and from every file; links stay."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_WRITE)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, read-only folders too; nothing if it is not there.

    Raises
    ------
    OSError
        It cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):  # perhaps another process removes the same
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            _let_write(path)
            shutil.rmtree(path)


def _let_write(root: Path) -> None:
    root.chmod(stat.S_IRWXU)
    for folder, names, _ in os.walk(root):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)  # before it is listed, which may not be allowed either
