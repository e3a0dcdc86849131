"""The contract between a runner and the cluster that runs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mops.cluster.worker_losses import WorkerLoss
from mops.task import ResultBuffer, RunningStep, Task, TaskRequest, TaskResult
from mops.verdicts import LossCause


@dataclass(frozen=True)
class ShareRequest:
    """A request of a job for a share of the slots."""

    weight: int  # of its priority
    wants: float  # the fraction of all slots that the job could use now; 0: it has not begun
    owner: str = ""  # the person whose jobs together have one share; empty: the job has a share for itself
    slots: int = 0  # for which the job has enough work, for an autoscaler
    sim_threads: int = 1  # of a simulation
    pool: str = ""  # of the workers that it uses now; empty: all workers


class SentTask(Protocol):
    """A task that was sent to a cluster. A ``distributed.Future`` is one."""

    key: str  # its name on the cluster
    status: str  # ``pending``, ``finished`` or ``error``; anything else: the cluster has lost it

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call a function when the task is no longer pending, in some thread."""


Outcomes = list[tuple[SentTask, TaskResult | Exception]]  # each with its result, or why there is none


class Connection(Protocol):
    """A connection to a cluster. If it breaks, :meth:`Cluster.reconnect` makes another one."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of the other methods that mean that the connection broke, or that a worker does not answer."""

    def submit(
        self,
        task: Task,
        request: TaskRequest,
        given: object,  # from send_input; None: the task has no input
        avoid: frozenset[str],  # addresses of workers that must not run the task while other workers are there
    ) -> SentTask:
        """Send a task."""

    def send_input(self, request: TaskRequest, results: list[ResultBuffer]) -> object:
        """Send a task's input to a worker, before the task itself. The input is there as long as what is returned."""

    def error_of(self, sent: SentTask, task: Task) -> BaseException:
        """Return, once, the error of a task whose status is ``error``: what it raised, or :class:`WorkersDied`."""

    def release(self, sent: Sequence[SentTask]) -> None:
        """Let the cluster forget tasks and their results, before it hears of the tasks that are sent next."""

    def leftovers(
        self,
        keys: frozenset[str],
        pool_id: str,  # of the pools whose child processes are looked into
        answer_s: float,  # for the scheduler, and for each worker
        holders: Collection[str] | None = None,  # workers to look into; None: all
    ) -> dict[str, list[str]]:
        """Return what the cluster still holds for tasks with these keys: for each holder, sentences about it."""

    def trim(self) -> None:
        """Let the workers in other processes give free memory back to the system."""


class Cluster(Protocol):
    """Where a job's tasks run. Functions called ``given_up`` are called several times a second, and end a wait."""

    slots: int  # simulations that can run at once, as last counted; 0 without workers
    workers: int  # their number, as last counted, without those that are avoided
    addresses: frozenset[str]  # of all workers, as last counted, including those that are avoided
    timeout_s: float  # how long to wait for a lost scheduler or a first worker until the attempt ends

    @property
    def connection(self) -> Connection:
        """The connection to the cluster; :meth:`reconnect` replaces it."""

    @property
    def pool_id(self) -> str:
        """The id of the attempt's pools of child processes; :meth:`reconnect` replaces it."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection that the tasks in flight were sent on still works."""

    def other_jobs(self, request: ShareRequest) -> list[ShareRequest]:
        """Pass on what this job asks for, and return what other jobs on the cluster last asked for."""

    def results(self, sent: Sequence[SentTask], given_up: Callable[[SentTask], bool]) -> Iterator[Outcomes]:
        """Fetch the results of finished tasks together, each once; yield lists of those that have come meanwhile.

        A result that does not come has an error in its place. :class:`RunsAgain`: the worker with the result was lost,
        and the cluster runs the task again. One of :attr:`Connection.errors`: the connection broke, the fetch was given
        up, or the worker does not answer. Any error, if the task's status is ``error`` by now: the transfer ended the
        worker, and running the task again ended another one. An error that is raised is that of all other tasks.
        """

    def worker_that_raised(self, key: str) -> str:
        """Return the address of the worker on which a task raised; empty if the task reached none."""

    def avoid(self, workers: frozenset[str]) -> None:
        """Leave these workers out of the count of slots; nothing more is sent to them."""

    def worker_losses(self) -> list[WorkerLoss]:
        """Return the workers that were lost since the last call, without those that were asked to leave."""

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """Return why the workers of a task died; may wait for seconds until the cause is known.

        ``worker`` is the one that died last, and ``asked_at`` is when its death was noticed (s, monotonic).
        """

    def long_steps(self) -> Sequence[RunningStep]:
        """Return the simulations and targets of the attempt that have run longest, as last seen; no short ones."""

    def reconnect(self) -> None:
        """Connect again after the connection broke; ClusterError: the cluster stays out of reach.

        The tasks that were sent before are lost.
        """

    def stop(self, grace_s: float) -> None:
        """Start no more simulations on any worker, and kill running ones after ``grace_s`` seconds; do not wait."""

    def finish(self) -> None:
        """End the attempt's child processes, which run nothing any longer, and all calls that wait; do not wait.

        A second call does no harm.
        """


class RunsAgain(Exception):
    """The worker that held a task's result was lost, and the cluster runs the task again."""


class WorkersDied(Exception):
    """Workers died while they had a task; ``last`` is the address of the one that died last."""

    def __init__(self, last: str, n_running: int):
        # Of a task that runs alone: how many had begun it. Others died while it waited to be alone.
        self.last, self.n_running = last, n_running
