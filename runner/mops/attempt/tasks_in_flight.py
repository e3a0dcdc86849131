"""Sends tasks to the cluster, brings back what they gave, and notices what is lost. Threads of its own, events out.

Each task is in one table from the moment it is sent, and whoever takes it out of there decides its fate, once: a
result that is handed over, a loss, an error of its own, or the loop, which takes all back with a lost connection.

What runs next is :mod:`mops.attempt.planning.plan`'s; what becomes of an event is :mod:`mops.attempt.main_loop`'s.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from dask.base import annotate
from distributed import CancelledError, Client, Future, KilledWorker

from mops.attempt.task_threads import FetchLimit, TaskThreads
from mops.cluster.base import CONNECTION_ERRORS, DEATHS, FETCH_SECONDS, Cluster, RunsAgain
from mops.cluster.worker_losses import UNKNOWN, LossCause
from mops.task import ResultBuffer, Task, TaskRequest, TaskResult
from mops.worker.run_task import run_task

_NOT_GIVEN = (*CONNECTION_ERRORS, KeyError, RuntimeError)
"""What Dask raises where data cannot be given, also as the scheduler's error: for a worker that has just left."""


@dataclass
class TaskLost:
    """An event: a task did not come back.

    Parameters
    ----------
    blamed
        The task itself is why: its workers died while they ran it, or they give nothing for it.
    cause
        Why the last of them died, as far as anybody knows.
    connected
        Whether the connection that it was sent on stands: a cut one takes all with it, which says nothing of the
        cluster.
    signal
        What says so, in a word or two.
    """

    task: Task
    why: str
    blamed: bool = False
    cause: LossCause = UNKNOWN
    connected: bool = True
    signal: str = "KilledWorker"

    @property
    def died(self) -> bool:
        """Whether it is its workers that died."""
        return self.signal == "KilledWorker"


@dataclass
class TaskRaised:
    """An event: a task raised an error on its worker instead of coming back.

    Parameters
    ----------
    worker
        Its address; empty: it came to none, for the scheduler could not read it.
    """

    task: Task
    error: BaseException
    worker: str


class Reconnected:
    """An event: the cluster is there again."""


@dataclass
class _Flight:
    """A task that was sent, and what Dask has of it: held until it is back."""

    task: Task
    request: TaskRequest
    avoid: frozenset[str]
    client: Client
    futures: list[Future[Any]] = field(default_factory=list)
    asked_at: float = 0.0  # since when it is looked for why its workers died (s, monotonic)


class TasksInFlight:
    """The tasks of an attempt that are with the cluster.

    Parameters
    ----------
    deliver
        Called with each result, one at a time, in whatever order they come; returns the event that says so. The
        result's future is released before that event is put.
    put
        Takes events, from any thread.
    room_bytes
        For results that are fetched and not delivered.
    lanes
        The threads; None: threads of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        deliver: Callable[[Task, TaskResult], object],
        put: Callable[[object], None],
        room_bytes: int,
        lanes: TaskThreads | None = None,
    ):
        self._cluster, self._deliver, self._put = cluster, deliver, put
        self._lanes = lanes or TaskThreads(put)
        self._room = FetchLimit(room_bytes)
        self._flights: dict[int, _Flight] = {}
        self._delivering = threading.Lock()
        self._closing = False

    def finish_deliveries(self) -> None:
        """Finish the deliveries that have begun, and begin none; after this no delivery puts an event."""
        self._closing = True  # a fetch that waits for a worker gives up
        self._lanes.finish("fetch")
        self._lanes.finish("deliver")

    def close(self) -> None:
        """End the threads, after the calls that they make now. Results on workers are not waited for."""
        self._closing = True
        self._lanes.close()

    def send(self, task: Task, request: TaskRequest, avoid: frozenset[str] = frozenset()) -> None:
        """Have a task run, on none of the workers ``avoid``."""
        self._submit(self._sent(task, request, avoid))

    def send_targets(
        self, task: Task, request: TaskRequest, parts: list[ResultBuffer], avoid: frozenset[str] = frozenset()
    ) -> None:
        """Have a group's targets run over its replicates, which go to a worker first."""
        flight = self._sent(task, request, avoid)
        self._lanes.call("give", lambda: self._give(flight, parts))

    def deliver_later(self, deliver: Callable[[], object]) -> None:
        """Call beside the loop, in its turn among deliveries, and put the event that it returns."""
        self._lanes.call("deliver", lambda: self._deliver_by_itself(deliver))

    def _deliver_by_itself(self, deliver: Callable[[], object]) -> None:
        with self._delivering:
            event = deliver()
        self._put(event)

    def take_back(self, tasks: list[Task]) -> list[Task]:
        """Stop waiting for tasks; return those whose results will not come any more.

        The others are being delivered at this moment, and their events come: a task runs again, or its result counts,
        never both.
        """
        return [task for task in tasks if self._flights.pop(task.number, None) is not None]

    def reconnect(self) -> None:
        """Look for the cluster in a thread; :class:`Reconnected` comes of it, or its error as an event."""
        self._lanes.call("connect", self._reconnect)

    def _reconnect(self) -> None:
        self._cluster.reconnect()
        self._put(Reconnected())

    def _sent(self, task: Task, request: TaskRequest, avoid: frozenset[str]) -> _Flight:
        flight = _Flight(task, request, avoid, self._cluster.client)
        self._flights[task.number] = flight
        return flight

    def _is_here(self, flight: _Flight) -> bool:
        """Tell whether a task's fate is open."""
        return self._flights.get(flight.task.number) is flight

    def _settle(self, flight: _Flight, event: object) -> None:
        """Put the event that says what became of a task, unless that is decided already."""
        if self._flights.pop(flight.task.number, None) is not None:
            self._put(event)

    def _stands(self, flight: _Flight) -> bool:
        """Tell whether the connection stands on which a task was sent."""
        return self._cluster.client is flight.client and self._cluster.is_connected

    def _failed(
        self, flight: _Flight, error: Exception, losses: tuple[type[Exception], ...] = CONNECTION_ERRORS
    ) -> None:
        """Settle a task for which Dask could not be asked.

        While a connection does not stand, whatever Dask raises is the loss of it: of a client that connects again by
        itself, or is closed, any attribute may be missing.

        Parameters
        ----------
        losses
            What says that a worker is gone, while the connection stands.

        Raises
        ------
        Exception
            It is something else: a defect, which the lane brings to the loop.
        """
        connected = self._stands(flight)
        if connected and not isinstance(error, losses):
            raise error
        self._settle(flight, TaskLost(flight.task, repr(error), connected=connected))

    def _submit(self, flight: _Flight) -> None:
        request, client = flight.request, flight.client
        try:
            with annotate(**self._cluster.annotations(flight.task, flight.avoid)):
                carried = self._cluster.to_dask(request)
                future = client.submit(run_task, carried, *flight.futures, key=request.key, pure=False)
            flight.futures.insert(0, future)
            self._wait_for(flight)
        except Exception as error:  # noqa: BLE001 - sorted there
            self._failed(flight, error)

    def _give(self, flight: _Flight, parts: list[ResultBuffer]) -> None:
        """Bring a group's replicates to a worker, then have its targets run."""
        if not self._is_here(flight):
            return  # taken back, and to be sent anew
        try:
            flight.futures.append(flight.client.sync(_given, flight.client, flight.request.replicates_key, parts))
        except Exception as error:  # noqa: BLE001 - sorted there
            self._failed(flight, error, _NOT_GIVEN)
        else:
            self._submit(flight)

    def _wait_for(self, flight: _Flight) -> None:
        """Have a result fetched as soon as it is there. The callback runs in a thread of Dask's."""
        flight.futures[0].add_done_callback(lambda _: self._lanes.call("fetch", lambda: self._fetch(flight)))

    def _fetch(self, flight: _Flight) -> None:
        """Bring a result to where it goes, then release its future; or find out what became of it."""
        if self._closing or not self._is_here(flight):
            return  # taken back, and running again
        match flight.futures[0].status:
            case "finished":
                self._bring(flight)
            case "error":
                self._ask_later(flight)
            case "pending":  # it was finished, and its worker is gone: Dask computes it again
                self._wait_again(flight)
            case status:
                connected = self._stands(flight)
                self._settle(flight, TaskLost(flight.task, f"Dask says {status!r}", connected=connected))

    def _wait_again(self, flight: _Flight) -> None:
        try:
            self._wait_for(flight)
        except Exception as error:  # noqa: BLE001 - sorted there
            self._failed(flight, error)

    def _bring(self, flight: _Flight) -> None:
        future = flight.futures[0]
        with self._room.one():
            try:
                result = self._cluster.result(future, lambda: self._closing or not self._is_here(flight))
            except RunsAgain:
                self._wait_again(flight)
                return
            except KilledWorker:  # what it gave has ended its worker on the way, and the next one that ran it
                self._ask_later(flight)
                return
            except Exception as error:  # noqa: BLE001 - sorted there
                self._failed(flight, error)
                return
            self._room.measured(result.nbytes)
            with self._delivering:
                if self._flights.pop(flight.task.number, None) is None:
                    return  # taken back meanwhile, and running again
                event = self._deliver(flight.task, result)
            _release(future)
        self._put(event)

    def _ask_later(self, flight: _Flight) -> None:
        flight.asked_at = time.monotonic()
        self._lanes.call("ask", lambda: self._ask(flight))

    def _ask(self, flight: _Flight) -> None:
        """Find out what became of a task that raised, or whose workers died."""
        if not self._is_here(flight):
            return
        try:
            event = self._what_became(flight)
        except Exception as error:  # noqa: BLE001 - sorted there
            self._failed(flight, error)
        else:
            self._settle(flight, event)

    def _what_became(self, flight: _Flight) -> TaskLost | TaskRaised:
        future = flight.futures[0]
        # exception() and not result(): a raised error's frames would pin every future (FACTS, Dask).
        error = future.exception()
        if future.status != "error" or error is None:  # the connection was lost meanwhile
            raise CancelledError(future.key)
        if isinstance(error, KilledWorker):
            return self._killed(flight, error)
        return TaskRaised(flight.task, error, self._cluster.worker_that_raised(str(future.key)))

    def _killed(self, flight: _Flight, error: KilledWorker) -> TaskLost:
        task, key = flight.task, flight.futures[0].key
        # Workers died of another job's tasks where this one still waited to be alone (mops.worker.run_task).
        if task.alone and len(flight.client.get_metadata([key], {})) < DEATHS:
            return TaskLost(task, "its workers died before it ran")
        cause = self._cluster.loss_cause(str(key), error.last_worker.address, flight.asked_at, lambda: self._closing)
        died = f"{'a worker' if task.suspect else f'{DEATHS} workers'} died while running it"
        if cause.removed:
            return TaskLost(task, f"{died}, and it is not to blame: {cause.text}")
        return TaskLost(task, died, blamed=True, cause=cause)


async def _given(client: Client, key: str, parts: list[ResultBuffer]) -> Future[Any]:
    """Bring data to a worker. Runs in the client's loop; one that takes it and does not answer holds up all others.

    Raises
    ------
    TimeoutError
        It takes as long as no result may.
    """
    given = await asyncio.wait_for(client.scatter({key: parts}, hash=False, asynchronous=True), FETCH_SECONDS)
    return cast("Future[Any]", given[key])


def _release(future: Future[Any]) -> None:
    """Give a result up on the cluster.

    A release takes two turns of the client's loop to be sent, a submit one: without a turn between them the next tasks
    reach the scheduler first, and more than the window is there.
    """
    try:
        future.release()
        future.client.sync(asyncio.sleep, 0)
    except Exception as error:
        # Closed, or connecting again: nothing is there any more.
        if future.client.status == "running" and not isinstance(error, CONNECTION_ERRORS):
            raise
