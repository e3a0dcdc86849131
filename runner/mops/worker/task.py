"""What Dask runs. One function for each kind of task, and this process's pools."""

from __future__ import annotations

import threading

from mops.worker.order import Context, Order, Outcome
from mops.worker.pool import Pool

_pools: dict[str, Pool] = {}
_lock = threading.Lock()


def run_groups(order: Order) -> Outcome:
    """Run the groups of an order in a child of this worker.

    Raises
    ------
    ModelError, ClusterError
        No simulation can run here; the failures of single simulations are in the outcome.
    """
    return pool_of(order.context).run(order)


def pool_of(context: Context) -> Pool:
    """Return this process's pool for a job, made at the first call."""
    with _lock:
        if context.job not in _pools:
            _pools[context.job] = Pool(context)
        return _pools[context.job]


def stop_pool(job: str, grace_s: float) -> None:
    """Run nothing new for this job here; what runs gets ``grace_s`` seconds."""
    with _lock:
        pool = _pools.get(job)
    if pool is not None:
        pool.stop(grace_s)


def close_pool(job: str) -> None:
    """End this job's children here."""
    with _lock:
        pool = _pools.pop(job, None)
    if pool is not None:
        pool.close()


def child_pids(job: str) -> list[int]:
    """Return the process ids of this job's children here."""
    with _lock:
        pool = _pools.get(job)
    return pool.pids() if pool is not None else []
