"""The tasks of an attempt that are on the cluster. Each is settled exactly once: by a result, a loss or an error."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Condition

from mops.attempt.results import ResultReceiver
from mops.attempt.threads import Events, TaskThreads
from mops.cluster.base import Cluster, Connection, RunsAgain, SentTask, WorkersDied
from mops.cluster.worker_losses import UNKNOWN
from mops.recovery import DEATHS
from mops.task import ResultBuffer, Task, TaskRequest, TaskResult
from mops.verdicts import LossCause

logger = logging.getLogger(__name__)

_RECENT = 16
# The most results that are fetched at once, however small the last ones were: the next ones may be large.
_MOST_AT_ONCE = 2 * _RECENT


class FetchLimit:
    """Bounds the bytes of results that are fetched but not delivered, judging by the sizes of recent results."""

    def __init__(self, limit_bytes: int):  # one result may always be fetched, however large
        self._limit_bytes = limit_bytes
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._n = 0
        self._changed = Condition()

    @property
    def at_once(self) -> int:
        """How many results may be fetched at once now. The first one is fetched alone."""
        if not self._recent:
            return 1
        return min(max(self._limit_bytes // max(*self._recent, 1, 1), 1), _MOST_AT_ONCE)

    def take(self, n_wanted: int) -> int:
        """Wait until there is room for a result; take room for as many as are wanted, and return their number."""
        with self._changed:
            self._changed.wait_for(lambda: self._n < self.at_once)
            n = min(n_wanted, self.at_once - self._n)
            self._n += n
            return n

    def give_back(self, n: int) -> None:
        """Give back the room of results that are delivered, or do not come."""
        with self._changed:
            self._n -= n
            self._changed.notify_all()

    def add_size(self, n_bytes: int) -> None:
        """Take the size of a result."""
        with self._changed:
            self._recent.append(n_bytes)
            self._changed.notify_all()


@dataclass
class TaskLost:
    """An event: a task did not come back."""

    task: Task
    why: str  # for people
    blamed: bool = False  # the task itself may be the reason: workers died while they ran it, or return nothing for it
    cause: LossCause = UNKNOWN  # why the last of its workers died
    connected: bool = True  # if the connection that the task was sent on broke, the loss says nothing about the cluster
    signal: str = "KilledWorker"  # the evidence, in a word or two


@dataclass
class TaskRaised:
    """An event: a task raised an error on its worker."""

    task: Task
    error: BaseException
    worker: str  # its address; empty: the task reached none, because the scheduler could not read it


class Reconnected:
    """An event: the connection to the cluster works again."""


@dataclass(frozen=True)
class Released:
    """An event: a task will not run some of its groups, or of the replicates of its group."""

    number: int
    released: frozenset[int]


@dataclass
class _Flight:
    """A task, and what the cluster has of it, which it keeps as long as this refers to it."""

    task: Task
    request: TaskRequest
    avoid: frozenset[str]
    connection: Connection
    given: object = None
    sent: SentTask = field(init=False)  # once the connection has taken the task
    failed_at: float = 0.0  # s, monotonic


class TasksInFlight:
    """The tasks of an attempt that are on the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        receiver: ResultReceiver,
        events: Events,
        threads: TaskThreads,
        room_bytes: int,  # for results that are fetched but not delivered
    ):
        self._cluster, self._receiver, self._events, self._threads = cluster, receiver, events, threads
        self._fetch_limit = FetchLimit(room_bytes)
        self._flights: dict[int, _Flight] = {}
        self._ready: deque[_Flight] = deque()  # there is a result, or the task is lost
        # Held for each delivery, which may wait for room at the committer: so a slow storage holds up all fetches.
        self._delivering = threading.Lock()
        self._closing = False

    def finish_deliveries(self, timeout_s: float) -> None:
        """Wait for the deliveries that have begun, for at most twice ``timeout_s`` seconds, and begin no more."""
        self._closing = True  # a fetch that waits for a worker gives up
        self._threads.finish("fetch", timeout_s)
        self._threads.finish("deliver", timeout_s)

    def close(self) -> None:
        """End the threads after their current calls, without waiting for results on workers, and keep no task."""
        self._closing = True
        self._threads.close()
        self._flights.clear()
        self._ready.clear()

    def send(
        self,
        task: Task,
        request: TaskRequest,
        avoid: frozenset[str] = frozenset(),
        load: Callable[[], list[ResultBuffer]] | None = None,
    ) -> None:
        """Send a task, to be run on none of the workers ``avoid``. A thread loads and sends the task's input first."""
        flight = self._flights[task.number] = _Flight(task, request, avoid, self._cluster.connection)
        if load is None:
            self._submit(flight)
        else:
            self._threads.call("send", lambda: self._send_input(flight, load))

    def deliver_failed(self, task: Task, result: TaskResult) -> None:
        """Deliver a result that the runner made itself, for a task that is not sent again."""
        self._between_deliveries(lambda: self._receiver.receive(task, result))

    def deliver_group(self, group: int) -> None:
        """Deliver a group that ran as several tasks."""
        self._between_deliveries(lambda: self._receiver.receive_group(group))

    def _between_deliveries(self, function: Callable[[], object]) -> None:
        """Call a function in the delivering thread, between deliveries, and put the event that it returns."""

        def call() -> None:
            with self._delivering:
                event = function()
            self._events.put(event)

        self._threads.call("deliver", call)

    def take_back(self, tasks: list[Task]) -> list[Task]:
        """Stop waiting for tasks; return those that will never be delivered."""
        # The others are being delivered now; their events follow. So a task either runs again or counts, never both.
        return [task for task in tasks if self._flights.pop(task.number, None) is not None]

    def withdraw(self, task: Task) -> bool:
        """Remove a task from the cluster; return False if its result is being delivered now."""
        flight = self._flights.pop(task.number, None)
        if flight is not None and hasattr(flight, "sent"):
            flight.connection.release([flight.sent])
        return flight is not None

    def release(self, task: Task, released: frozenset[int]) -> None:
        """Let a task keep only the rest of its groups or replicates; :class:`Released` follows if it is in flight."""

        # Dask may run the whole task again, after a loss of its worker. Then only what the task has kept counts. If
        # several workers list the task meanwhile, it keeps something all the same.
        def keep_rest() -> Released | None:
            flight = self._flights.get(task.number)
            if flight is None or not (left := flight.task.without(released)).units:
                return None
            flight.task = left
            return Released(task.number, released)

        self._between_deliveries(keep_rest)

    def reconnect(self) -> None:
        """Reconnect to the cluster in a thread, which puts :class:`Reconnected` or a fault."""

        def reconnect() -> None:
            self._cluster.reconnect()
            self._events.put(Reconnected())

        self._threads.call("connect", reconnect)

    def _is_open(self, flight: _Flight) -> bool:
        """Tell whether a task is not settled yet: else it was recalled, and is sent again."""
        return self._flights.get(flight.task.number) is flight

    def _settle(self, flight: _Flight, event: object) -> None:
        """Put the event that settles a task, unless it is settled already."""
        if self._flights.pop(flight.task.number, None) is not None:
            self._events.put(event)

    def _is_connected(self, flight: _Flight) -> bool:
        """Tell whether the connection works that a task was sent on."""
        return self._cluster.connection is flight.connection and self._cluster.is_connected

    def _settle_error(self, flight: _Flight, error: Exception) -> None:
        """Settle a task as lost after an error of its connection; raise an error that is a defect."""
        # A connection that is closed, or made again by itself, may raise any error, because its attributes are missing.
        # So any error counts as a lost task while the connection is broken.
        connected = self._is_connected(flight)
        if connected and not isinstance(error, flight.connection.errors):
            raise error
        self._settle(flight, TaskLost(flight.task, repr(error), connected=connected))

    def _submit(self, flight: _Flight) -> None:
        try:
            flight.sent = flight.connection.submit(flight.task, flight.request, flight.given, flight.avoid)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)
        else:
            self._fetch_when_done(flight)

    def _send_input(self, flight: _Flight, load: Callable[[], list[ResultBuffer]]) -> None:
        if not self._is_open(flight):
            return
        results = load()
        try:
            flight.given = flight.connection.send_input(flight.request, results)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)
        else:
            self._submit(flight)

    def _fetch_when_done(self, flight: _Flight) -> None:
        """Fetch a result when the cluster reports that it is there, in some thread."""

        def fetch_soon(_: object) -> None:
            if not self._closing:
                self._ready.append(flight)
                self._threads.call("fetch", self._fetch)

        try:
            flight.sent.add_done_callback(fetch_soon)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)

    def _fetch(self) -> None:
        """Deliver the results that are ready and release their futures, or find out what happened to the tasks."""
        if not self._ready:  # there is one call for each task, and the first call takes as many as there is room for
            return
        n = self._fetch_limit.take(len(self._ready))
        try:
            ready: list[_Flight] = []
            with contextlib.suppress(IndexError):  # another thread has taken some
                while len(ready) < n:
                    ready.append(self._ready.popleft())
            flights = [flight for flight in ready if self._is_finished(flight)]
            self._fetch_limit.give_back(n - len(flights))
            n = len(flights)
            for outcomes in self._outcomes(flights):
                n_came = len(outcomes)
                self._deliver_outcomes(outcomes)
                self._fetch_limit.give_back(n_came)
                n -= n_came
        finally:
            self._fetch_limit.give_back(n)

    def _is_finished(self, flight: _Flight) -> bool:
        """Tell whether a task has a result to fetch. If it has none, do what follows from that."""
        if self._closing or not self._is_open(flight):
            return False
        match flight.sent.status:
            case "finished":
                return True
            case "error":
                self._explain_later(flight)
            case "pending":  # the worker with the result was lost, and Dask runs the task again
                self._fetch_when_done(flight)
            case status:
                connected = self._is_connected(flight)
                self._settle(flight, TaskLost(flight.task, f"Dask's status is {status!r}", connected=connected))
        return False

    def _outcomes(self, flights: list[_Flight]) -> Iterator[list[tuple[_Flight, TaskResult | Exception]]]:
        """Fetch results together; yield them with their tasks as they come, each task once."""
        left = {flight.sent.key: flight for flight in flights}

        def given_up(sent: SentTask) -> bool:
            return self._closing or not self._is_open(left[sent.key])

        try:
            for outcomes in self._cluster.results([flight.sent for flight in left.values()], given_up):
                found = [(left.pop(sent.key), outcome) for sent, outcome in outcomes]
                outcomes.clear()  # only the caller's list keeps results in memory
                yield found
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            yield [(flight, error) for flight in left.values()]

    def _deliver_outcomes(self, outcomes: list[tuple[_Flight, TaskResult | Exception]]) -> None:
        """Deliver results, then release their tasks together, then put the events."""
        delivered: dict[Connection, list[SentTask]] = {}
        events: list[object] = []
        try:
            while outcomes:  # the committer may free each result at once, because the list does not keep it
                flight, outcome = outcomes.pop(0)
                if isinstance(outcome, RunsAgain):
                    self._fetch_when_done(flight)
                elif isinstance(outcome, Exception) and flight.sent.status == "error":
                    self._explain_later(flight)  # the transfer ended the worker, and running it again ended another one
                elif isinstance(outcome, Exception):
                    self._settle_error(flight, outcome)
                else:
                    self._fetch_limit.add_size(outcome.nbytes)
                    with self._delivering:
                        if self._flights.pop(flight.task.number, None) is not None:  # else recalled, and runs again
                            events.append(self._receiver.receive(flight.task, outcome))
                            delivered.setdefault(flight.connection, []).append(flight.sent)
        finally:
            for connection, sent in delivered.items():
                connection.release(sent)
            for event in events:
                self._events.put(event)

    def _explain_later(self, flight: _Flight) -> None:
        flight.failed_at = time.monotonic()
        self._threads.call("explain", lambda: self._explain(flight))

    def _explain(self, flight: _Flight) -> None:
        """Find out what happened to a task that raised, or whose workers died."""
        if not self._is_open(flight):
            return
        try:
            raised = flight.connection.error_of(flight.sent, flight.task)
            if isinstance(raised, WorkersDied):
                self._settle(flight, self._death_of(flight, raised))
            else:
                worker = self._cluster.worker_that_raised(flight.sent.key)
                self._settle(flight, TaskRaised(flight.task, raised, worker))
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)

    def _death_of(self, flight: _Flight, error: WorkersDied) -> TaskLost:
        task = flight.task
        # Tasks of another job killed the workers where this task still waited to be alone (mops.worker.run_task).
        if task.alone and error.n_running < DEATHS:
            return TaskLost(task, "its workers died before it ran")
        key = flight.sent.key
        cause = self._cluster.loss_cause(key, error.last, flight.failed_at, lambda: self._closing)
        died = f"{'a worker' if task.suspect else f'{DEATHS} workers'} died while running it"
        if cause.removed:
            return TaskLost(task, f"{died}, but {cause.text}")
        return TaskLost(task, died, blamed=True, cause=cause)
