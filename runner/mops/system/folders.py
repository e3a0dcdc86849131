"""Makes folders read-only, and removes them. Child processes import this: standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def make_read_only(root: Path) -> None:
    """Make a folder read-only, with every folder and file in it. Links stay as they are."""
    for folder, _, names in os.walk(root, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            with contextlib.suppress(FileNotFoundError):  # another process has removed the file
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_WRITE)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content. The path may be read-only or absent.

    Raises
    ------
    OSError
        The path cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):  # another process may remove the same path
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            path.chmod(stat.S_IRWXU)
            for folder, names, _ in os.walk(path):
                for inner in (Path(folder, name) for name in names):
                    if not inner.is_symlink():
                        inner.chmod(stat.S_IRWXU)  # before os.walk lists it, which needs the right to read
            shutil.rmtree(path)
