"""Finds out which workers were lost, which tasks they had, and why they were lost.

Dask's scheduler reports which tasks a lost worker had. Three sources (:class:`LossSource`) know causes: the nanny that
restarted the worker, Kubernetes (:mod:`mops.k8s.pod_ends`), and the counter of kills in the worker's cgroup.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mops.system.resources import OomKills
from mops.units import bytes_text
from mops.verdicts import LossCause

JOIN_SECONDS = 1.0  # until the sources are asked about a loss, because the scheduler may hear of it before they do
NEAR_SECONDS = 15.0  # at most between a loss and an event that explains it: sources look for events every ten seconds

# How long Kubernetes may take to report the end of a container, and a nanny to answer again. Kubernetes writes the end
# to the pod's status after a second or two, and a nanny can be asked when its next worker has started. On a busy node
# both take several times as long.
POD_SECONDS = 20.0

_JUDGING_SECONDS = 10.0  # at most, until a loss meets WorkerLosses.judge, which is called every two seconds
_GIVEN_UP_SECONDS = 0.25  # between two checks whether a caller gives up
_CLOCK_CHANGE_SECONDS = 5.0  # by how much a machine's clock may be set while a container lives


UNKNOWN = LossCause("")


@dataclass(frozen=True)
class WorkerLoss:
    """A worker that was lost."""

    worker: str  # its address
    running: frozenset[str]  # keys of the tasks that it ran
    results: frozenset[str] = frozenset()  # keys of finished tasks whose results only it had: Dask runs them again
    cause: LossCause = UNKNOWN

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all tasks that run again."""
        return self.running | self.results

    def __str__(self) -> str:
        what = "ran out of memory" if self.cause.memory else "was lost"
        why = f": {self.cause.text}" if self.cause.text else ""
        return f"worker {self.worker} {what}{why}"


class LossSource(Protocol):
    """A source of causes. Its methods may take seconds, so call them outside of event loops."""

    def look(self) -> None:
        """Collect what has happened since the last call."""

    def cause(self, worker: str, at: float) -> LossCause | None:
        """Return why a worker was lost at a time (s, monotonic); None: this source does not know, or not yet.

        ``UNKNOWN``: no source will ever know more.
        """


class Pods(LossSource, Protocol):
    """Kubernetes as a source, which also knows why runners' pods ended."""

    def runner_out_of_memory(self, pod: str) -> str:
        """Return the evidence that a runner's pod ran out of memory; empty if there is none."""


class NannyRestarts:
    """Restarts of workers that used more memory than Dask allows, as their nannies report them to the scheduler."""

    TOPIC = "worker-restart-memory"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._restarted: dict[str, tuple[float, int]] = {}

    def on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the topic."""
        _, restart = event
        self._restarted[restart["worker"]] = self._clock(), restart["rss"]

    def look(self) -> None:
        """Do nothing: Dask delivers the events."""

    def cause(self, worker: str, at: float) -> LossCause | None:
        """As :meth:`LossSource.cause`."""
        when, n_bytes = self._restarted.get(worker, (-math.inf, 0))
        if abs(when - at) > NEAR_SECONDS:
            return None
        del self._restarted[worker]  # another worker may get its address
        return LossCause(f"its nanny restarted it at {bytes_text(n_bytes)}", memory=True)


@dataclass(frozen=True)
class _Reading:
    kills: OomKills
    asked_at: float  # read after this time and before the next one (s, monotonic)
    answered_at: float


class OomKillCounters:
    """The kernel's counts of kills for memory in the workers' containers, read by the nannies, which outlive workers.

    ``read`` returns the count of each container whose nanny answers, by host. Dask asks only nannies with a worker.
    """

    def __init__(self, read: Callable[[], Mapping[str, OomKills]], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._last: dict[str, _Reading] = {}
        self._rises: dict[str, tuple[float, float, int]] = {}

    def look(self) -> None:
        """As :meth:`LossSource.look`."""
        asked_at = self._clock()
        found, answered_at = self._read(), self._clock()
        for host, kills in found.items():
            now, before = _Reading(kills, asked_at, answered_at), self._last.get(host)
            if before is not None:
                is_same_container = abs(kills.born - before.kills.born) < _CLOCK_CHANGE_SECONDS
                rise = kills.n - (before.kills.n if is_same_container else 0)  # a new container's counter starts at 0
                if rise > 0:
                    self._rises[host] = before.asked_at, answered_at, rise
            self._last[host] = now

    def cause(self, worker: str, at: float) -> LossCause | None:
        """As :meth:`LossSource.cause`: a rise of the counter near that time, for any process of the container."""
        # If a nanny answers from a container that started before the loss, the container has outlived the worker, so
        # the pod's status will not explain the loss. Without this answer, the container may have ended too.
        last = self._last.get(host_of(worker))
        if last is None or last.asked_at < at or last.answered_at - last.kills.age_s >= at:
            return None
        return self.likely_cause(worker, at)

    def likely_cause(self, worker: str, at: float) -> LossCause:
        """Return why a worker was lost at a time, if the end of its container cannot be ruled out."""
        since, until, n = self._rises.get(host_of(worker), (math.inf, -math.inf, 0))
        if since <= at <= until + NEAR_SECONDS:
            return LossCause(f"kills for memory in its container at that time: {n}", memory=True)
        return UNKNOWN


def host_of(address: str) -> str:
    """Return the host of a worker's address."""
    return address.rpartition("://")[2].rpartition(":")[0]


class WorkerLosses:
    """Collects losses of workers and joins them with their causes. Thread-safe."""

    def __init__(
        self,
        sources: Sequence[LossSource],  # the first one that knows a cause decides
        clock: Callable[[], float] = time.monotonic,
        late_s: float = JOIN_SECONDS,  # how long after a loss a source may still learn its cause
        likely: Callable[[str, float], LossCause] = lambda _worker, _at: UNKNOWN,  # the likely cause after that time
    ):
        self._sources, self._clock, self._late_s, self._likely = sources, clock, late_s, likely
        self._unjudged: list[tuple[float, WorkerLoss]] = []  # when Dask reported each (s, monotonic)
        self._judged: queue.SimpleQueue[WorkerLoss] = queue.SimpleQueue()
        self._causes: dict[str, tuple[float, LossCause]] = {}  # by worker: when it was lost, and why
        self._removals: dict[str, LossCause] = {}  # by key of a task whose worker was removed
        self._changed = threading.Condition()

    def on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the scheduler's topic ``all``."""
        _, action = event
        if action["action"] == "remove-worker" and not action["expected"]:
            running, results = frozenset(action["processing-tasks"]), frozenset(action["lost-computed-tasks"])
            loss = WorkerLoss(action["worker"], running, results)
            with self._changed:
                self._causes.pop(loss.worker, None)  # of another worker that had this address before
                self._unjudged.append((self._clock(), loss))

    def look(self) -> None:
        """Let the sources collect what has happened."""
        for source in self._sources:
            source.look()

    def judge(self) -> None:
        """Ask the sources about the losses that they may have heard of by now."""
        now = self._clock()  # before the look, which may take seconds and miss what happens meanwhile
        with self._changed:
            due = [(at, loss) for at, loss in self._unjudged if now - at >= JOIN_SECONDS]
        if due:
            self.look()
        for at, loss in due:
            known = (source.cause(loss.worker, at) for source in self._sources)
            cause = next((cause for cause in known if cause is not None), None)
            if cause is None and now - at >= self._late_s:
                cause = self._likely(loss.worker, at)
            if cause is None:
                continue
            self._judged.put(replace(loss, cause=cause))
            with self._changed:
                self._unjudged.remove((at, loss))
                self._causes[loss.worker] = at, cause
                if cause.removed:
                    self._removals |= dict.fromkeys(loss.keys, cause)
                self._changed.notify_all()

    def take(self) -> list[WorkerLoss]:
        """Return the losses that were judged since the last call."""
        found = []
        while not self._judged.empty():
            found.append(self._judged.get())
        return found

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """Return why the workers of a task died, waiting until the cause of the last death is known.

        The parameters are those of :meth:`mops.cluster.base.Cluster.loss_cause`.
        """
        since = asked_at - NEAR_SECONDS
        # From the notice of the death, so that callers that take turns do not wait one after the other.
        deadline = asked_at + self._late_s + _JUDGING_SECONDS
        with self._changed:
            while True:
                lost_at, cause = self._causes.get(worker, (-math.inf, UNKNOWN))
                if lost_at >= since:
                    # If one of the workers was removed, the task has ended fewer workers than Dask counted.
                    return self._removals.pop(key, cause)
                if self._clock() >= deadline or given_up():
                    return self._removals.pop(key, UNKNOWN)
                self._changed.wait(_GIVEN_UP_SECONDS)
