"""How much memory a worker may use, and the share of each of its slots."""

from __future__ import annotations

import psutil

from mops.system.cgroup import own_cgroup

HEADROOM_BYTES = 256 << 20
"""Kept free for each slot: a simulation can allocate this much in the 100 ms between two measurements.

docs/internals/limits.md has the figures.
"""

LEAST_SHARE_BYTES = 64 << 20
"""The smallest share: Python with numpy does not start with less."""

LEAST_SLOT_BYTES = LEAST_SHARE_BYTES + HEADROOM_BYTES
"""A worker uses no more slots than have this much each."""


def available_bytes() -> int:
    """Return how much memory is available now: on the machine or in the container, whichever has less.

    Files that the kernel keeps in memory and can drop count as available.
    """
    cgroup = own_cgroup()
    in_container = cgroup.free_bytes() if cgroup is not None else None
    on_machine = psutil.virtual_memory().available
    return on_machine if in_container is None else min(on_machine, in_container)


def usable_bytes(worker_limit: int | None, taken: int) -> int:
    """Return how much memory this process and its children may use, given what other processes use now.

    Parameters
    ----------
    worker_limit
        Dask's memory limit of this worker; None or 0: no limit.
    taken
        The bytes that this process and its children use already.
    """
    return min(allowed_bytes(worker_limit), taken + available_bytes())


def allowed_bytes(worker_limit: int | None = None) -> int:
    """Return how much memory this process and its children may use: the lowest of all limits.

    Parameters
    ----------
    worker_limit
        Dask's memory limit of this worker; None or 0: no limit.
    """
    cgroup = own_cgroup()
    limits = [worker_limit, cgroup.limit_bytes() if cgroup is not None else None, psutil.virtual_memory().total]
    return min(limit for limit in limits if limit)


def share_bytes(allowed: int, parent: int, slots: int) -> int:
    """Return how much memory one simulation may use, so that ``slots`` simulations and their parent process fit.

    Parameters
    ----------
    allowed
        The bytes that the worker may use.
    parent
        The bytes that the worker's own process uses.
    """
    return max((allowed - parent) // slots - HEADROOM_BYTES, LEAST_SHARE_BYTES)


def slots_with_room(allowed: int, parent: int, slots: int) -> int:
    """Return for how many of the slots the memory is enough: one at least.

    With more slots, each simulation would exceed the smallest share and run again alone on its worker.

    Parameters
    ----------
    allowed, parent
        As for :func:`share_bytes`.
    """
    return min(max((allowed - parent) // LEAST_SLOT_BYTES, 1), slots)
