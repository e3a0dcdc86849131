"""The threads that fetch and deliver results. An error that is raised in one becomes an event for the loop.

A task whose thread ended without an event would stay in flight without end. So every call for a task outside the loop
goes through :meth:`TaskThreads.call`, which turns unexpected errors into :class:`ThreadFault`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Condition
from typing import Literal

logger = logging.getLogger(__name__)

ThreadName = Literal["fetch", "deliver", "send", "explain", "connect"]

FETCHES = 4
"""The most fetches at once. Each takes all results that are ready, so that one slow worker does not hold up others.

Dask sends up to five gathers at once as separate requests, so that one of them can be given up alone."""

_THREADS: dict[ThreadName, int] = {"fetch": FETCHES, "deliver": 1, "send": 1, "explain": 1, "connect": 1}
_RECENT = 16
_MOST_AT_ONCE = 2 * _RECENT
"""The most results that are fetched at once, however small the last ones were: the next ones may be large."""


@dataclass
class ThreadFault:
    """An event: a thread raised an error that does not belong to a task. The loop raises it.

    Parameters
    ----------
    thread
        The thread; ``commit`` is the committer's.
    """

    error: BaseException
    thread: ThreadName | Literal["commit"]


class TaskThreads:
    """Threads by what they wait for.

    - ``fetch`` waits for results from workers.
    - ``deliver`` waits for the committer.
    - ``send`` waits for workers that accept the input of a task.
    - ``explain`` waits until the cause of a task's failure is known.
    - ``connect`` waits for the cluster.

    Parameters
    ----------
    put
        Takes events, from any thread.
    """

    def __init__(self, put: Callable[[object], None]):
        self._put = put
        self._finished: set[ThreadName] = set()
        self._threads = {name: ThreadPoolExecutor(n, f"mops-{name}") for name, n in _THREADS.items()}
        self._calls: dict[ThreadName, set[Future[None]]] = {name: set() for name in _THREADS}

    def call(self, name: ThreadName, function: Callable[[], object]) -> None:
        """Call a function in a thread, after the calls before it. After :meth:`finish`, do nothing."""
        try:
            call = self._threads[name].submit(self._call, name, function)
        except RuntimeError as refused:
            if name not in self._finished:  # the system cannot start a thread
                self._put(ThreadFault(refused, name))
            return
        self._calls[name].add(call)
        call.add_done_callback(self._calls[name].discard)

    def _call(self, name: ThreadName, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            self._put(ThreadFault(error, name))

    def finish(self, name: ThreadName, timeout_s: float) -> None:
        """Wait for the calls that were made, for at most ``timeout_s`` seconds, and accept no more."""
        self._finished.add(name)
        self._threads[name].shutdown(wait=False)
        if wait(self._calls[name].copy(), timeout_s).not_done:
            logger.warning("calls of thread %r did not end within %g s", name, timeout_s)

    def close(self) -> None:
        """End all threads after their current calls."""
        self._finished.update(self._threads)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in self._threads.values():
            threads.shutdown()


class FetchLimit:
    """Bounds the bytes of results that are fetched but not delivered, judging by the sizes of recent results.

    Parameters
    ----------
    limit_bytes
        One result may always be fetched, however large. The first one is fetched alone.
    """

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._n = 0
        self._changed = Condition()

    @property
    def at_once(self) -> int:
        """How many results may be fetched at once now."""
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
