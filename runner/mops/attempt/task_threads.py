"""The threads that fetch and deliver results. Whatever is raised in one becomes an event that the loop sees.

A task whose thread or callback died in silence would be in flight for ever. So nothing runs beside the loop for a task
but through :meth:`TaskThreads.call`, and an error that nobody expects there reaches the loop as :class:`ThreadFault`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Literal

ThreadName = Literal["fetch", "deliver", "give", "ask", "connect"]

FETCHES = 4
"""Results that are fetched at once, at most: one that its worker cannot give does not hold up the others. Dask gathers
five at once without merging them, so that giving one up does not harm the others."""

_THREADS: dict[ThreadName, int] = {"fetch": FETCHES, "deliver": 1, "give": 1, "ask": 1, "connect": 1}
_RECENT = 16


@dataclass
class ThreadFault:
    """An event: a call in one of the threads raised an error that is not a task's fate. The loop raises it.

    Parameters
    ----------
    thread
        The threads that the call was made in.
    """

    error: BaseException
    thread: ThreadName


class TaskThreads:
    """Threads by what they wait for.

    ``fetch`` waits for results, ``deliver`` for the committer, ``give`` for workers that take data, ``ask`` for what
    became of a task that failed, ``connect`` for the cluster.

    Parameters
    ----------
    put
        Takes events, from any thread.
    """

    def __init__(self, put: Callable[[object], None]):
        self._put = put
        self._closed: set[ThreadName] = set()
        self._threads = {lane: ThreadPoolExecutor(n, f"mops-{lane}") for lane, n in _THREADS.items()}

    def call(self, lane: ThreadName, work: Callable[[], object]) -> None:
        """Have something called in a lane, in its turn. After :meth:`finish` nothing is: nobody waits for it."""
        try:
            self._threads[lane].submit(self._guarded, lane, work)
        except RuntimeError as refused:
            if lane not in self._closed:  # no thread can be started
                self._put(ThreadFault(refused, lane))

    def _guarded(self, lane: ThreadName, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the loop, which raises it
            self._put(ThreadFault(error, lane))

    def finish(self, lane: ThreadName) -> None:
        """Make the calls that were asked for, and end the threads of a lane."""
        self._closed.add(lane)
        self._threads[lane].shutdown()

    def close(self) -> None:
        """End the threads, after the calls that they make now."""
        self._closed.update(self._threads)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in self._threads.values():
            threads.shutdown()


class FetchLimit:
    """Bounds the bytes of results that are fetched and not handed over, by what results took lately.

    Parameters
    ----------
    limit_bytes
        One may always be fetched, however large, and the first is fetched alone.
    """

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._n = 0
        self._changed = Condition()

    @property
    def at_once(self) -> int:
        """Results that may be fetched at once now."""
        return max(self._limit_bytes // max(*self._recent, 1, 1), 1) if self._recent else 1

    @contextmanager
    def one(self) -> Iterator[None]:
        """Have room for a result, from before it is fetched until it is handed over."""
        with self._changed:
            self._changed.wait_for(lambda: self._n < self.at_once)
            self._n += 1
        try:
            yield
        finally:
            with self._changed:
                self._n -= 1
                self._changed.notify_all()

    def measured(self, n_bytes: int) -> None:
        """Take the size of a result that has come."""
        with self._changed:
            self._recent.append(n_bytes)
            self._changed.notify_all()
