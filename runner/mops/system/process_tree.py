"""The processes that a process has started. Standard library only: the reaper imports this."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NAMES_CHILDREN = Path("/proc/self/task", str(os.getpid()), "children").exists()  # CONFIG_PROC_CHILDREN of Linux


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in children_of(pid):
        yield from tree(child)


def children_of(pid: int) -> list[int]:
    """Return the processes whose parent this one is, those that have ended and were not waited for too."""
    if not NAMES_CHILDREN:
        return [other for other, parent in _parents() if parent == pid]
    # Each thread's own: to look for them among all processes of the machine takes a hundred times as long.
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path("/proc", str(pid), "task").iterdir():
            with contextlib.suppress(OSError):  # this thread has, and the others have their children still
                found += map(int, (thread / "children").read_text().split())
    return found


def ended_children_of(pid: int) -> int:
    """Return how many processes whose parent this one is have ended and were not waited for."""
    n_ended = 0
    for child in children_of(pid):
        with contextlib.suppress(OSError):  # it has been waited for meanwhile
            n_ended += Path("/proc", str(child), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return n_ended


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
