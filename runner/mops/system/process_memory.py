"""What processes take of memory, what a worker may take, and how often the kernel has killed for it.

Linux tells through /proc and the cgroup file systems, version 1 and 2; elsewhere what cannot be read is unknown, and
nothing is limited by it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from mops.system.heap import resident_bytes
from mops.system.process_tree import NAMES_CHILDREN, tree

HEADROOM_BYTES = 256 << 20
"""Kept free for each slot: what a simulation can allocate in the 100 ms until it is looked at (docs/limits.md)."""

LEAST_SHARE_BYTES = 64 << 20
"""No share is less: below it not even Python with numpy starts, and the kernel has the last word anyway."""

_CONFIRM_SECONDS = 0.1
_CONFIRM_SHARE = 20  # a twentieth of the time at most
_NO_LIMIT = 1 << 60
_VERSION_1 = ("memory.limit_in_bytes", "memory.oom_control", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.events", "memory.current", "inactive_file")
_CGROUPS = Path("/sys/fs/cgroup")


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


@dataclass(frozen=True)
class _Cgroup:
    """A process's memory cgroup: its folder, up to the root of the hierarchy, and the names of its files."""

    folders: tuple[Path, ...]
    limit: str
    events: str
    usage: str
    inactive: str

    def limit_bytes(self) -> int | None:
        """Return the least limit of the cgroup and those that it is in."""
        limits = [_number(folder / self.limit) for folder in self.folders]
        return min((n for n in limits if n is not None and n < _NO_LIMIT), default=None)

    def free_bytes(self) -> int | None:
        """Return what the cgroup may still take, and those that it is in; None: there is no limit.

        Files that were read and are not in use (``inactive_file``) count as free: the kernel gives them up.
        """
        free = []
        for folder in self.folders:
            limit, used = _number(folder / self.limit), _number(folder / self.usage)
            if limit is not None and limit < _NO_LIMIT and used is not None:
                free.append(limit - used + (_stat(folder / "memory.stat", self.inactive) or 0))
        return max(min(free), 0) if free else None

    @property
    def counter(self) -> Path:
        """The file that counts what the kernel has killed."""
        return self.folders[0] / self.events

    def kills(self) -> int | None:
        """Return how many processes of the cgroup the kernel has killed because it was full."""
        return _oom_kill_of(self.counter)


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
            return _Cgroup(_folders(mounted / "memory", path), *_VERSION_1)
    for number, _, path in lines:
        if number == "0" and (mounted / "cgroup.controllers").exists():
            return _Cgroup(_folders(mounted, path), *_VERSION_2)
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


def kernel_kills() -> int | None:
    """Return how many processes the kernel has killed for memory that may be ours; None: unknown."""
    file = _own_kill_counter()
    return _oom_kill_of(file) if file is not None else None


@functools.cache
def _own_kill_counter() -> Path | None:
    return kill_counter()  # before and after each order it is asked for: which file it is stays as it is


def kill_counter(proc: Path = Path("/proc"), mounted: Path = _CGROUPS) -> Path | None:
    """Return the file that counts the processes that the kernel has killed for memory and that may be ours.

    In a container with a limit that of the container. Elsewhere that of the machine: it is the machine's memory that
    runs out then, and the cgroup of who is killed need not count it, nor be there at all.
    """
    cgroup = own_cgroup(proc / "self" / "cgroup", mounted)
    if cgroup is not None and cgroup.kills() is not None and cgroup.limit_bytes() is not None:
        return cgroup.counter
    return proc / "vmstat" if _oom_kill_of(proc / "vmstat") is not None else None


def _oom_kill_of(file: Path) -> int | None:
    return _stat(file, "oom_kill")


def _stat(file: Path, name: str) -> int | None:
    """Return the number after a name at the start of a line; None: it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


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


def available_bytes() -> int:
    """Return what can be taken now before something has to give way: of the machine, or what is left of the container.

    Files that the kernel keeps in memory, and would give up, count as available.
    """
    cgroup = own_cgroup()
    in_container = cgroup.free_bytes() if cgroup is not None else None
    on_machine = psutil.virtual_memory().available
    return on_machine if in_container is None else min(on_machine, in_container)


def usable_bytes(worker_limit: int | None, taken: int) -> int:
    """Return what this process and its children may take, as far as others leave it now.

    Parameters
    ----------
    worker_limit
        What Dask was told for this worker; None or 0: nothing.
    taken
        What they take already.
    """
    return min(allowed_bytes(worker_limit), taken + available_bytes())


def allowed_bytes(worker_limit: int | None = None) -> int:
    """Return what this process and its children may take, whatever others take: the least of all limits.

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
