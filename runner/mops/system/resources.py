"""How much memory and how many processors this process may use, and the share of memory of each slot."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# Kept free for each slot: a simulation can allocate this much in the 100 ms between two measurements
# (docs/internals/limits.md has the figures).
HEADROOM_BYTES = 256 << 20

_LEAST_SHARE_BYTES = 64 << 20  # Python with numpy does not start with less

LEAST_SLOT_BYTES = _LEAST_SHARE_BYTES + HEADROOM_BYTES
"""A worker uses no more slots than have this much each."""


def share_bytes(allowed: int, parent: int, slots: int) -> int:
    """Return the memory of one simulation, so that ``slots`` of them and the worker's own process (``parent``) fit."""
    return max((allowed - parent) // slots - HEADROOM_BYTES, _LEAST_SHARE_BYTES)


def slots_with_room(allowed: int, parent: int, slots: int) -> int:
    """Return for how many of the slots the memory is enough: one at least."""
    # With more, each simulation would exceed the smallest share and run again alone on its worker.
    return min(max((allowed - parent) // LEAST_SLOT_BYTES, 1), slots)


def allowed_bytes(worker_limit: int | None = None) -> int:
    """Return the lowest limit of this process and its children; ``worker_limit`` is Dask's, None or 0: no limit."""
    cgroup = own_cgroup()
    limits = [worker_limit, cgroup.limit_bytes() if cgroup is not None else None, psutil.virtual_memory().total]
    return min(limit for limit in limits if limit)


def usable_bytes(worker_limit: int | None, taken: int) -> int:
    """Return how much this process and its children may use now, of which they take ``taken`` bytes already."""
    return min(allowed_bytes(worker_limit), taken + available_bytes())


def available_bytes() -> int:
    """Return how much memory is available now: on the machine or in the container, whichever has less."""
    # Files that the kernel keeps in memory and can drop count as available.
    cgroup = own_cgroup()
    in_container = cgroup.free_bytes() if cgroup is not None else None
    on_machine = psutil.virtual_memory().available
    return on_machine if in_container is None else min(on_machine, in_container)


def oom_kills() -> int | None:
    """Return how many processes of this process's cgroup the kernel has killed for memory; None: unknown."""
    cgroup = own_cgroup()
    return cgroup.kills() if cgroup is not None else None


@dataclass(frozen=True)
class OomKills:
    """How many processes the kernel has killed for memory in a container, and how old the container is."""

    n: int
    born: float  # when process 1 started, which a restart replaces (s, by this machine's clock)
    age_s: float


def container_kills() -> OomKills | None:
    """Return this container's kills for memory; None: unknown."""
    n = oom_kills()
    if n is None:
        return None
    try:
        born = psutil.Process(1).create_time()
    except psutil.Error:  # a shared machine hides process 1, which started with the machine
        born = psutil.boot_time()
    return OomKills(n, born, time.time() - born)


def kernel_kills() -> int | None:
    """Return how many processes, perhaps ours, the kernel has killed for lack of memory; None: unknown."""
    file = _own_kill_counter()
    return _stat(file, "oom_kill") if file is not None else None


CGROUPS = Path("/sys/fs/cgroup")


def kill_counter(proc: Path = Path("/proc"), mounted: Path = CGROUPS) -> Path | None:
    """Return the file that counts the processes, perhaps ours, that the kernel has killed for lack of memory."""
    # In a container with a limit, this is the container's file. Otherwise it is the machine's file, because the machine
    # runs out of memory: the cgroup of the killed process may not count the kill, or may be removed.
    cgroup = own_cgroup(proc / "self" / "cgroup", mounted)
    if cgroup is not None and cgroup.kills() is not None and cgroup.limit_bytes() is not None:
        return cgroup.counter
    return proc / "vmstat" if _stat(proc / "vmstat", "oom_kill") is not None else None


# Workers ask before and after each task, and the file stays the same.
_own_kill_counter = functools.cache(kill_counter)

_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class _Cgroup:
    """A process's memory cgroup: its folder and those above, and the names of its files."""

    folders: tuple[Path, ...]
    counter: Path  # where the kernel counts the processes that it has killed
    limit: str
    usage: str
    stat_prefix: str

    def limit_bytes(self) -> int | None:
        """Return the lowest limit of the cgroup and the cgroups above it; None: no limit."""
        limits = [_number(folder / self.limit) for folder in self.folders]
        return min((n for n in limits if n is not None and n < _NO_LIMIT), default=None)

    def free_bytes(self) -> int | None:
        """Return how much memory the cgroup and the cgroups above it have left; None: no limit."""
        free = []
        for folder in self.folders:
            limit, used = _number(folder / self.limit), _number(folder / self.usage)
            if limit is not None and limit < _NO_LIMIT and used is not None:
                # Files in memory count as free, also those that were read twice (active_file): the kernel gives them
                # up. Files of tmpfs are not among them.
                lists = (f"{self.stat_prefix}{name}" for name in ("inactive_file", "active_file"))
                free.append(limit - used + sum(_stat(folder / "memory.stat", name) or 0 for name in lists))
        return max(min(free), 0) if free else None

    def kills(self) -> int | None:
        """Return how many processes of the cgroup the kernel has killed for memory; None: unknown."""
        return _stat(self.counter, "oom_kill")


def own_cgroup(proc: Path = Path("/proc/self/cgroup"), mounted: Path = CGROUPS) -> _Cgroup | None:
    """Return this process's memory cgroup, of version 1 or 2; None: this process sees none."""
    paths = own_paths(proc)
    if "memory" in paths:
        folders = folders_up(mounted / "memory", paths["memory"])
        counter = folders[0] / "memory.oom_control"
        return _Cgroup(folders, counter, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    if "" in paths and (mounted / "cgroup.controllers").exists():
        folders = folders_up(mounted, paths[""])
        return _Cgroup(folders, folders[0] / "memory.events", "memory.max", "memory.current", "")
    return None


def own_paths(proc: Path) -> dict[str, str]:
    """Return the path of this process's cgroup by controller, and by "" in version 2; empty: it sees none."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return {}
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def folders_up(root: Path, path: str) -> tuple[Path, ...]:
    """Return the folder of a cgroup and those above, up to the root of its hierarchy."""
    own = root / path.strip("/")
    if not own.is_dir():  # a container sees its own cgroup as the root
        own = root
    return tuple(folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", or the file does not exist
        return None


def _stat(file: Path, name: str) -> int | None:
    """Return the number after a name at the start of a line; None: no line starts with the name."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


_CPU_VERSION_1 = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def n_processors(proc: Path = Path("/proc"), mounted: Path = CGROUPS) -> int:
    """Return how many processors this process may use: its affinity and the quotas of its cgroups, rounded up, count.

    Dask (``dask.system.cpu_count``) does not read the quotas of cgroups above the own one.
    """
    paths = own_paths(proc / "self" / "cgroup")
    files = [[folder / "cpu.max"] for folder in folders_up(mounted, paths.get("", ""))]
    for hierarchy in _CPU_VERSION_1:
        folders = folders_up(mounted / hierarchy, paths.get("cpu", ""))
        files += [[folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"] for folder in folders]
    allowed = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for some in files:
        with contextlib.suppress(OSError, ValueError):  # "max", or a file does not exist
            quota, period = (int(word) for file in some for word in file.read_text().split())
            allowed += [math.ceil(quota / period)] if quota > 0 else []
    return min(allowed)
