"""Reads cgroups, version 1 and 2: memory limits, and how often the kernel has killed for memory."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_NO_LIMIT = 1 << 60

_VERSION_1 = ("memory.limit_in_bytes", "memory.oom_control", "memory.usage_in_bytes", "total_inactive_file")

_VERSION_2 = ("memory.max", "memory.events", "memory.current", "inactive_file")

_CGROUPS = Path("/sys/fs/cgroup")


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
    return kill_counter()  # before and after each task it is asked for: which file it is stays as it is


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
class OomKills:
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


def container_kills() -> OomKills | None:
    """Return this container's count of kills for memory; None: it cannot be seen."""
    n = oom_kills()
    if n is None:
        return None
    try:
        born = psutil.Process(1).create_time()
    except psutil.Error:  # hidden, as on machines that people share: it is the machine's own
        born = psutil.boot_time()
    return OomKills(n, born, time.time() - born)
