"""Whether the runner itself limits a job, from its CPU time and the slots that are idle. Pure."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

WATCHED_SECONDS = 60.0
"""How long the runner must have been the limit. Starts, pauses and single large commits are shorter."""

LOOK_SECONDS = 1.0
"""The least time between two looks."""

NEARLY_ONE_CPU = 0.9
"""Python runs one thread at a time, so that a runner that uses this much has hardly any CPU time left."""


@dataclass(frozen=True)
class Overload:
    """The load that was seen while the runner was the limit.

    Parameters
    ----------
    cpus
        Processors that the runner used on average.
    idle
        Slots that had no task, in half of the looks at least.
    """

    cpus: float
    idle: int


class RunnerLoad:
    """Finds out, once, that the runner is too slow for its slots."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float, int]] = deque()
        self._is_told = False

    def is_due(self, at_s: float) -> bool:
        """Tell whether the next look is due."""
        return not self._is_told and (not self._looks or at_s - self._looks[-1][0] >= LOOK_SECONDS)

    def look(self, at_s: float, cpu_s: float, idle: int) -> Overload | None:
        """Take a look; return what was seen if the runner has been the limit for a minute, but only once.

        Parameters
        ----------
        at_s, cpu_s
            The time, and the CPU time that the runner has used until then (s).
        idle
            Slots without a task, although there are simulations to run.
        """
        self._looks.append((at_s, cpu_s, idle))
        while len(self._looks) > 1 and at_s - self._looks[1][0] >= WATCHED_SECONDS:
            self._looks.popleft()
        first_s, first_cpu_s, _ = self._looks[0]
        if self._is_told or at_s - first_s < WATCHED_SECONDS:
            return None
        found = Overload(
            cpus=(cpu_s - first_cpu_s) / (at_s - first_s),
            idle=statistics.median_low(n for _, _, n in self._looks),
        )
        self._is_told = found.cpus >= NEARLY_ONE_CPU and found.idle > 0
        return found if self._is_told else None
