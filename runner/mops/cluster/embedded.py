"""The embedded Dask cluster: scheduler and worker in the runner's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import dask.config
from distributed import Client, Future, Scheduler, SpecCluster, Worker

from mops.cluster.base import Outcomes
from mops.cluster.connect import silence_dask
from mops.cluster.shares import ShareRequest
from mops.cluster.worker_losses import UNKNOWN, LossCause, WorkerLoss
from mops.errors import ClusterError
from mops.task import JobContext, Task, TaskResult
from mops.worker.run_task import leave_pool, stop_pool

# One process and no memory limit: child processes isolate the simulations, and Dask's limits would measure the
# worker's process, which here is the whole runner.
_CONFIG = {
    "distributed.scheduler.worker-saturation": 1.0,  # tasks wait on the scheduler, not on the worker
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # Dask monitors itself. bench/tricks.py, 10 ms: -40 % of the runner's CPU time, -6 % of the CPU time of a short job.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    # Dask keeps its last 1,000 messages for debugging. bench/tricks.py, 1 KiB: -12 % of the runner's memory.
    "distributed.admin.low-level-log-length": 10,
    "distributed.scheduler.http.routes": [],  # an embedded cluster serves nothing over HTTP
    "distributed.worker.http.routes": [],
}

# An embedded cluster needs no locks, queues, events or spans, and spans keep an entry for every task. HTTP servers
# start in any case. By default they listen on every interface, and the scheduler's on port 8787, with a warning if
# another job has the port. LocalCluster(dashboard_address=None) does not change that.
_BARE = {"protocol": "inproc://", "extensions": {}, "dashboard": False, "dashboard_address": "127.0.0.1:0"}


class EmbeddedCluster:
    """A scheduler and one worker in the runner's process."""

    is_connected = True
    workers = 1

    def __init__(self, client: Client, worker: str, run: str, slots: int):
        self.client, self._worker, self.slots, self.pool = client, worker, slots, run
        self.addresses = frozenset({worker})

    def warm(self, context: JobContext, n_simulations: int) -> None:
        """As :meth:`mops.cluster.base.Cluster.warm`: the attempt has imported the model before the cluster started."""

    def other_jobs(self, request: ShareRequest) -> list[ShareRequest]:
        """As :meth:`mops.cluster.base.Cluster.other_jobs`: there are none."""
        return []

    def annotations(self, task: Task, avoid: frozenset[str]) -> dict[str, Any]:
        """As :meth:`mops.cluster.base.Cluster.annotations`: the embedded scheduler reads none."""
        return {}

    def results(self, futures: Sequence[Future[Any]], given_up: Callable[[Future[Any]], bool]) -> Iterator[Outcomes]:
        """As :meth:`mops.cluster.base.Cluster.results`."""
        for future in futures:
            try:
                yield [(future, cast("TaskResult", future.result()))]
            except Exception as error:  # noqa: BLE001 - the caller tells defects from lost tasks
                yield [(future, error)]

    def worker_that_raised(self, key: str) -> str:
        """As :meth:`mops.cluster.base.Cluster.worker_that_raised`: there is one worker."""
        return self._worker

    def avoid(self, workers: frozenset[str]) -> None:
        """As :meth:`mops.cluster.base.Cluster.avoid`: the cluster has only one worker."""

    def worker_losses(self) -> list[WorkerLoss]:
        """As :meth:`mops.cluster.base.Cluster.worker_losses`: the worker ends with this process only."""
        return []

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """As :meth:`mops.cluster.base.Cluster.loss_cause`."""
        return UNKNOWN

    def reconnect(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.reconnect`."""
        raise ClusterError("the embedded Dask cluster has closed", hint="continue the job: mops jobs resume")

    def stop(self, grace_s: float) -> None:
        """As :meth:`mops.cluster.base.Cluster.stop`."""
        stop_pool(self.pool, grace_s)

    def finish(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.finish`: the processes end while the runner writes the job's end."""
        leave_pool(self.pool)


@contextmanager
def start_embedded(run: str, slots: int) -> Iterator[EmbeddedCluster]:
    """Start an in-process scheduler and worker with a thread for each slot.

    Parameters
    ----------
    run
        The name of the attempt.
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
        yield EmbeddedCluster(client, cluster.workers[0].address, run, slots)
