"""What a worker runs, and the pools of this process. On one machine, the worker is the runner's process, without Dask.

So only the functions that need Dask import it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mops.errors import ClusterError, StorageError
from mops.project.bundle_cache import cache_folder, restore, unpack
from mops.storage.files import Files
from mops.storage.paths import bundle_path
from mops.task import JobContext, ResultBuffer, RunningStep, TaskRequest, TaskResult
from mops.worker.dask_worker import current_worker
from mops.worker.limits import LONG_SECONDS
from mops.worker.pool import Pool
from mops.worker.results import buffers_here, buffers_in, store_files
from mops.worker.slots import WorkerSlots
from mops.worker.task_progress import TaskProgress

THIS_MACHINE = "this machine"
"""The address of the worker that is the runner's process."""

LONG_STEPS = "mops_long_steps"
"""The metric of a worker that says what has run longest there, by the id of the pool."""

_LONG_STEPS = 10
_slots = WorkerSlots()
_pools: dict[str, Pool] = {}
_stopped: set[str] = set()
"""Ids of pools that start nothing. No pool with such an id is made, because nothing would close it."""
_lock = threading.Lock()
"""Guards the two above."""


def run_task(request: TaskRequest, given: Sequence[ResultBuffer] = ()) -> TaskResult:
    """Run a task in a child process of this worker.

    Parameters
    ----------
    given
        Results of earlier tasks, if this one runs only a group's targets.

    Raises
    ------
    ModelError, InstallError, DataError, ClusterError
        No simulation can run here; the result has the failures of single simulations.
    """
    pool = pool_of(request.context, request.pool_id)
    result = pool.run(request, given) if pool is not None else TaskProgress(request, given).result()
    result.worker = THIS_MACHINE if request.context.slots else current_worker().address
    if request.attempt is not None:
        store_files(result, request.context, request.attempt)
    return result


def pool_of(context: JobContext, pool_id: str = "", dask_worker: Any = None) -> Pool | None:
    """Return this process's pool with this id, made at the first call; None: the pool was stopped before it was made.

    Parameters
    ----------
    pool_id
        Empty: the attempt's pool. A runner that reconnects uses another id, and the old pool is stopped.
    dask_worker
        The Dask worker here; None: the caller is one of its tasks, or this process is the runner.
    """
    pool_id = pool_id or context.run_id
    if pool_id in _stopped:
        return _pools.get(pool_id)
    root = str(bundle_folder(context))
    worker: Any = None if context.slots else dask_worker or current_worker()
    slots = context.slots or max(worker.state.nthreads // context.threads, 1)
    worker_limit = worker.memory_manager.memory_limit if worker else None
    with _lock:
        if pool_id not in _pools and pool_id not in _stopped:
            unpack_again = partial(restore, context.bundle, partial(_load_bundle, context), cache_folder())
            _pools[pool_id] = Pool(context, root, slots, worker_limit, _slots, unpack_again, pool_id)
            if worker is not None:
                # With each heartbeat. mops/worker/metrics.py has those of Prometheus.
                worker.metrics["mops_children_bytes"] = lambda _worker: _slots.resident_bytes()
                worker.metrics[LONG_STEPS] = _all_long_steps  # Dask sends both to the scheduler
                if find_spec("prometheus_client") is not None:
                    from mops.worker.metrics import expose  # noqa: PLC0415 - not for a runner; a worker may lack the library

                    expose(pools)
        return _pools.get(pool_id)


def pools() -> list[Pool]:
    """Return the pools of this process."""
    with _lock:
        return list(_pools.values())


def long_steps(pool_id: str) -> list[RunningStep]:
    """Return what has run longest in a pool here, and each long step whose task has released something."""
    pool = _pool(pool_id)
    running = [step for step in (pool.running() if pool is not None else ()) if step.seconds >= LONG_SECONDS]
    running.sort(key=lambda step: -step.seconds)
    return running[:_LONG_STEPS] + [step for step in running[_LONG_STEPS:] if step.released]


def _all_long_steps(_worker: object) -> dict[str, list[dict[str, Any]]]:
    return {pool_id: [asdict(step) for step in long_steps(pool_id)] for pool_id in list(_pools)}


def bundle_folder(context: JobContext) -> Path:
    """Return the folder of the unpacked bundle, from this machine's cache or through the storage."""
    return unpack(context.bundle, partial(_load_bundle, context), cache_folder())


def _load_bundle(context: JobContext) -> bytes:
    try:
        return Files.open(context.storage).brief().get(bundle_path(context.bundle))
    except (FileNotFoundError, StorageError) as fault:
        raise ClusterError(
            f"a worker cannot read the job's bundle ({fault})",
            where=context.storage,
            hint="use a storage that every worker reaches at this URL, with credentials to read it",
        ) from fault


def _pool(pool_id: str, *, stop: bool = False) -> Pool | None:
    with _lock:
        if stop:
            _stopped.add(pool_id)
        return _pools.get(pool_id)


def stop_pool(pool_id: str, grace_s: float) -> None:
    """Start nothing in this pool from now on; kill what still runs after ``grace_s`` seconds."""
    pool = _pool(pool_id, stop=True)
    if pool is not None:
        pool.stop(grace_s)


def close_pool(pool_id: str) -> None:
    """End a pool's children here; if another thread does, wait for it. A task that arrives later runs nothing."""
    pool = _pool(pool_id, stop=True)
    if pool is not None:
        try:
            pool.close()
        finally:
            with _lock:
                if _pools.get(pool_id) is pool:
                    del _pools[pool_id]


def leave_pool(pool_id: str) -> None:
    """End a pool's children here, without waiting for them."""
    threading.Thread(target=close_pool, args=(pool_id,), name="mops-leave").start()


def buffers_left(process: str, pool_id: str, keys: frozenset[str]) -> list[str]:
    """Describe the buffers of tasks with these keys that this process, or a child of a pool here, still holds."""
    pool = _pool(pool_id)
    pids = pool.pids() if pool is not None else []
    return [
        *buffers_here(process, keys),
        *(line for pid in pids for line in buffers_in(f"child {pid} of {process}", pid, keys)),
    ]
