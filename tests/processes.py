"""Processes and file descriptors, as the kernel reports them."""

from __future__ import annotations

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


def n_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
