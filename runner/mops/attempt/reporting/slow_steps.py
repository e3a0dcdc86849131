"""Decides which running simulations and targets stand out because they run much longer than others. Pure.

A simulation that hangs keeps its slot. Without a time limit nothing else would show it: the counts only stop.
"""

from __future__ import annotations

from collections.abc import Sequence

from mops.attempt.planning.recent_tasks import RecentTasks
from mops.storage.live_record import SlowStep
from mops.task import RunningStep

LEAST_SECONDS = 10.0
"""A simulation that has run less than this never stands out. Workers report none that has run less."""

UNKNOWN_SECONDS = 60.0
"""The same before a simulation has succeeded."""

TIMES_MEDIAN = 10.0
"""A simulation stands out if it has run this many times as long as the median of those that succeeded last."""

LOOK_SECONDS = 2.0
"""The time between two looks at what runs."""

_MOST_KEPT = 100
_MOST_LOGGED = 20


class SlowSteps:
    """What stands out in one attempt. The caller gives the time, in seconds since the epoch.

    Parameters
    ----------
    recent
        The tasks that have finished.
    """

    def __init__(self, recent: RecentTasks) -> None:
        self._recent = recent
        self._seen: set[tuple[int, int | None, str | None]] = set()
        self._look_at = 0.0
        self.found: tuple[SlowStep, ...] = ()
        """What stood out at the last look, the longest first."""

    def is_due(self, now: float) -> bool:
        """Tell whether it is time for a look."""
        return now >= self._look_at

    def look(self, now: float, running: Sequence[RunningStep]) -> list[SlowStep]:
        """Look at what runs; return what stands out for the first time, for the log."""
        self._look_at = now + LOOK_SECONDS
        median_s = self._recent.median_s
        least_s = UNKNOWN_SECONDS if median_s is None else max(LEAST_SECONDS, TIMES_MEDIAN * median_s)
        longest = sorted((step for step in running if step.seconds >= least_s), key=lambda step: -step.seconds)
        self.found = tuple(_slow(step, now, median_s) for step in longest[:_MOST_KEPT])
        new = [step for step in self.found if (step.group, step.replicate, step.target) not in self._seen]
        new = new[: _MOST_LOGGED - len(self._seen)]
        self._seen.update((step.group, step.replicate, step.target) for step in new)
        return new


def _slow(step: RunningStep, now: float, median_s: float | None) -> SlowStep:
    # The median is that of simulations, so it says nothing about a target.
    times = step.seconds / median_s if median_s and step.replicate is not None else None
    what = (step.group, step.param_id, step.replicate, step.target, step.worker)
    return SlowStep(*what, since=max(now - step.seconds, 0.0), seconds=step.seconds, times_median=times)
