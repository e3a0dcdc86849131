"""Threads that read and change the storage. One that hangs stops neither the other pages nor the end of the program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

N_THREADS = 32


class ReadThreads:
    """Runs functions in threads for the event loop, whose own threads are few, and would hold up its end."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(N_THREADS, "mops-ui")
        self._running: set[Future[Any]] = set()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, and raise what it raises."""
        future = self._pool.submit(function, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(future)

    def end(self, seconds: float) -> bool:
        """Start no more functions. Tell whether all have returned within this time (s)."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not wait(set(self._running), seconds).not_done
