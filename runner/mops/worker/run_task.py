"""What Dask runs, and this process's pools of children. Called in workers; the embedded one is the runner's process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from distributed import get_worker
from distributed.utils import sync

from mops.errors import ClusterError, StorageError
from mops.project.bundle_cache import cache_folder, unpack
from mops.storage.files import Files
from mops.storage.paths import bundle_path
from mops.system import process_memory
from mops.task import JobContext, ResultBuffer, TaskRequest, TaskResult
from mops.worker.children import ChildRegistry
from mops.worker.pool import Pool

_ASK_SECONDS = 10.0
_children = ChildRegistry()
_pools: dict[str, Pool] = {}
_over: set[str] = set()
_lock = threading.Lock()


def run_task(request: TaskRequest, given: Sequence[ResultBuffer] = ()) -> TaskResult:
    """Run a task in a child of this worker.

    Parameters
    ----------
    given
        What earlier tasks gave of the group whose targets alone are to run.

    Raises
    ------
    ModelError, InstallError, ClusterError
        No simulation can run here; the failures of single simulations are in the result.
    """
    pool = pool_of(request.context, request.pool)
    result = pool.run(request, given, (lambda: None) if request.context.slots else partial(_say_begun, request.key))
    result.worker = get_worker().address
    return result


def _say_begun(key: str) -> None:
    """Note with the scheduler that a task runs here, by itself: if the worker ends now, it is to blame, and no other.

    A task that waits on a worker until it is alone there may see it end by what another job runs.
    """
    worker = get_worker()
    with contextlib.suppress(OSError, TimeoutError):  # the scheduler is gone, and with it the task
        keys = [key, worker.id]
        sync(worker.loop, worker.scheduler.set_metadata, keys=keys, value=True, callback_timeout=_ASK_SECONDS)


def pool_of(context: JobContext, name: str = "") -> Pool:
    """Return this process's pool of a name, made at the first call; stopped already where it is over.

    Parameters
    ----------
    name
        Empty: the attempt's. A runner that has lost its connection has others: the old ones are over then.

    Raises
    ------
    ClusterError
        The bundle does not reach this worker.
    """
    root, slots = str(bundle_folder(context)), _slots(context)
    worker_limit = None if context.slots else get_worker().memory_manager.memory_limit
    with _lock:
        name = name or context.run
        if name not in _pools:
            _pools[name] = Pool(context, root, slots, worker_limit, _children)
            if context.slots is None:
                _show_children()
            if name in _over:
                _pools[name].stop(0.0)
        return _pools[name]


def pools() -> list[Pool]:
    """Return the pools of this process."""
    with _lock:
        return list(_pools.values())


def children_bytes(_worker: object = None) -> int:
    """Return the resident memory of all children of this process; Dask shows it among the worker's metrics."""
    return process_memory.tree_bytes(*_children.pids())


def can_show_metrics() -> bool:
    """Tell whether this interpreter has what Dask's /metrics needs."""
    return find_spec("prometheus_client") is not None


def _show_children() -> None:
    """Show this worker's children where Dask shows the worker: to the scheduler, and on its /metrics."""
    get_worker().metrics["mops_children_bytes"] = children_bytes
    if can_show_metrics():
        from mops.worker.metrics import expose  # noqa: PLC0415 - a runner need not load it, a worker may not have it

        expose(pools)


def _slots(context: JobContext) -> int:
    return context.slots or max(get_worker().state.nthreads // context.threads, 1)


def bundle_folder(context: JobContext) -> Path:
    """Return the folder of the unpacked bundle; it comes through the storage unless it is in this machine's cache."""
    return unpack(context.bundle, partial(_load_bundle, context), cache_folder())


def _load_bundle(context: JobContext) -> bytes:
    try:
        return Files.open(context.storage).brief().get(bundle_path(context.bundle))
    except (FileNotFoundError, StorageError) as fault:
        raise ClusterError(
            f"a worker cannot read the job's bundle ({fault})",
            where=context.storage,
            hint="give a storage that every worker reaches under this name, with the credentials to read it",
        ) from fault


def stop_pool(name: str, grace_s: float) -> None:
    """Run nothing new in this pool here; what runs gets ``grace_s`` seconds."""
    with _lock:
        _over.add(name)
        pool = _pools.get(name)
    if pool is not None:
        pool.stop(grace_s)


def close_pool(name: str) -> None:
    """End a pool's children here; where another thread is ending them, wait for it.

    A task that comes all the same runs nothing.
    """
    with _lock:
        _over.add(name)
        pool = _pools.get(name)
    if pool is not None:
        try:
            pool.close()
        finally:
            with _lock:
                if _pools.get(name) is pool:
                    del _pools[name]


def leave_pool(name: str) -> None:
    """End a pool's children here, without waiting for them."""
    threading.Thread(target=close_pool, args=(name,), name="mops-leave").start()


def child_pids(name: str) -> list[int]:
    """Return the process ids of a pool's children here."""
    with _lock:
        pool = _pools.get(name)
    return pool.pids() if pool is not None else []
