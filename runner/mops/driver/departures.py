"""Workers that are gone and were not asked to go: what they ran, and whether memory ran out.

Dask's scheduler says what ran on a worker that it lost. Why it went, others say (:class:`Source`): the nanny that
restarted it, the counter of its cgroup, and on Kubernetes its pod.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mops.worker.verdict import shown

JOIN_SECONDS = 1.0
"""What a source knows of a departure comes a little before or after it."""

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Departure:
    """A worker that is gone.

    Parameters
    ----------
    worker
        Its address.
    keys
        The Dask keys of the tasks that it had.
    memory
        What says that it ran out of memory, for people; empty: nothing does.
    """

    worker: str
    keys: frozenset[str]
    memory: str


class Source(Protocol):
    """Somebody who knows why workers go."""

    def look(self) -> None:
        """Learn what has happened since the last look, off the event loops; called before :meth:`out_of_memory`."""

    def out_of_memory(self, worker: str) -> str:
        """Return what says that a worker ran out of memory, for people; empty: nothing does."""


class Nannies:
    """What nannies tell the scheduler: that they restarted a worker which took more than Dask allows it."""

    TOPIC = "worker-restart-memory"

    def __init__(self) -> None:
        self._restarted: dict[str, int] = {}

    def hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the topic."""
        _, said = event
        self._restarted[said["worker"]] = said["rss"]

    def look(self) -> None:
        """Nothing to do: events come by themselves."""

    def out_of_memory(self, worker: str) -> str:
        """As :meth:`Source.out_of_memory`."""
        n_bytes = self._restarted.get(worker)
        return f"its nanny restarted it at {shown(n_bytes)}" if n_bytes is not None else ""


class Counters:
    """The counters of the workers' cgroups, read by their nannies, which outlive them.

    Parameters
    ----------
    read
        Returns how many processes the kernel has killed for memory in the cgroup of each nanny, by its worker's host.
    """

    def __init__(self, read: Callable[[], Mapping[str, int]]):
        self._read = read
        self._before: Mapping[str, int] = {}
        self._more: dict[str, int] = {}

    def look(self) -> None:
        """As :meth:`Source.look`; the first time it only notes how the counters stand."""
        now = self._read()
        self._more = {host: n - self._before[host] for host, n in now.items() if n > self._before.get(host, n)}
        self._before = {**self._before, **now}

    def out_of_memory(self, worker: str) -> str:
        """As :meth:`Source.out_of_memory`."""
        n = self._more.get(host_of(worker), 0)
        return f"the kernel killed {n} processes of its container for memory" if n else ""


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
        self._memory: dict[str, str] = {}
        self._changed = threading.Condition()

    def hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the scheduler's topic ``all``."""
        _, said = event
        if said["action"] == "remove-worker" and not said["expected"]:
            with self._changed:
                self._heard.append((self._clock(), said["worker"], frozenset(said["processing-tasks"])))

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
        for _, worker, keys in due:
            memory = next(filter(None, (source.out_of_memory(worker) for source in self._sources)), "")
            self._judged.put(Departure(worker, keys, memory))
            with self._changed:
                self._memory[worker] = memory
                self._changed.notify_all()

    def take(self) -> list[Departure]:
        """Return those that were judged since the last call."""
        found = []
        while not self._judged.empty():
            found.append(self._judged.get())
        return found

    def out_of_memory(self, worker: str, patience_s: float = _PATIENCE_SECONDS) -> str:
        """Return what says that a worker ran out of memory; waits until that is known, a few seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: worker in self._memory, patience_s)
            return self._memory.get(worker, "")
