"""Fetches the results of several tasks from the workers of an external cluster, in as few messages as possible.

On many slots the way of a result bounds the rate of a job: a message to the scheduler, one to the worker, and two
switches of threads. So one question to the scheduler finds the workers of all results, and one message to each worker
brings its results. What does not come this way is fetched by Dask's ``gather``, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from distributed import CancelledError, Future

from mops.cluster.base import Outcomes, RunsAgain
from mops.cluster.dask_calls import FETCH_SECONDS, DaskCalls

_POLL_SECONDS = 0.25

GivenUp = Callable[[Any], bool]


def fetched(calls: DaskCalls, futures: Sequence[Future[Any]], given_up: GivenUp) -> Iterator[Outcomes]:
    """Fetch results as :meth:`mops.cluster.base.Cluster.results` does.

    A worker that does not answer holds up only its own results: what has come after a quarter of a second is yielded.
    """
    arrived: deque[tuple[Any, Any]] = deque()
    fetching: list[asyncio.Task[None]] = []

    async def wait() -> None:
        if not fetching:
            fetching.append(asyncio.ensure_future(_Fetch(calls, given_up, arrived).all(futures)))
        await asyncio.wait(fetching, timeout=_POLL_SECONDS)

    n_left = len(futures)
    while n_left:
        calls.run(wait)
        is_over = fetching[0].done()
        if outcomes := [arrived.popleft() for _ in range(len(arrived))]:
            n_left -= len(outcomes)
            yield outcomes
        if is_over and n_left:
            if fetching[0].cancelled():
                raise CancelledError("the connection has closed")
            fetching[0].result()


class _Fetch:
    """One fetch of several results. Everything runs in the client's event loop.

    Parameters
    ----------
    arrived
        Takes the outcomes.
    """

    def __init__(self, calls: DaskCalls, given_up: GivenUp, arrived: deque[tuple[Any, Any]]):
        self._calls, self._given_up, self._arrived = calls, given_up, arrived
        # One at a time: Dask puts more than five gathers of a client into one request, and giving up one would end all.
        self._gathering = asyncio.Semaphore(1)

    async def all(self, futures: Sequence[Future[Any]]) -> None:
        who_has: Mapping[Any, Sequence[str]] = {}
        with contextlib.suppress(Exception):  # gathering tells what is wrong
            asked = self._calls.holders([future.key for future in futures])
            who_has = await self._watched(asked, futures, of_one_worker=False)
        by_worker: dict[str, list[Future[Any]]] = {}
        for future in futures:
            by_worker.setdefault(next(iter(who_has.get(future.key, ())), ""), []).append(future)
        await asyncio.gather(*(self._from_worker(worker, some) for worker, some in by_worker.items()))

    async def _from_worker(self, worker: str, futures: Sequence[Future[Any]]) -> None:
        found: dict[Any, Any] = {}
        if worker:
            with contextlib.suppress(Exception):  # gathering tells what is wrong
                asked = self._calls.held_by(worker, [future.key for future in futures])
                found = (await self._watched(asked, futures)).get("data", {})  # without data: the worker is busy
        for future in futures:
            outcome = found.pop(future.key, None)
            if outcome is None:
                try:
                    outcome = await self._gathered(future)
                except Exception as error:  # noqa: BLE001 - the caller tells defects from lost tasks
                    outcome = error
            self._arrived.append((future, outcome))

    async def _gathered(self, future: Future[Any]) -> Any:
        """Fetch one result with Dask's own gathering, which tells the scheduler if the result is lost.

        Alone it would wait until a lost result is computed again, which may take hours.
        """
        async with self._gathering:
            (result,) = await self._watched(self._calls.gathered(future), [future])
        return result

    async def _watched(
        self, call: Awaitable[Any], futures: Sequence[Future[Any]], *, of_one_worker: bool = True
    ) -> Any:
        """Await a call unless the futures cannot come any longer; return what it returns.

        Parameters
        ----------
        of_one_worker
            Whether one worker has all results. Then one lost result means that the worker is lost.

        Raises
        ------
        RunsAgain, CancelledError, NoAnswer
            As :meth:`mops.cluster.base.Cluster.results` says.
        """

        def refusal() -> Exception | None:
            if of_one_worker and any(future.status == "pending" for future in futures):
                return RunsAgain()
            return CancelledError(futures[0].key) if all(map(self._given_up, futures)) else None

        calling = asyncio.ensure_future(call)
        try:
            return await self._calls.watched(calling, FETCH_SECONDS, refusal)
        finally:
            calling.cancel()
