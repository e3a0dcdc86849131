"""Sends tasks to the cluster, fetches their results, and notices losses. It works in threads and puts events.

One table holds every task from when it is sent. The thread that removes a task from the table settles the task, so a
task is settled once: the thread delivers a result, puts an event that the task was lost or raised, or recalls the task
because the connection broke.

:mod:`mops.attempt.planning.plan` decides what runs next, and :mod:`mops.attempt.main_loop` handles the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from dask.base import annotate
from distributed import CancelledError, Client, Future, KilledWorker

from mops.attempt.task_threads import FetchLimit, TaskThreads
from mops.cluster.base import CONNECTION_ERRORS, DEATHS, FETCH_SECONDS, Cluster, RunsAgain
from mops.cluster.worker_losses import UNKNOWN, LossCause
from mops.task import ResultBuffer, Task, TaskRequest, TaskResult
from mops.worker.run_task import run_task

_SCATTER_ERRORS = (*CONNECTION_ERRORS, KeyError, RuntimeError)
"""Dask's errors when data cannot be sent to a worker. The scheduler raises some of them if the worker has just left."""


@dataclass
class TaskLost:
    """An event: a task did not come back.

    Parameters
    ----------
    why
        What happened, for people.
    blamed
        Whether the task itself may be the reason: its workers died while they ran it, or return nothing for it.
    cause
        Why the last of its workers died.
    connected
        Whether the connection that the task was sent on works. If not, the loss says nothing about the cluster.
    signal
        The evidence, in a word or two.
    """

    task: Task
    why: str
    blamed: bool = False
    cause: LossCause = UNKNOWN
    connected: bool = True
    signal: str = "KilledWorker"

    @property
    def workers_died(self) -> bool:
        """Whether the task was lost because its workers died."""
        return self.signal == "KilledWorker"


@dataclass
class TaskRaised:
    """An event: a task raised an error on its worker.

    Parameters
    ----------
    worker
        The worker's address; empty: the task reached none, because the scheduler could not read it.
    """

    task: Task
    error: BaseException
    worker: str


class Reconnected:
    """An event: the connection to the cluster works again."""


@dataclass
class _Flight:
    """A task that was sent, and its futures, which keep it alive on the scheduler."""

    task: Task
    request: TaskRequest
    avoid: frozenset[str]
    client: Client
    futures: list[Future[Any]] = field(default_factory=list)
    failed_at: float = 0.0  # s, monotonic


class TasksInFlight:
    """The tasks of an attempt that are on the cluster.

    Parameters
    ----------
    deliver
        Called with each result, one at a time, in any order. It returns the event to put. The result's future is
        released before that event is put.
    put
        Takes events, from any thread.
    threads
        The threads that wait for the cluster.
    room_bytes
        Room for results that are fetched but not delivered.
    """

    def __init__(
        self,
        cluster: Cluster,
        deliver: Callable[[Task, TaskResult], object],
        put: Callable[[object], None],
        threads: TaskThreads,
        room_bytes: int,
    ):
        self._cluster, self._deliver, self._put, self._threads = cluster, deliver, put, threads
        self._fetch_limit = FetchLimit(room_bytes)
        self._flights: dict[int, _Flight] = {}
        self._ready: deque[_Flight] = deque()  # there is a result, or the task is lost
        self._delivering = threading.Lock()
        self._closing = False

    @property
    def n_unfinished(self) -> int:
        """How many tasks run on the cluster or wait there, as far as this process knows."""
        flights = list(self._flights.values())
        return sum(not flight.futures or flight.futures[0].status == "pending" for flight in flights)

    def finish_deliveries(self, timeout_s: float) -> None:
        """Wait for the deliveries that have begun, for at most twice ``timeout_s`` seconds, and begin no more."""
        self._closing = True  # a fetch that waits for a worker gives up
        self._threads.finish("fetch", timeout_s)
        self._threads.finish("deliver", timeout_s)

    def close(self) -> None:
        """End the threads after their current calls, without waiting for results on workers."""
        self._closing = True
        self._threads.close()

    def send(self, task: Task, request: TaskRequest, avoid: frozenset[str] = frozenset()) -> None:
        """Send a task, to be run on none of the workers ``avoid``."""
        self._submit(self._add(task, request, avoid))

    def send_with_input(
        self,
        task: Task,
        request: TaskRequest,
        load: Callable[[], list[ResultBuffer]],
        avoid: frozenset[str] = frozenset(),
    ) -> None:
        """Send the results that the targets of a task need to a worker, and then the task.

        Parameters
        ----------
        load
            Returns the results. Called in the sending thread.
        """
        flight = self._add(task, request, avoid)
        self._threads.call("send", lambda: self._send_input(flight, load))

    def deliver_later(self, deliver: Callable[[], object]) -> None:
        """Call a function in the delivering thread, between deliveries, and put the event that it returns."""

        def deliver_one() -> None:
            with self._delivering:
                event = deliver()
            self._put(event)

        self._threads.call("deliver", deliver_one)

    def take_back(self, tasks: list[Task]) -> list[Task]:
        """Stop waiting for tasks; return those that will never be delivered.

        The others are being delivered now, and their events follow. So a task either runs again or counts, never both.
        """
        return [task for task in tasks if self._flights.pop(task.number, None) is not None]

    def withdraw(self, task: Task) -> bool:
        """Remove a task from the cluster; return False if its result is being delivered now."""
        flight = self._flights.pop(task.number, None)
        if flight is not None:
            _release(flight.futures)
        return flight is not None

    def reconnect(self) -> None:
        """Reconnect to the cluster in a thread, which puts :class:`Reconnected` or a fault."""

        def reconnect() -> None:
            self._cluster.reconnect()
            self._put(Reconnected())

        self._threads.call("connect", reconnect)

    def _add(self, task: Task, request: TaskRequest, avoid: frozenset[str]) -> _Flight:
        flight = _Flight(task, request, avoid, self._cluster.client)
        self._flights[task.number] = flight
        return flight

    def _is_open(self, flight: _Flight) -> bool:
        """Tell whether a task is not settled yet."""
        return self._flights.get(flight.task.number) is flight

    def _settle(self, flight: _Flight, event: object) -> None:
        """Put the event that settles a task, unless it is settled already."""
        if self._flights.pop(flight.task.number, None) is not None:
            self._put(event)

    def _is_connected(self, flight: _Flight) -> bool:
        """Tell whether the connection works that a task was sent on."""
        return self._cluster.client is flight.client and self._cluster.is_connected

    def _settle_error(
        self, flight: _Flight, error: Exception, expected: tuple[type[Exception], ...] = CONNECTION_ERRORS
    ) -> None:
        """Settle a task as lost after an error of Dask.

        A client that reconnects by itself, or is closed, may raise any error, because its attributes are missing. So
        any error counts as a lost task while the connection is broken.

        Parameters
        ----------
        expected
            The errors that mean a lost task while the connection works.

        Raises
        ------
        Exception
            The error is a defect.
        """
        connected = self._is_connected(flight)
        if connected and not isinstance(error, expected):
            raise error
        self._settle(flight, TaskLost(flight.task, repr(error), connected=connected))

    def _submit(self, flight: _Flight) -> None:
        request, client = flight.request, flight.client
        try:
            with annotate(**self._cluster.annotations(flight.task, flight.avoid)):
                future = client.submit(run_task, request, *flight.futures, key=request.key, pure=False)
            flight.futures.insert(0, future)
            self._fetch_when_done(flight)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)

    def _send_input(self, flight: _Flight, load: Callable[[], list[ResultBuffer]]) -> None:
        """Send the input of a task to a worker, then the task."""
        if not self._is_open(flight):
            return  # recalled, and sent again later
        key, results = flight.request.input_key, load()
        try:
            flight.futures.append(flight.client.sync(_scatter, flight.client, key, results))
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error, _SCATTER_ERRORS)
        else:
            self._submit(flight)

    def _fetch_when_done(self, flight: _Flight) -> None:
        """Fetch a result when Dask reports that it is there. Dask calls back in a separate thread."""
        flight.futures[0].add_done_callback(lambda _: self._fetch_soon(flight))

    def _fetch_soon(self, flight: _Flight) -> None:
        self._ready.append(flight)
        self._threads.call("fetch", self._fetch)

    def _fetch(self) -> None:
        """Deliver the results that are ready and release their futures, or find out what happened to the tasks.

        There is one call for each task that is ready, and the first call takes as many as there is room for.
        """
        if not self._ready:
            return
        n = self._fetch_limit.take(len(self._ready))
        try:
            flights = [flight for flight in self._take_ready(n) if self._is_finished(flight)]
            self._fetch_limit.give_back(n - len(flights))
            n = len(flights)
            for outcomes in self._outcomes(flights):
                n_came = len(outcomes)
                self._deliver_outcomes(outcomes)
                self._fetch_limit.give_back(n_came)
                n -= n_came
        finally:
            self._fetch_limit.give_back(n)

    def _take_ready(self, n: int) -> Iterator[_Flight]:
        with contextlib.suppress(IndexError):  # another thread has taken some
            for _ in range(n):
                yield self._ready.popleft()

    def _is_finished(self, flight: _Flight) -> bool:
        """Tell whether a task has a result to fetch. If it has none, do what follows from that."""
        if self._closing or not self._is_open(flight):
            return False  # this object is closing, or the task was recalled and runs again
        match flight.futures[0].status:
            case "finished":
                return True
            case "error":
                self._explain_later(flight)
            case "pending":  # the worker with the result was lost, and Dask runs the task again
                self._wait_again(flight)
            case status:
                connected = self._is_connected(flight)
                self._settle(flight, TaskLost(flight.task, f"Dask's status is {status!r}", connected=connected))
        return False

    def _wait_again(self, flight: _Flight) -> None:
        try:
            self._fetch_when_done(flight)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)

    def _outcomes(self, flights: list[_Flight]) -> Iterator[list[tuple[_Flight, TaskResult | Exception]]]:
        """Fetch results together; yield them with their tasks as they come, each task once."""
        left = {flight.futures[0].key: flight for flight in flights}

        def given_up(future: Future[Any]) -> bool:
            return self._closing or not self._is_open(left[future.key])

        try:
            for outcomes in self._cluster.results([flight.futures[0] for flight in left.values()], given_up):
                found = [(left.pop(future.key), outcome) for future, outcome in outcomes]
                outcomes.clear()  # the caller's list is the only one that keeps results in memory
                yield found
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            yield [(flight, error) for flight in left.values()]

    def _deliver_outcomes(self, outcomes: list[tuple[_Flight, TaskResult | Exception]]) -> None:
        """Deliver results, then release their futures together, then put the events."""
        futures: list[Future[Any]] = []
        events: list[object] = []
        try:
            while outcomes:  # the committer may free each result at once, because the list does not keep it
                flight, outcome = outcomes.pop(0)
                if isinstance(outcome, Exception):
                    self._without_result(flight, outcome)
                    continue
                self._fetch_limit.add_size(outcome.nbytes)
                with self._delivering:
                    if self._flights.pop(flight.task.number, None) is not None:  # else recalled, and runs again
                        events.append(self._deliver(flight.task, outcome))
                        futures.append(flight.futures[0])
        finally:
            _release(futures)
            for event in events:
                self._put(event)

    def _without_result(self, flight: _Flight, error: Exception) -> None:
        """Do what follows from an error that came instead of a result."""
        if isinstance(error, RunsAgain):
            self._wait_again(flight)
        elif isinstance(error, KilledWorker):  # the transfer ended the worker, and running it again ended another one
            self._explain_later(flight)
        else:
            self._settle_error(flight, error)

    def _explain_later(self, flight: _Flight) -> None:
        flight.failed_at = time.monotonic()
        self._threads.call("explain", lambda: self._explain(flight))

    def _explain(self, flight: _Flight) -> None:
        """Find out what happened to a task that raised, or whose workers died."""
        if not self._is_open(flight):
            return
        try:
            event = self._failure_of(flight)
        except Exception as error:  # noqa: BLE001 - _settle_error raises defects
            self._settle_error(flight, error)
        else:
            self._settle(flight, event)

    def _failure_of(self, flight: _Flight) -> TaskLost | TaskRaised:
        future = flight.futures[0]
        # Not result(), because the traceback of a raised error keeps every future alive.
        error = future.exception()
        if future.status != "error" or error is None:  # the connection broke meanwhile
            raise CancelledError(future.key)
        if isinstance(error, KilledWorker):
            return self._death_of(flight, error)
        return TaskRaised(flight.task, error, self._cluster.worker_that_raised(str(future.key)))

    def _death_of(self, flight: _Flight, error: KilledWorker) -> TaskLost:
        task, key = flight.task, flight.futures[0].key
        # Tasks of another job killed the workers where this task still waited to be alone (mops.worker.run_task).
        if task.alone and len(flight.client.get_metadata([key], {})) < DEATHS:
            return TaskLost(task, "its workers died before it ran")
        cause = self._cluster.loss_cause(str(key), error.last_worker.address, flight.failed_at, lambda: self._closing)
        died = f"{'a worker' if task.suspect else f'{DEATHS} workers'} died while running it"
        if cause.removed:
            return TaskLost(task, f"{died}, but {cause.text}")
        return TaskLost(task, died, blamed=True, cause=cause)


async def _scatter(client: Client, key: str, replicates: list[ResultBuffer]) -> Future[Any]:
    """Send data to a worker, with a timeout, because a silent worker would hold up all other targets.

    Runs in the client's event loop.

    Raises
    ------
    TimeoutError
        The worker does not answer.
    """
    scattering = client.scatter({key: replicates}, hash=False, asynchronous=True)
    futures = await asyncio.wait_for(scattering, FETCH_SECONDS)
    return cast("Future[Any]", futures[key])


def _release(futures: list[Future[Any]]) -> None:
    """Release results on the cluster.

    Dask sends a release after two turns of the client's event loop, and a task after one. Without a turn between them
    the next tasks would reach the scheduler first, which would then hold more than the window.
    """
    if not futures:
        return
    try:
        for future in futures:
            future.release()
        futures[0].client.sync(asyncio.sleep, 0)
    except Exception as error:
        # A closed or reconnecting client has nothing to release.
        if futures[0].client.status == "running" and not isinstance(error, CONNECTION_ERRORS):
            raise
