"""Finds out which workers were lost, what they ran, and why.

Dask's scheduler says what was on a worker that it lost. Why it went, others say (:class:`LossSource`): the nanny that
restarted it, what Kubernetes says of its pod (:mod:`mops.k8s.pod_ends`, where the runner is a pod itself), and the
counter of its cgroup.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mops.system.cgroup import OomKills
from mops.units import bytes_text

JOIN_SECONDS = 1.0
"""What a source knows of a departure may come a little after it."""

NEAR_SECONDS = 15.0
"""What it says is believed of a departure that is no farther away: sources are looked at every ten seconds."""

POD_SECONDS = 20.0
"""Kubernetes writes how a container ended into its pod's status a second or two after it has, and a nanny is asked
again when its next worker is there. On a busy node both take several times as long."""

_JUDGING_SECONDS = 10.0
"""From when a departure is due until it is judged, at most: those who judge look every two seconds."""

_ASK_AGAIN_SECONDS = 0.25

_SAME_SECONDS = 5.0
"""By how much a machine's clock may be set while a container lives."""


class LossCause(Protocol):
    """Why a worker went, as a source has it."""

    @property
    def said(self) -> str:
        """It in words; empty: nobody can tell."""

    @property
    def memory(self) -> bool:
        """Whether it ran out of memory."""

    @property
    def removed(self) -> bool:
        """Whether it was taken away, so that nothing that it ran is to blame."""


@dataclass(frozen=True)
class KnownCause:
    """A :class:`LossCause` that is known here."""

    said: str
    memory: bool = False
    removed: bool = False


UNKNOWN = KnownCause("")


@dataclass(frozen=True)
class WorkerLoss:
    """A worker that is gone.

    Parameters
    ----------
    worker
        Its address.
    keys
        The Dask keys of the tasks that it ran, and of those whose results only it had.
    cause
        Why, as far as anybody knows.
    """

    worker: str
    keys: frozenset[str]
    cause: LossCause = UNKNOWN


class LossSource(Protocol):
    """Somebody who knows why workers go."""

    def look(self) -> None:
        """Learn what has happened since the last look, off the event loops."""

    def cause(self, worker: str, at: float) -> LossCause | None:
        """Return why a worker went ``at`` (s, monotonic), off the event loops.

        ``UNKNOWN``: it is there to be asked, and will know nothing later either; None: it knows nothing, or not yet.
        """


class Pods(LossSource, Protocol):
    """Kubernetes, where the runner is a pod: also of runners' pods it knows why they ended."""

    def runner_out_of_memory(self, pod: str) -> str:
        """Return what says that a runner's pod ran out of memory; empty: nothing does."""


class NannyRestarts:
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

    def cause(self, worker: str, at: float) -> LossCause | None:
        """As :meth:`LossSource.cause`."""
        when, n_bytes = self._restarted.get(worker, (-math.inf, 0))
        if abs(when - at) > NEAR_SECONDS:
            return None
        del self._restarted[worker]  # another worker may have its address later
        return KnownCause(f"its nanny restarted it at {bytes_text(n_bytes)}", memory=True)


@dataclass(frozen=True)
class _Reading:
    """A container's counter: between which two times (s, monotonic) it was read; since when it is there, at most."""

    kills: OomKills
    asked_at: float
    answered_at: float

    @property
    def began(self) -> float:
        return self.answered_at - self.kills.age_s

    def same(self, other: _Reading) -> bool:
        """Tell whether it is the same container's: another one counts from 0."""
        return abs(self.kills.born - other.kills.born) < _SAME_SECONDS


class OomKillCounters:
    """The counters of the workers' cgroups, read by their nannies, which outlive them.

    Parameters
    ----------
    read
        Returns what the kernel has killed for memory in the container of each nanny that answers, by its worker's host.
        Dask asks those with a worker only.
    """

    def __init__(self, read: Callable[[], Mapping[str, OomKills]], clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._last: dict[str, _Reading] = {}
        self._rose: dict[str, tuple[float, float, int]] = {}

    def look(self) -> None:
        """As :meth:`LossSource.look`."""
        asked_at = self._clock()
        found, answered_at = self._read(), self._clock()
        for host, kills in found.items():
            reading = _Reading(kills, asked_at, answered_at)
            before = self._last.get(host)
            if before is not None:
                self._note(host, before, reading)
            self._last[host] = reading

    def _note(self, host: str, before: _Reading, now: _Reading) -> None:
        more = now.kills.n - (before.kills.n if now.same(before) else 0)
        if more > 0:
            self._rose[host] = before.asked_at, now.answered_at, more

    def cause(self, worker: str, at: float) -> LossCause | None:
        """As :meth:`LossSource.cause`: the counter rose at about that time, for whichever process it was.

        A nanny that answers has outlived its worker, if its container was there before; then no pod's status will tell
        more. Else the container may have ended, and started again.
        """
        last = self._last.get(host_of(worker))
        if last is None or last.asked_at < at or last.began >= at:
            return None
        return self.likely(worker, at)

    def likely(self, worker: str, at: float) -> LossCause:
        """Return why a worker went ``at`` (s, monotonic), where nobody can tell whether its container ended as well."""
        since, until, n = self._rose.get(host_of(worker), (math.inf, -math.inf, 0))
        if since <= at <= until + NEAR_SECONDS:
            return KnownCause(f"kills for memory in its container at that time: {n}", memory=True)
        return UNKNOWN


def host_of(address: str) -> str:
    """Return the host of a worker's address."""
    return address.rpartition("://")[2].rpartition(":")[0]


class WorkerLosses:
    """Hears of workers that went, and joins what is known of each. Thread-safe.

    Parameters
    ----------
    sources
        Asked in their order; the first that knows is believed.
    late_s
        Seconds after which no source will know what it does not know yet.
    likely
        Says then what is likely, of a worker and when it went (s, monotonic).
    """

    def __init__(
        self,
        sources: Sequence[LossSource],
        clock: Callable[[], float] = time.monotonic,
        late_s: float = JOIN_SECONDS,
        likely: Callable[[str, float], LossCause] = lambda _worker, _at: UNKNOWN,
    ):
        self._sources, self._clock, self._late_s, self._likely = sources, clock, late_s, likely
        self._heard: list[tuple[float, str, frozenset[str]]] = []
        self._judged: queue.SimpleQueue[WorkerLoss] = queue.SimpleQueue()
        self._causes: dict[str, tuple[float, LossCause]] = {}
        self._spared: dict[str, LossCause] = {}
        self._changed = threading.Condition()

    def hear(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take an event of the scheduler's topic ``all``."""
        _, said = event
        if said["action"] == "remove-worker" and not said["expected"]:
            keys = frozenset((*said["processing-tasks"], *said["lost-computed-tasks"]))
            with self._changed:
                self._causes.pop(said["worker"], None)  # of another worker, which had its address before
                self._heard.append((self._clock(), said["worker"], keys))

    def look(self) -> None:
        """Let the sources note how things stand now."""
        for source in self._sources:
            source.look()

    def judge(self) -> None:
        """Ask the sources about those who went a moment ago."""
        now = self._clock()  # before the look, which may take seconds: what comes meanwhile it may have missed
        with self._changed:
            due = [heard for heard in self._heard if now - heard[0] >= JOIN_SECONDS]
        if due:
            self.look()
        for heard in due:
            self._judge(heard, late=now - heard[0] >= self._late_s)

    def _judge(self, heard: tuple[float, str, frozenset[str]], *, late: bool) -> None:
        at, worker, keys = heard
        cause = next((known for source in self._sources if (known := source.cause(worker, at)) is not None), None)
        if cause is None and not late:
            return  # asked again at the next look
        loss = WorkerLoss(worker, keys, self._likely(worker, at) if cause is None else cause)
        self._judged.put(loss)
        with self._changed:
            self._heard.remove(heard)
            self._causes[worker] = at, loss.cause
            if loss.cause.removed:
                self._spared |= dict.fromkeys(keys, loss.cause)
            self._changed.notify_all()

    def take(self) -> list[WorkerLoss]:
        """Return those that were judged since the last call."""
        found = []
        while not self._judged.empty():
            found.append(self._judged.get())
        return found

    def cause(
        self,
        key: str,
        worker: str,
        asked_at: float,
        given_up: Callable[[], bool] = lambda: False,
        patience_s: float | None = None,
    ) -> LossCause:
        """Return why the workers of a task died that Dask has given up; waits a little until it is known.

        Where one of them was taken away, that is the cause: the task has killed fewer than it was given up for.

        Parameters
        ----------
        worker
            The last of them, which had just gone when it was asked for.
        asked_at
            When that was (s, monotonic): the wait counts from then, so that many who ask in turn wait once.
        given_up
            Whether nobody waits for it any more.
        """
        since = asked_at - NEAR_SECONDS
        deadline = asked_at + (self._late_s + _JUDGING_SECONDS if patience_s is None else patience_s)

        def known() -> bool:
            return self._causes.get(worker, (-math.inf, UNKNOWN))[0] >= since

        with self._changed:
            while not (found := known()) and self._clock() < deadline and not given_up():
                self._changed.wait(_ASK_AGAIN_SECONDS)
            return self._spared.pop(key, self._causes[worker][1] if found else UNKNOWN)
