"""Sends orders to the cluster, brings back what they gave, and notices what is lost. Threads of its own, events out.

What runs next is :mod:`mops.driver.plan`'s; what becomes of an event is :mod:`mops.driver.drive`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dask.base import annotate
from distributed import CancelledError, Future, KilledWorker
from distributed.client import ClosedClientError

from mops.driver.cluster import DEATHS, Cluster
from mops.driver.departures import UNKNOWN, Cause
from mops.driver.plan import Submit
from mops.worker.order import ArrowPart, Order, Outcome
from mops.worker.task import run_order

_GONE = (ClosedClientError, CancelledError, OSError, TimeoutError)
"""What Dask raises where the connection ends, or a worker on the other side of it."""


@dataclass
class Lost:
    """An event: an order did not come back.

    Parameters
    ----------
    blamed
        Workers died while they ran it.
    cause
        Why the last of them did, as far as anybody knows.
    """

    submit: Submit
    why: str
    blamed: bool = False
    cause: Cause = UNKNOWN


@dataclass
class Failed:
    """An event: a task raised, so that nothing can run."""

    error: BaseException


class Connected:
    """An event: the cluster is there again."""


class Dispatch:
    """The tasks of an attempt that are with the cluster.

    Parameters
    ----------
    deliver
        Called with each outcome, in the fetching thread; returns the event that says so. The outcome's future is
        released before that event is put.
    put
        Takes events, from any thread.
    """

    def __init__(self, cluster: Cluster, deliver: Callable[[Submit, Outcome], object], put: Callable[[object], None]):
        self._cluster, self._deliver, self._put = cluster, deliver, put
        self._held: dict[int, tuple[object, ...]] = {}
        self._fetcher = ThreadPoolExecutor(1, "mops-fetch")
        self._connector = ThreadPoolExecutor(1, "mops-connect")
        self._fetching: Future[Outcome] | None = None
        self._closing = False

    def close(self) -> None:
        """End the threads, after what they are at; no result is waited for, which may be lost with all workers."""
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._closing = True
        if (fetching := self._fetching) is not None:
            with contextlib.suppress(RuntimeError, *_GONE):  # closed: it is not waited for any more
                fetching.cancel()
        self._fetcher.shutdown()
        self._connector.shutdown()

    def send(self, submit: Submit, order: Order) -> None:
        """Have an order run."""
        self._submit(submit, order)

    def send_targets(self, submit: Submit, order: Order, parts: list[ArrowPart]) -> None:
        """Have a group's targets run over its replicates, which go to a worker first."""
        self._fetcher.submit(self._scatter, submit, order, parts)

    def deliver_later(self, deliver: Callable[[], object]) -> None:
        """Call in the fetching thread, in its turn, and put the event that it returns."""
        self._fetcher.submit(self._put_result, deliver)

    def take_back(self, submits: list[Submit]) -> list[Submit]:
        """Stop waiting for orders; return those whose results will not come any more.

        The others are being fetched at this moment, and their events come: an order runs again, or its result counts,
        never both. Whoever takes its future out of the table first decides.
        """
        return [submit for submit in submits if self._held.pop(submit.number, None) is not None]

    def reconnect(self) -> None:
        """Look for the cluster in a thread; :class:`Connected` or :class:`Failed` comes of it."""
        self._connector.submit(self._reconnect)

    def _reconnect(self) -> None:
        try:
            self._cluster.reconnect()
        except Exception as error:  # noqa: BLE001 - carried to the loop, which raises it
            self._put(Failed(error))
        else:
            self._put(Connected())

    def _submit(self, submit: Submit, order: Order, *given: Future[list[ArrowPart]]) -> None:
        try:
            with annotate(**self._cluster.notes(submit)):
                carried = self._cluster.carried(order)
                future = self._cluster.client.submit(run_order, carried, *given, key=order.key, pure=False)
        except ClosedClientError as gone:
            self._put(Lost(submit, repr(gone)))
            return
        self._held[submit.number] = (future, order, *given)
        future.add_done_callback(lambda done: self._came_back(submit, done))

    def _scatter(self, submit: Submit, order: Order, parts: list[ArrowPart]) -> None:
        key = order.given_key
        try:
            given = self._cluster.client.scatter({key: parts}, hash=False)[key]
        except _GONE as gone:
            self._put(Lost(submit, repr(gone)))
        else:
            self._submit(submit, order, given)

    def _came_back(self, submit: Submit, future: Future[Outcome]) -> None:
        """Have an outcome fetched. Runs in Dask's thread for callbacks."""
        with contextlib.suppress(RuntimeError):  # the fetching thread has ended with this attempt: nobody waits for it
            self._fetcher.submit(self._fetch, submit, future)

    def _fetch(self, submit: Submit, future: Future[Outcome]) -> None:
        """Bring an outcome to where it goes, then release its future. Runs in the fetching thread."""
        if self._held.pop(submit.number, None) is None:
            return  # taken back, and running again
        try:
            self._put(self._fetched(submit, future))
        except _GONE as gone:  # while the result was on its way
            self._put(Lost(submit, repr(gone)))
        except Exception as error:  # noqa: BLE001 - carried to the loop, which raises it
            self._put(Failed(error))

    def _fetched(self, submit: Submit, future: Future[Outcome]) -> object:
        if future.status != "finished":
            return self._not_finished(submit, future)
        try:
            outcome = self._result(future)
        except KilledWorker as error:  # what it gave has ended its worker on the way, and the next one that ran it
            return self._killed(submit, future, error)
        event = self._deliver(submit, outcome)
        _release(future)
        return event

    def _result(self, future: Future[Outcome]) -> Outcome:
        self._fetching = future
        try:
            if self._closing:  # looked at after it was named: whoever closes cancels it, or it is not begun
                raise CancelledError(future.key)
            return self._cluster.result(future)
        finally:
            self._fetching = None

    def _not_finished(self, submit: Submit, future: Future[Outcome]) -> Lost | Failed:
        """Say what became of a task that has no result."""
        # exception() and not result(): a raised error's frames would pin every future (FACTS, Dask).
        error: BaseException | None = future.exception() if future.status == "error" else None
        if isinstance(error, KilledWorker):
            return self._killed(submit, future, error)
        if error is not None:
            return Failed(error)
        return Lost(submit, f"Dask says {future.status!r}")

    def _killed(self, submit: Submit, future: Future[Outcome], error: KilledWorker) -> Lost:
        # Workers died of another job's tasks where this one still waited to be alone (mops.worker.task).
        if submit.alone and len(future.client.get_metadata([future.key], {})) < DEATHS:
            return Lost(submit, "its workers died before it ran")
        cause = self._cluster.cause(str(future.key), error.last_worker.address)
        died = f"{'a worker' if submit.suspect else f'{DEATHS} workers'} died while running it"
        if cause.nobodys:
            return Lost(submit, f"{died}, and it is not to blame: {cause.said}")
        return Lost(submit, died, blamed=True, cause=cause)

    def _put_result(self, deliver: Callable[[], object]) -> None:
        try:
            self._put(deliver())
        except Exception as error:  # noqa: BLE001 - carried to the loop, which raises it
            self._put(Failed(error))


def _release(future: Future[Outcome]) -> None:
    """Give a result up on the cluster.

    A release takes two turns of the client's loop to be sent, a submit one: without a turn between them the next tasks
    reach the scheduler first, and more than the window is there.
    """
    future.release()
    with contextlib.suppress(RuntimeError, *_GONE):  # closed: nothing is there any more
        future.client.sync(asyncio.sleep, 0)
