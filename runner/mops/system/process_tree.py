"""The descendants of a process. The reaper imports this: standard library only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NAMES_CHILDREN = Path("/proc/self/task", str(os.getpid()), "children").exists()  # CONFIG_PROC_CHILDREN of Linux


def read_proc(path: str) -> bytes:
    """Return a file of /proc, without the time of :mod:`pathlib`: mops reads such files many times a second.

    Raises
    ------
    OSError
        The process has ended, or the system has no /proc.
    """
    descriptor = os.open(f"/proc/{path}", os.O_RDONLY)
    try:
        read = b""
        while more := os.read(descriptor, 1 << 16):
            read += more
        return read
    finally:
        os.close(descriptor)


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in children_of(pid):
        yield from tree(child)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, with those that have ended and were not waited for."""
    found: list[int] = []
    if not NAMES_CHILDREN:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                found += [int(stat.parent.name)] if parent == pid else []
        return found
    # The kernel lists each thread's children. A search of all processes takes a hundred times as long.
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as in read_proc
            with contextlib.suppress(OSError):  # the thread has ended, and other threads may have children
                found += map(int, read_proc(f"{pid}/task/{thread}/children").split())
    return found
