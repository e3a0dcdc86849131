"""The memory and the CPU time of processes and of what they have started.

Linux tells through /proc and the cgroup file systems, version 1 and 2; elsewhere what cannot be read is unknown, and
nothing is limited by it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from mops.system.heap import resident_bytes
from mops.system.process_tree import NAMES_CHILDREN, tree

_CONFIRM_SECONDS = 0.1
_CONFIRM_SHARE = 20  # a twentieth of the time at most


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory of a process since :func:`reset_peak`; 0 for one that has ended."""
    try:
        text = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) << 10 if found else 0


def reset_peak(pid: int) -> None:
    """Let :func:`peak_bytes` count from now on (proc(5), clear_refs); elsewhere it counts from the start."""
    with contextlib.suppress(OSError):
        Path("/proc", str(pid), "clear_refs").write_text("5")


def tree_bytes(*pids: int) -> int:
    """Return the resident memory of processes and all that they started, each once; shared pages count in each."""
    if not NAMES_CHILDREN:
        return _tree_bytes_elsewhere(*pids)
    return sum(map(resident_bytes, _trees(pids)))


def _trees(pids: Iterable[int]) -> set[int]:
    return {found for pid in pids for found in tree(pid)}


def _tree_bytes_elsewhere(*pids: int) -> int:
    """As :func:`tree_bytes`, where the kernel does not name a process's children: through all of the machine's."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            found.update((root, *root.children(recursive=True)))
    total = 0
    for process in found:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            total += process.memory_info().rss
    return total


def own_bytes(*pids: int, template: int | None = None) -> int | None:
    """Return what processes and all that they started take, shared pages once; None: the kernel does not say.

    What each has for itself counts whole, what several have by parts (the proportional set size). Of a forked process
    the pages that it shares with its template are the template's: they are there whether it runs or not.

    Parameters
    ----------
    template
        The process that has forked them.
    """
    try:
        found = [_mapped(pid) for pid in _trees(pids)]
    except OSError:
        return None
    private, parts = sum(one[0] for one in found), sum(one[1] for one in found)
    return max(private, parts - (resident_bytes(template) if template is not None else 0))


def _mapped(pid: int) -> tuple[int, int]:
    """Return a process's private bytes, and its part of all that it has mapped; nothing for one that has ended.

    Raises
    ------
    OSError
        The kernel does not say (before 4.14, or it is somebody else's).
    """
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        if resident_bytes(pid):
            raise
        return 0, 0
    found = {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in lines)}
    return found.get("Private_Clean", 0) + found.get("Private_Dirty", 0), found.get("Pss", 0)


class Usage:
    """What processes take: looked at cheaply, and exactly where that seems to be above a limit.

    Resident memory (20 us to read) counts a page in each process that has it: with four children forked from a process
    of 300 MiB, 1.2 GiB that nobody takes. To count a page once takes milliseconds, so it is done when resident memory
    is above the limit, and again from time to time while it is: what was shared may not be so any more.
    """

    def __init__(self) -> None:
        self._shared_bytes = 0
        self._again_at = 0.0
        self.is_exact = False
        """Whether shared pages counted once when it was last above a limit."""

    def look(self, limit_bytes: int, resident: Callable[[], int], exact: Callable[[], int | None]) -> int:
        """Return the bytes that are taken; above the limit only if that is confirmed.

        Parameters
        ----------
        resident
            Returns the resident bytes of all the processes.
        exact
            Returns what they take, shared pages once; None: it cannot be told.
        """
        resident_bytes = resident()
        supposed = max(resident_bytes - self._shared_bytes, 0)
        if supposed <= limit_bytes and (resident_bytes <= limit_bytes or time.monotonic() < self._again_at):
            return supposed
        began = time.monotonic()
        found = exact()
        now = time.monotonic()
        self._again_at = now + max(_CONFIRM_SECONDS, _CONFIRM_SHARE * (now - began))
        self.is_exact = found is not None
        found = resident_bytes if found is None else min(found, resident_bytes)
        self._shared_bytes = resident_bytes - found
        return found


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and all that it started have taken so far."""
    return sum(map(_cpu_seconds, tree(pid)))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
