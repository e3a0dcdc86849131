"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from mops.system.memory_limits import CGROUPS, folders_up, own_paths

_VERSION_1 = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def n_processors(proc: Path = Path("/proc"), mounted: Path = CGROUPS) -> int:
    """Return how many processors this process may use: its affinity and the quotas of its cgroups, rounded up, count.

    Dask (``dask.system.cpu_count``) does not read the quotas of cgroups above the own one.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(proc, mounted)
    return there if quota is None else min(there, quota)


def _quota(proc: Path, mounted: Path) -> int | None:
    """Return the processors that this process's cgroup and those above may use, of version 1 or 2; None: no quota."""
    paths = own_paths(proc / "self" / "cgroup")
    files = [[folder / "cpu.max"] for folder in folders_up(mounted, paths.get("", ""))]
    for hierarchy in _VERSION_1:
        folders = folders_up(mounted / hierarchy, paths.get("cpu", ""))
        files += [[folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"] for folder in folders]
    return min((quota for some in files if (quota := _rounded_up(*some)) is not None), default=None)


def _rounded_up(*files: Path) -> int | None:
    """Return a quota divided by its period, which these files hold; None: unlimited."""
    try:
        quota, period = (int(word) for file in files for word in file.read_text().split())
    except (OSError, ValueError):  # "max", or a file does not exist
        return None
    return math.ceil(quota / period) if quota > 0 else None
