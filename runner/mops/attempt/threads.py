"""The threads of a runner, by what they wait for."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

Events = queue.SimpleQueue[object]
"""What the main loop handles, one event after the other."""

ThreadName = Literal["fetch", "deliver", "send", "explain", "connect"]

# The most fetches at once. Each takes all results that are ready, so that one slow worker does not hold up others.
# Dask sends up to five gathers at once as separate requests, so that one of them can be given up alone.
FETCHES = 4
_THREADS: dict[ThreadName, int] = {
    "fetch": FETCHES,  # waits for results from workers
    "deliver": 1,  # waits for the committer
    "send": 1,  # waits for workers that accept the input of a task
    "explain": 1,  # waits until the cause of a task's failure is known
    "connect": 1,  # waits for the cluster
}


@dataclass
class ThreadFault:
    """An event: a thread raised an error that does not belong to a task. The loop raises it."""

    error: BaseException
    thread: ThreadName | Literal["commit"]  # the committer has a thread too


class TaskThreads:
    """Threads by what they wait for."""

    def __init__(self, events: Events):
        self._events = events
        self._finished: set[ThreadName] = set()
        self._threads = {name: ThreadPoolExecutor(n, f"mops-{name}") for name, n in _THREADS.items()}
        self._calls: dict[ThreadName, set[Future[None]]] = {name: set() for name in _THREADS}

    def call(self, name: ThreadName, function: Callable[[], object]) -> None:
        """Call a function in a thread, after the calls before it. After :meth:`finish`, do nothing."""
        try:
            call = self._threads[name].submit(self._call, name, function)
        except RuntimeError as refused:
            if name not in self._finished:  # the system cannot start a thread
                self._events.put(ThreadFault(refused, name))
            return
        self._calls[name].add(call)
        call.add_done_callback(self._calls[name].discard)

    def _call(self, name: ThreadName, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            self._events.put(ThreadFault(error, name))

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
