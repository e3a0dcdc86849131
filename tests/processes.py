"""Processes and file descriptors, as the kernel reports them."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants() -> set[int]:
    """Return the descendants of this process that are alive."""
    return {process.pid for process in psutil.Process().children(recursive=True) if alive(process.pid)}


def descriptors() -> set[tuple[str, str]]:
    """Return the open file descriptors of this process, each with the file that it is open on.

    Tests look for new ones, and compare no numbers: a thread of an earlier test may close its own at any time.
    """
    gc.collect()
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now, such as that of the list itself
            found.add((descriptor.name, str(descriptor.readlink())))
    return found
