"""The contract between a runner and the Dask cluster that runs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from distributed import CancelledError, Client, Future
from distributed.client import ClosedClientError

from mops.cluster.shares import ShareRequest
from mops.cluster.worker_losses import LossCause, WorkerLoss
from mops.task import JobContext, Task, TaskResult

FETCH_SECONDS = 300.0
"""How long a runner waits for a worker to hand a result over, or to accept data."""

CONNECTION_ERRORS = (ClosedClientError, CancelledError, OSError, TimeoutError, ValueError)
"""Dask's errors when the connection to a scheduler or to a worker breaks."""


Outcomes = list[tuple[Future[Any], TaskResult | Exception]]
"""Futures, each with its result or with the reason why there is none."""


class Cluster(Protocol):
    """Where a job's tasks run."""

    @property
    def client(self) -> Client:
        """The connection to the scheduler; :meth:`reconnect` replaces it."""

    @property
    def slots(self) -> int:
        """Simulations that can run at once, as last counted; 0 without workers."""

    @property
    def workers(self) -> int:
        """The number of workers, as last counted, without those that are avoided."""

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all workers, as last counted, including those that are avoided."""

    @property
    def pool(self) -> str:
        """The name of the attempt's pools of child processes; :meth:`reconnect` replaces it."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection that the tasks in flight were sent on still works."""

    def warm(self, context: JobContext, n_simulations: int) -> None:
        """Let every worker import the model, now and each that comes later; do not wait.

        Parameters
        ----------
        n_simulations
            How many the job has. If there are more workers than that, only those that get a task import the model.
        """

    def other_jobs(self, request: ShareRequest) -> list[ShareRequest]:
        """Return what other jobs on the cluster last asked for.

        Parameters
        ----------
        request
            What this job asks for. The cluster passes it on to the other runners.
        """

    def annotations(self, task: Task, avoid: frozenset[str]) -> dict[str, Any]:
        """Return the Dask annotations that tell the scheduler about a task.

        Parameters
        ----------
        avoid
            Addresses of workers that must not run the task while other workers are there.
        """

    def results(self, futures: Sequence[Future[Any]], given_up: Callable[[Future[Any]], bool]) -> Iterator[Outcomes]:
        """Fetch the results of finished tasks together; yield lists of those that have come meanwhile.

        A result that does not come has an error in its place. :class:`RunsAgain`: the worker with the result was lost,
        and Dask runs the task again. KilledWorker: the transfer ended the worker, and running the task again ended
        another one. One of :data:`CONNECTION_ERRORS`: the connection broke, the fetch was given up, or the worker does
        not answer.

        Parameters
        ----------
        given_up
            Called several times a second with each future. When it returns True, its fetch ends with CancelledError.

        Raises
        ------
        Exception
            The error of all futures that have not come.
        """

    def worker_that_raised(self, key: str) -> str:
        """Return the address of the worker on which a task raised; empty if the task reached none."""

    def avoid(self, workers: frozenset[str]) -> None:
        """Leave these workers out of the count of slots; nothing more is sent to them."""

    def worker_losses(self) -> list[WorkerLoss]:
        """Return the workers that were lost since the last call, without those that were asked to leave."""

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """Return why the workers of a task died; may wait for seconds until the cause is known.

        Parameters
        ----------
        key
            The Dask key of the task.
        worker
            The worker that died last.
        asked_at
            When its death was noticed (s, monotonic).
        given_up
            Called several times a second. When it returns True, the wait ends.
        """

    def reconnect(self) -> None:
        """Connect again after the connection broke. The tasks that were sent before are lost.

        Raises
        ------
        ClusterError
            The cluster stays out of reach.
        """

    def stop(self, grace_s: float) -> None:
        """Start no more simulations on any worker, and kill running ones after ``grace_s`` seconds; do not wait."""

    def finish(self) -> None:
        """End the attempt's child processes, because nothing runs there any longer; do not wait."""


class RunsAgain(Exception):
    """The worker that held a task's result was lost, and Dask runs the task again."""


SUSPECT = "mops_suspect"
"""An annotation: the task is part of one whose workers died."""

SECONDS = "mops_seconds"
"""An annotation: the expected seconds of the task on one slot."""

AVOID = "mops_avoid"
"""An annotation: addresses of workers that must not run the task while other workers are there."""

DEATHS = 2
"""After this many deaths of a task's workers, Dask returns the task to the runner, which then looks for the cause."""
