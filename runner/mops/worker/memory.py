"""What processes take of memory, what a worker may take, and how often the kernel has killed for it.

Linux tells through /proc and the cgroup file systems, version 1 and 2; elsewhere what cannot be read is unknown, and
nothing is limited by it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mops.worker.heap import resident_bytes

HEADROOM_BYTES = 256 << 20
"""Kept free for each slot: what a simulation can allocate in the 100 ms until it is looked at (docs/limits.md)."""

LEAST_SHARE_BYTES = 64 << 20
"""No share is less: below it not even Python with numpy starts, and the kernel has the last word anyway."""

_NO_LIMIT = 1 << 60
_CGROUPS = Path("/sys/fs/cgroup")
_NAMES_CHILDREN = Path("/proc/self/task", str(os.getpid()), "children").exists()  # CONFIG_PROC_CHILDREN of Linux


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
    if not _NAMES_CHILDREN:
        return _tree_bytes_elsewhere(*pids)
    return sum(map(resident_bytes, {found for pid in pids for found in tree(pid)}))


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


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and all that it started have taken so far."""
    return sum(map(_cpu_seconds, tree(pid)))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in _children(pid):
        yield from tree(child)


def _children(pid: int) -> list[int]:
    # Each thread's own: to look for them among all processes of the machine takes a hundred times as long.
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path("/proc", str(pid), "task").iterdir():
            with contextlib.suppress(OSError):  # this thread has, and the others have their children still
                found += map(int, (thread / "children").read_text().split())
    return found


@dataclass(frozen=True)
class _Cgroup:
    """A process's memory cgroup: its folder, up to the root of the hierarchy, and the names of its files."""

    folders: tuple[Path, ...]
    limit: str
    events: str

    def limit_bytes(self) -> int | None:
        """Return the least limit of the cgroup and those that it is in."""
        limits = [_number(folder / self.limit) for folder in self.folders]
        return min((n for n in limits if n is not None and n < _NO_LIMIT), default=None)

    def kills(self) -> int | None:
        """Return how many processes of the cgroup the kernel has killed because it was full."""
        try:
            lines = (self.folders[0] / self.events).read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", or no such file
        return None


def own_cgroup(proc: Path = Path("/proc/self/cgroup"), mounted: Path = _CGROUPS) -> _Cgroup | None:
    """Return this process's memory cgroup; None: there is none to be seen.

    Parameters
    ----------
    proc, mounted
        Where the kernel says which it is, and where cgroups are mounted.
    """
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return _Cgroup(_folders(mounted / "memory", path), "memory.limit_in_bytes", "memory.oom_control")
    for number, _, path in lines:
        if number == "0" and (mounted / "cgroup.controllers").exists():
            return _Cgroup(_folders(mounted, path), "memory.max", "memory.events")
    return None


def _folders(root: Path, path: str) -> tuple[Path, ...]:
    own = root / path.strip("/")
    if not own.is_dir():  # a container sees its own cgroup as the root
        own = root
    return tuple(folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def oom_kills() -> int | None:
    """Return how many processes of this process's cgroup the kernel has killed for memory; None: unknown."""
    cgroup = own_cgroup()
    return cgroup.kills() if cgroup is not None else None


@dataclass(frozen=True)
class Kills:
    """What the kernel has killed for memory in this process's cgroup, and how old the container is that it counts for.

    Parameters
    ----------
    n
        How many processes.
    born
        When process 1 began (s, by this machine's clock): a container that is started again has another one.
    age_s
        How long ago that was.
    """

    n: int
    born: float
    age_s: float


def container_kills() -> Kills | None:
    """Return this container's count of kills for memory; None: it cannot be seen."""
    n = oom_kills()
    if n is None:
        return None
    try:
        born = psutil.Process(1).create_time()
    except psutil.Error:  # hidden, as on machines that people share: it is the machine's own
        born = psutil.boot_time()
    return Kills(n, born, time.time() - born)


def allowed_bytes(worker_limit: int | None = None) -> int:
    """Return what this process and its children may take: the least of all limits.

    Parameters
    ----------
    worker_limit
        What Dask was told for this worker; None or 0: nothing.
    """
    cgroup = own_cgroup()
    limits = [worker_limit, cgroup.limit_bytes() if cgroup is not None else None, psutil.virtual_memory().total]
    return min(limit for limit in limits if limit)


def share_bytes(allowed: int, parent: int, slots: int) -> int:
    """Return what one of ``slots`` simulations may take, so that all of them and their parent have room.

    Parameters
    ----------
    allowed, parent
        What the worker may take, and what its own process takes, in bytes.
    """
    return max((allowed - parent) // slots - HEADROOM_BYTES, LEAST_SHARE_BYTES)
