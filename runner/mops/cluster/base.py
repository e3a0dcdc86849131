"""What a runner asks of the Dask cluster that it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from distributed import CancelledError, Client, Future
from distributed.client import ClosedClientError

from mops.cluster.shares import ShareRequest
from mops.cluster.worker_losses import LossCause, WorkerLoss
from mops.task import Task, TaskRequest, TaskResult

FETCH_SECONDS = 300.0
"""For a result to come from the worker that has it; after that it is computed elsewhere."""

GONE = (ClosedClientError, CancelledError, OSError, TimeoutError, ValueError)
"""What Dask raises where a connection ends, or a worker on the other side of it, whether or not it has noted that."""


class Cluster(Protocol):
    """Where a job's tasks run."""

    @property
    def client(self) -> Client:
        """The connection. It may be another one after :meth:`reconnect`."""

    @property
    def slots(self) -> int:
        """Simulations that run at once, as last counted; 0: there is no worker."""

    @property
    def workers(self) -> int:
        """Workers, as last counted, without those that are avoided."""

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all workers, as last counted, also of those that are avoided."""

    @property
    def pool(self) -> str:
        """The name of the attempt's pools of children on the workers; another one after :meth:`reconnect`."""

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""

    def others(self, claim: ShareRequest) -> list[ShareRequest]:
        """Return what other jobs ask for, as last heard; what this one asks for is said to them soon."""

    def notes(self, task: Task, avoid: frozenset[str]) -> dict[str, Any]:
        """Return what the scheduler is to know of a task: annotations.

        Parameters
        ----------
        avoid
            Workers on which it is not to run, while there are others.
        """

    def carried(self, request: TaskRequest) -> Any:
        """Return a task as Dask is to carry it; whoever sends it holds the task until it has come back."""

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> TaskResult:
        """Return what a finished task gave.

        Parameters
        ----------
        given_up
            Whether nobody waits for it any more: asked several times a second.

        Raises
        ------
        RunsAgain
            Its worker is gone, and Dask computes it again.
        KilledWorker
            Bringing it here has ended its worker, and the next one that ran it.
        CancelledError, OSError, TimeoutError
            The connection has ended meanwhile, it was given up, or its worker gives nothing.
        """

    def raised_on(self, key: str) -> str:
        """Return the address of the worker on which a task has raised; empty: it came to none."""

    def avoid(self, workers: frozenset[str]) -> None:
        """Count the slots of all workers but these, to which nothing more is sent."""

    def departed(self) -> list[WorkerLoss]:
        """Return the workers that went without being asked to, since the last call."""

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """Return why the workers of a task died, the last of which had just gone ``asked_at`` (s, monotonic).

        May wait seconds, but not once ``given_up()``.
        """

    def reconnect(self) -> None:
        """Connect anew after the scheduler was lost; tasks that were there are gone.

        Raises
        ------
        ClusterError
            It stays out of reach.
        """

    def stop(self, grace_s: float) -> None:
        """Run nothing new of this attempt on any worker; what runs gets ``grace_s`` seconds. Does not wait."""

    def done(self) -> None:
        """Note that nothing of this attempt is to run any more: its children may end. Does not wait."""


class RunsAgain(Exception):
    """What a task gave is gone with its worker, and Dask computes it again."""


SUSPECT = "mops_suspect"
"""An annotation: the task is part of one that took down its workers."""

SECONDS = "mops_seconds"
"""An annotation: what the task will take on one slot, as far as it is known."""

AVOID = "mops_avoid"
"""An annotation: addresses of workers on which the task is not to run, while there are others."""

DEATHS = 2
"""Workers that a task may take down before it is given back, so that the one who did it is looked for."""
