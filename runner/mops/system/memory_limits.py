"""How much memory a worker may use, and the share of each of its slots."""

from __future__ import annotations

import psutil

from mops.system.cgroup import own_cgroup

HEADROOM_BYTES = 256 << 20
"""Kept free for each slot: what a simulation can allocate in 100 ms, until the next look (docs/internals/limits.md)."""

LEAST_SHARE_BYTES = 64 << 20
"""No share is less: below it not even Python with numpy starts, and the kernel has the last word anyway."""


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
