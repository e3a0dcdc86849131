"""The embedded Dask cluster: scheduler and worker in the runner's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakValueDictionary

import dask.config
from dask.system import cpu_count
from distributed import CancelledError, Client, Future, Scheduler, SpecCluster, Worker

from mops.cluster.connect import silence_dask
from mops.cluster.shares import ShareRequest
from mops.cluster.worker_losses import UNKNOWN, LossCause, WorkerLoss
from mops.errors import ClusterError
from mops.settings import Settings
from mops.task import Task, TaskRequest, TaskResult
from mops.worker.run_task import leave_pool, stop_pool

# One process and no memory limit: the simulations' own child processes are the isolation, and Dask's limits
# measure the worker's own process only, which here is the whole runner.
_CONFIG = {
    "distributed.scheduler.worker-saturation": 1.0,  # what does not run waits on the scheduler, not on a worker
    "distributed.scheduler.work-stealing": False,  # there is one worker
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # How Dask watches itself: with its defaults its loop took 3.6 % of a core from 10 ms simulations, with these 1.5 %.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    # Of its last messages it keeps a thousand for debugging, and with them the groups of each task: 50 MiB.
    "distributed.admin.low-level-log-length": 10,
    "distributed.scheduler.http.routes": [],  # nobody asks an embedded cluster over HTTP
    "distributed.worker.http.routes": [],
}

# Nobody asks an embedded cluster for locks, queues, events or spans, and spans note every task for good. HTTP servers
# start in any case: by default they listen on every interface, and the scheduler's on port 8787, with a warning where
# another job has it (LocalCluster(dashboard_address=None) leaves that as it is).
_BARE = {"protocol": "inproc://", "extensions": {}, "dashboard": False, "dashboard_address": "127.0.0.1:0"}

# What goes from client to scheduler to worker waits for more to go with it, by default 10 and 5 ms after what went
# before: a release held up the next task, a group's last simulation its targets.
_SEND_SECONDS = 0.001


def embedded_slots(settings: Settings) -> int:
    """Return how many simulations run at once on an embedded worker.

    As set, else the processors that this process may use (its affinity and its container's quota count) divided by
    the threads of a simulation.
    """
    return settings.slots or max(cpu_count() // settings.sim_threads, 1)


_orders: WeakValueDictionary[str, TaskRequest] = WeakValueDictionary()


class _Here:
    """A task for a worker of this very process: pickled it is its key, unpickled the task itself.

    Dask pickles a task's arguments wherever they go.
    """

    def __init__(self, request: TaskRequest):
        self._key = request.key
        _orders[request.key] = request

    def __reduce__(self) -> tuple[Callable[[str], TaskRequest], tuple[str]]:
        return _order_here, (self._key,)


def _order_here(key: str) -> TaskRequest:
    return _orders[key]


class EmbeddedCluster:
    """The in-process cluster, which dies with the runner."""

    alive = True
    workers = 1

    def __init__(self, client: Client, worker: Worker, run: str, slots: int):
        self.client, self._worker, self.slots, self.pool = client, worker, slots, run
        self.addresses = frozenset({worker.address})

    def others(self, claim: ShareRequest) -> list[ShareRequest]:
        """As :meth:`mops.cluster.base.Cluster.others`: there are none."""
        return []

    def notes(self, task: Task, avoid: frozenset[str]) -> dict[str, Any]:
        """As :meth:`mops.cluster.base.Cluster.notes`: nobody reads them."""
        return {}

    def carried(self, request: TaskRequest) -> Any:
        """As :meth:`mops.cluster.base.Cluster.carried`: it stays where it is."""
        return _Here(request)

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> TaskResult:
        """As :meth:`mops.cluster.base.Cluster.result`: it is in this process; to ask for it takes Dask 2 ms."""
        try:
            return cast("TaskResult", self._worker.data[future.key])
        except KeyError as gone:  # the cluster has closed
            raise CancelledError(future.key) from gone

    def raised_on(self, key: str) -> str:
        """As :meth:`mops.cluster.base.Cluster.raised_on`: there is one worker."""
        return self._worker.address

    def avoid(self, workers: frozenset[str]) -> None:
        """As :meth:`mops.cluster.base.Cluster.avoid`: there is no other one."""

    def departed(self) -> list[WorkerLoss]:
        """As :meth:`mops.cluster.base.Cluster.departed`: its worker goes with this process only."""
        return []

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """As :meth:`mops.cluster.base.Cluster.cause`."""
        return UNKNOWN

    def reconnect(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.reconnect`."""
        raise ClusterError("the embedded Dask cluster has closed", hint="mops jobs resume goes on")

    def stop(self, grace_s: float) -> None:
        """As :meth:`mops.cluster.base.Cluster.stop`."""
        stop_pool(self.pool, grace_s)

    def done(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.done`: they end while the job's end is written."""
        leave_pool(self.pool)


@contextmanager
def start_embedded(run: str, slots: int) -> Iterator[EmbeddedCluster]:
    """Start an in-process scheduler and worker with a thread for each slot.

    Parameters
    ----------
    run
        Names the attempt.
    slots
        Simulations that run at once.
    """
    silence_dask()
    scheduler = {"cls": Scheduler, "options": _BARE}
    worker = {"cls": Worker, "options": {"nthreads": slots, "memory_limit": 0, **_BARE}}
    with (
        dask.config.set(_CONFIG),
        SpecCluster({0: worker}, scheduler, silence_logs=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        there = cluster.workers[0]
        with contextlib.suppress(AttributeError, KeyError):  # a Dask that has them elsewhere is slower, and no worse
            for stream in (client.scheduler_comm, cluster.scheduler.stream_comms[there.address]):
                stream.interval = _SEND_SECONDS
        yield EmbeddedCluster(client, there, run, slots)
