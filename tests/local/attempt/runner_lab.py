"""A runner with a simulated cluster and without threads. The test decides what happens, step by step.

The main loop, the plan and the tasks in flight are real. Simulated are Dask (a test finishes or loses the futures), the
threads (a test makes their calls one by one) and the committer (it keeps the results in memory).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import CancelledError

from claimed_jobs import claimed_job, groups_of
from mops.attempt.main_loop import MainLoop
from mops.attempt.text_log import TextLogBuffer
from mops.attempt.threads import Events, TaskThreads, ThreadFault, ThreadName
from mops.cluster.base import RunsAgain, WorkersDied
from mops.cluster.dask_calls import CONNECTION_ERRORS
from mops.cluster.worker_losses import UNKNOWN, WorkerLoss
from mops.storage.progress_record import Progress
from mops.study.groups import GroupTable
from mops.task import Failure, RunningStep, TaskRequest, TaskResult, counts_of_result
from mops.verdicts import Counts

KINDS: Any = {"out": {"x": "number"}}


class SteppedThreads:
    """Stands in for TaskThreads: a test makes the calls, fetches in any order, others in theirs."""

    def __init__(self, events: Events):
        self.events = events
        names: list[ThreadName] = ["fetch", "deliver", "send", "explain", "connect"]
        self.waiting: dict[ThreadName, deque[Callable[[], object]]] = {name: deque() for name in names}

    def call(self, thread: ThreadName, work: Callable[[], object]) -> None:
        self.waiting[thread].append(work)

    def step(self, thread: ThreadName, place: int = 0) -> None:
        """Make one call."""
        work = self.waiting[thread][place]
        del self.waiting[thread][place]
        try:
            work()
        except Exception as error:  # as mops.attempt.threads does
            self.events.put(ThreadFault(error, thread))

    @property
    def due(self) -> list[ThreadName]:
        return [thread for thread, calls in self.waiting.items() if calls]

    def finish(self, thread: ThreadName, timeout_s: float = 0.0) -> None:
        while self.waiting[thread]:
            self.step(thread)

    def close(self) -> None:
        """Do nothing, because this lab has no threads to end."""


class SimFuture:
    """A task as seen by Dask's client."""

    def __init__(self, connection: SimConnection, key: str, request: TaskRequest | None = None):
        self.connection, self.key, self.request = connection, key, request
        self.status = "pending"
        self.result: TaskResult | None = None
        self.error: Exception | None = None
        self.worker = ""
        self._callbacks: list[Callable[[Any], object]] = []
        self._called: list[Callable[[Any], object]] = []

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        self.connection.must_be_open()
        if self.status == "pending":
            self._callbacks.append(call)
        else:
            call(self)

    def become(self, status: str) -> None:
        """Change the status, and tell those who wait."""
        self.status = status
        calls, self._callbacks = self._callbacks, []
        self._called += calls
        for call in calls:
            call(self)

    def come_again(self) -> None:
        """Tell those who have been told once more."""
        self.status = "finished"
        for call in self._called:
            call(self)


class SimConnection:
    """A connection to Dask, which raises AttributeError once it is lost, as a client of Dask does."""

    errors = CONNECTION_ERRORS

    def __init__(self) -> None:
        self.is_open = True
        self.futures: dict[str, SimFuture] = {}
        self.input_errors: list[Exception] = []
        self.avoided: list[frozenset[str]] = []

    def must_be_open(self) -> None:
        if not self.is_open:
            raise AttributeError("'NoneType' object has no attribute 'send'")

    def submit(self, task: Any, request: TaskRequest, given: Any, avoid: frozenset[str]) -> SimFuture:
        self.must_be_open()
        assert request.key not in self.futures, "a task was sent twice"
        self.avoided.append(avoid)
        self.futures[request.key] = SimFuture(self, request.key, request)
        return self.futures[request.key]

    def send_input(self, request: TaskRequest, results: Any) -> object:
        self.must_be_open()
        if self.input_errors:
            raise self.input_errors.pop()
        return SimFuture(self, request.input_key)

    def error_of(self, sent: SimFuture, task: Any) -> Exception:
        self.must_be_open()
        if sent.status != "error" or sent.error is None:
            raise CancelledError(sent.key)
        return sent.error

    def release(self, sent: list[SimFuture]) -> None:
        for future in sent:
            self.futures.pop(future.key, None)

    def leftovers(self, *_: object) -> dict[str, list[str]]:
        return {}

    def trim(self) -> None:
        """Do nothing, because this lab has no workers."""


class SimCluster:
    """A cluster that a test controls."""

    timeout_s = 300.0

    def __init__(self, slots: int, workers: int):
        self.connection: Any = SimConnection()
        self.all_workers = [f"tcp://worker-{i}" for i in range(workers)]
        self._slots_each = max(slots // workers, 1)
        self.avoided: frozenset[str] = frozenset()
        self.n_connections = 1
        self.graces: list[float] = []
        self.losses: list[WorkerLoss] = []
        self.steps: list[RunningStep] = []

    @property
    def workers(self) -> int:
        return len([worker for worker in self.all_workers if worker not in self.avoided])

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(self.all_workers)

    @property
    def slots(self) -> int:
        return self._slots_each * self.workers

    @property
    def is_connected(self) -> bool:
        return bool(self.connection.is_open)

    @property
    def pool_id(self) -> str:
        return f"1.{self.n_connections}"

    def other_jobs(self, request: Any) -> list[Any]:
        return []

    def results(self, futures: list[SimFuture], given_up: Callable[[SimFuture], bool]) -> Iterator[list[Any]]:
        for future in futures:
            if future.status == "pending":
                yield [(future, RunsAgain())]
            elif future.status != "finished" or not future.connection.is_open:
                yield [(future, CancelledError(future.key))]
            else:
                assert future.result is not None
                yield [(future, future.result)]

    def worker_that_raised(self, key: str) -> str:
        self.connection.must_be_open()
        return str(self.connection.futures[key].worker)

    def avoid(self, workers: frozenset[str]) -> None:
        self.avoided = workers

    def worker_losses(self) -> list[WorkerLoss]:
        found, self.losses = self.losses, []
        return found

    def long_steps(self) -> list[RunningStep]:
        return self.steps

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> Any:
        return UNKNOWN

    def cut(self) -> None:
        """Lose the connection: Dask cancels all futures."""
        self.connection.is_open = False
        futures, self.connection.futures = list(self.connection.futures.values()), {}
        for future in futures:
            future.become("cancelled")

    def reconnect(self) -> None:
        self.connection = SimConnection()
        self.n_connections += 1

    def stop(self, grace_s: float) -> None:
        self.graces.append(grace_s)

    def finish(self) -> None:
        """Do nothing, because this lab has no threads to end."""

    @property
    def running(self) -> list[SimFuture]:
        """The tasks that are not back."""
        return [future for future in self.connection.futures.values() if future.status == "pending"]


@dataclass
class Kept:
    """Stands in for the committer: keeps the groups and the failures."""

    groups: GroupTable
    n_targets: int
    done: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def add(self, result: TaskResult) -> Counts:
        again = result.done & {*self.done}
        assert not again, f"groups in two commits: {again}"
        self.done += sorted(result.done)
        self.failures += result.failures
        return counts_of_result(result, self.groups.n_replicates, self.n_targets)


class RunnerLab:
    """A runner on a simulated cluster.

    Parameters
    ----------
    replicates
        Of each group.
    threads
        The threads that carry tasks' fates; None: stepped by the test.
    """

    def __init__(
        self,
        folder: Path | str,
        replicates: list[int],
        *,
        targets: bool = True,
        slots: int = 2,
        workers: int = 2,
        on_progress: Callable[[Progress], None] = lambda _: None,
        threads: Callable[[Events], TaskThreads] | None = None,
        **settings: Any,
    ):
        self.replicates = replicates
        groups = groups_of(replicates)
        names = ("scores:one",) if targets else ()
        self.cluster = SimCluster(slots, workers)
        self.threads: SteppedThreads

        def stepped(events: Events) -> Any:
            self.threads = SteppedThreads(events)
            return self.threads

        given = {"checkpoint_seconds": 30.0, "batch_size": 50} | settings
        self.job = claimed_job(str(folder), groups, targets=names, **given)
        self.runner = MainLoop(
            self.cluster,  # type: ignore[arg-type]
            self.job,
            TextLogBuffer(),
            on_progress=on_progress,
            threads=threads or stepped,
        )
        self.kept = Kept(groups, len(names))
        self.runner._tasks_in_flight._receiver._committer = self.kept  # type: ignore[assignment]
        self.n_turns = 0

    @property
    def over(self) -> bool:
        return self.runner._plan.finished

    def turn(self) -> None:
        """Run the loop once: send tasks, and handle one event if there is one."""
        self.n_turns += 1
        self.runner._step(wait_s=0.0)

    def answer(self, future: SimFuture, n: int | None = None, *, postponed: bool = False) -> None:
        """Finish a task with its first ``n`` groups or replicates; None: with all of them."""
        future.result = result_of(future.request, n, postponed=postponed, worker=self.worker_of(future))
        future.become("finished")

    def worker_of(self, future: SimFuture) -> str:
        return self.cluster.all_workers[future.request.number % len(self.cluster.all_workers)]  # type: ignore[union-attr]

    def kill(self, future: SimFuture) -> None:
        """Let a task kill its workers."""
        future.error = WorkersDied("tcp://gone:1", n_running=2)
        future.become("error")

    def fail(self, future: SimFuture, error: Exception, worker: str) -> None:
        """Let a task raise on a worker."""
        future.error, future.worker = error, worker
        future.become("error")

    def settle(self) -> None:
        """Make every call that waits, and handle every event."""
        before = None
        while (
            before != (state := (self.threads.due, self.runner._events.qsize(), len(self.cluster.running))) or state[0]
        ):
            before = state
            for thread in self.threads.due:
                self.threads.finish(thread)
            while self.runner._events.qsize():
                self.turn()
            self.turn()

    def finish(self) -> None:
        """Finish every task from now on, until the plan is over."""
        self.drive(self.answer, limit=20_000)

    def drive(self, happens: Callable[[SimFuture], object], limit: int = 5_000) -> None:
        """Let something happen to each task in flight, again and again, until the plan is over."""
        while not self.over:
            assert self.n_turns < limit, "the job does not end"
            self.settle()
            for future in self.cluster.running:
                happens(future)


def result_of(request: TaskRequest | None, n: int | None, *, postponed: bool = False, worker: str = "w") -> TaskResult:
    """Return the result of a worker that ran the first ``n`` groups or replicates of a task."""
    assert request is not None
    if request.replicates is None:
        all_of = [group.index for group in request.groups]
    else:
        all_of = list(request.replicates) or [request.groups[0].index]
    some, rest = frozenset(all_of[:n]), frozenset(all_of if n is None else all_of[n:])
    late = rest if postponed and n is not None and not request.alone else frozenset()
    seconds = 0.1 * len(some)
    in_pieces = bool(request.replicates)
    return TaskResult(
        keys=request.keys,
        done=frozenset() if in_pieces else some,
        seconds=seconds,
        reference=KINDS if some else None,
        replicates=some if in_pieces else frozenset(),
        postponed=late,
        worker=worker,
    )
