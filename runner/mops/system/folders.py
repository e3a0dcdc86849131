"""Folders of this machine that several processes use: locked, made read-only, removed. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other thread or process of this machine holds the lock of this name, and hold it.

    The kernel releases the lock of a process that dies. A file system without locks lets everybody in at once: the lock
    saves work, and what it protects has to be safe without it.
    """
    with contextlib.ExitStack() as opened:
        while True:
            file = opened.enter_context(path.open("ab"))
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(path, file.fileno()):
                break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # who waits for it has a file without a name then, and opens another


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


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
