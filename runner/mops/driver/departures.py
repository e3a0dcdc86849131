"""Workers that are gone and were not asked to go: what they ran, and whether memory ran out.

Dask's scheduler says what was on a worker that it lost. Why it went, others say (:class:`Source`): the nanny that
restarted it, and the counter of its cgroup. The status of its pod is to be a third.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mops.worker.verdict import shown

JOIN_SECONDS = 1.0
"""What a source knows of a departure may come a little after it."""

NEAR_SECONDS = 15.0
"""What it says is believed of a departure that is no farther away: sources are looked at every ten seconds."""

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Departure:
    """A worker that is gone.

    Parameters
    ----------
    worker
        Its address.
    keys
        The Dask keys of the tasks that it ran, and of those whose results only it had.
    memory
        What says that it ran out of memory, for people; empty: nothing does.
    """

    worker: str
    keys: frozenset[str]
    memory: str


class Source(Protocol):
    """Somebody who knows why workers go."""

    def look(self) -> None:
        """Learn what has happened since the last look, off the event loops."""

    def out_of_memory(self, worker: str, at: float) -> str:
        """Return what says that a worker that went ``at`` (s, monotonic) ran out of memory; empty: nothing does."""


class Nannies:
    """What nannies tell the scheduler: that they restarted a worker which took more than Dask allows it."""

    TOPIC = "worker-restart-memory"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._restarted: dict[str, tuple[float, int]] = {}

    def hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the topic."""
        _, said = event
        self._restarted[said["worker"]] = self._clock(), said["rss"]

    def look(self) -> None:
        """Nothing to do: events come by themselves."""

    def out_of_memory(self, worker: str, at: float) -> str:
        """As :meth:`Source.out_of_memory`."""
        when, n_bytes = self._restarted.pop(worker, (-math.inf, 0))  # another worker may have its address later
        return f"its nanny restarted it at {shown(n_bytes)}" if abs(when - at) <= NEAR_SECONDS else ""


class Counters:
    """The counters of the workers' cgroups, read by their nannies, which outlive them.

    Parameters
    ----------
    read
        Returns how many processes the kernel has killed for memory in the cgroup of each nanny, by its worker's host.
    """

    def __init__(self, read: Callable[[], Mapping[str, int]], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._counts: dict[str, int] = {}
        self._rose: dict[str, tuple[float, int]] = {}

    def look(self) -> None:
        """As :meth:`Source.look`."""
        for host, n in self._read().items():
            more = n - self._counts.get(host, n)
            self._counts[host] = n
            if more > 0:
                self._rose[host] = self._clock(), more

    def out_of_memory(self, worker: str, at: float) -> str:
        """As :meth:`Source.out_of_memory`: the counter rose at about that time, for whichever process it was."""
        when, n = self._rose.get(host_of(worker), (-math.inf, 0))
        return f"kills for memory in its container at that time: {n}" if abs(when - at) <= NEAR_SECONDS else ""


def host_of(address: str) -> str:
    """Return the host of a worker's address."""
    return address.rpartition("://")[2].rpartition(":")[0]


class Departures:
    """Hears of workers that went, and joins what is known of each. Thread-safe.

    Parameters
    ----------
    sources
        Asked in their order; the first that knows is believed.
    """

    def __init__(self, sources: Sequence[Source], clock: Callable[[], float] = time.monotonic):
        self._sources, self._clock = sources, clock
        self._heard: list[tuple[float, str, frozenset[str]]] = []
        self._judged: queue.SimpleQueue[Departure] = queue.SimpleQueue()
        self._memory: dict[str, tuple[float, str]] = {}
        self._changed = threading.Condition()

    def hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the scheduler's topic ``all``."""
        _, said = event
        if said["action"] == "remove-worker" and not said["expected"]:
            keys = frozenset((*said["processing-tasks"], *said["lost-computed-tasks"]))
            with self._changed:
                self._heard.append((self._clock(), said["worker"], keys))

    def look(self) -> None:
        """Let the sources note how things stand now."""
        for source in self._sources:
            source.look()

    def judge(self) -> None:
        """Ask the sources about those who went a moment ago."""
        with self._changed:
            due = [heard for heard in self._heard if self._clock() - heard[0] >= JOIN_SECONDS]
            self._heard = self._heard[len(due) :]
        if not due:
            return
        self.look()
        for at, worker, keys in due:
            memory = next(filter(None, (source.out_of_memory(worker, at) for source in self._sources)), "")
            self._judged.put(Departure(worker, keys, memory))
            with self._changed:
                self._memory[worker] = at, memory
                self._changed.notify_all()

    def take(self) -> list[Departure]:
        """Return those that were judged since the last call."""
        found = []
        while not self._judged.empty():
            found.append(self._judged.get())
        return found

    def out_of_memory(self, worker: str, patience_s: float = _PATIENCE_SECONDS) -> str:
        """Return what says that a worker which has just gone ran out of memory; waits a little until it is known."""
        since = self._clock() - NEAR_SECONDS

        def known() -> bool:
            return self._memory.get(worker, (-math.inf, ""))[0] >= since

        with self._changed:
            return self._memory[worker][1] if self._changed.wait_for(known, patience_s) else ""
