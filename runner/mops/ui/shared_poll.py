"""Reads one thing again and again for all clients that follow it: two open pages cost no more reads than one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

from mops.ui.read_threads import ReadThreads

T = TypeVar("T")

_WAKE_SECONDS = 0.5  # so that an ending server does not wait for a poll
_READ_SHARE = 5  # after a slow read, wait this many times as long


class SharedPoll(Generic[T]):
    """Values that a thread reads while at least one client follows them."""

    def __init__(
        self,
        # Called in a thread when the first client comes; returns the function that reads a value, also in a thread.
        opened: Callable[[], Callable[[], T]],
        # The pause between two reads. It is longer after a slow read.
        seconds: float,
        # Tells whether the server ends.
        stopping: Callable[[], bool],
        threads: ReadThreads,
    ):
        self._opened, self._seconds, self._stopping, self._threads = opened, seconds, stopping, threads
        self.n_clients = 0
        self._n_read = 0
        self._last: T
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def values(self) -> AsyncIterator[T]:
        """Yield the newest value at each change, until the server ends."""
        self.n_clients += 1
        self._task = self._task or asyncio.create_task(self._poll())
        seen = 0
        try:
            while not self._stopping():
                if self._n_read > seen:
                    seen = self._n_read
                    yield self._last
                    continue
                if self._task.done():
                    self._task.result()  # raises what reading has raised
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _WAKE_SECONDS)
        finally:
            self.n_clients -= 1
            if not self.n_clients:
                self._task.cancel()
                self._task = None

    async def _poll(self) -> None:
        read = await self._threads.run(self._opened)
        while True:
            start = time.monotonic()
            self._last = await self._threads.run(read)
            seconds = max(self._seconds, _READ_SHARE * (time.monotonic() - start))
            self._n_read += 1
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(seconds)


class Polls:
    """The polls that clients follow now, by what they read."""

    def __init__(self) -> None:
        self._polls: dict[Hashable, SharedPoll[Any]] = {}

    async def follow(self, key: Hashable, new: Callable[[], SharedPoll[T]]) -> AsyncIterator[T]:
        """Yield the values of the poll with this key, which ``new`` makes if no client follows it yet."""
        poll = self._polls.setdefault(key, new())
        try:
            async with aclosing(poll.values()) as values:  # type: ignore[type-var]
                async for value in values:
                    yield value
        finally:
            if not poll.n_clients and self._polls.get(key) is poll:
                del self._polls[key]
