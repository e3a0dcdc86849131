"""What the tasks that ended last tell about the time of a simulation. Pure.

Simulations that were reused did not run, so they do not count. Many that fail at once may come before long ones, so
only recent ones count: enough for a mix of short and long ones, and few enough to follow a change.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

LEAST_SIMULATIONS = 200
"""With 1 of 20 simulations ten times as long as others, the mean of so many varies by 10 %."""

LEAST_PER_SLOT = 5
"""The same for each slot: on many slots, the first ones to end are the short ones."""

LEAST_SLOT_SECONDS = 2.0
"""The least time of each slot that counts: 200 simulations of 0 ms take 0.1 s, in which other things disturb."""


@dataclass(frozen=True)
class _Task:
    seconds: float
    n_ran: float
    n_good: float

    def last(self, fraction: float) -> _Task:
        """Return what counts if the first part of a task no longer does."""
        return _Task(self.seconds * fraction, self.n_ran * fraction, self.n_good * fraction)


class RecentTasks:
    """The tasks that ended last."""

    def __init__(self) -> None:
        self._tasks: deque[_Task] = deque()
        self._n_tasks = self._n_left_out = 0
        self._seconds = self._n_ran = 0.0
        self._is_warm = False
        self.busy_s = 0.0
        """The time of slots that all tasks took, old ones too."""

    def add(self, seconds: float, n_ran: int, n_failed: int = 0, n_reused: int = 0) -> None:
        """Add a task.

        Parameters
        ----------
        seconds
            Its time on its slot.
        n_ran, n_failed, n_reused
            How many simulations it ran, how many of them failed, and how many more it took from other jobs.
        """
        self.busy_s += seconds
        if n_reused and not n_ran:
            return
        self._tasks.append(_Task(seconds, n_ran, n_ran - n_failed))
        self._n_tasks, self._seconds, self._n_ran = self._n_tasks + 1, self._seconds + seconds, self._n_ran + n_ran

    def forget_old(self, slots: int) -> None:
        """Forget what is old; and the first task of each slot, which imports and compiles, once others have ended."""
        if not self._is_warm and self._n_tasks >= 2 * slots:
            self._is_warm = True
            while self._n_left_out < slots:
                self._replace_first(0.0)
        least_n, least_s = max(LEAST_SIMULATIONS, LEAST_PER_SLOT * slots), LEAST_SLOT_SECONDS * slots
        while self._tasks and self._n_ran > least_n and self._seconds > least_s:
            first = self._tasks[0]
            surplus_n, surplus_s = self._n_ran - least_n, self._seconds - least_s
            surplus = min(surplus_n / max(first.n_ran, 1e-9), surplus_s / max(first.seconds, 1e-9))
            if surplus < 1:
                self._replace_first(1 - surplus)
                return
            self._replace_first(0.0)

    @property
    def mean_s(self) -> float | None:
        """The mean time of a simulation on one slot, of failed ones too; None: none has taken any time."""
        return self._seconds / self._n_ran if self._n_ran and self._seconds else None

    @property
    def median_s(self) -> float | None:
        """The median time of a simulation in the tasks of which most succeeded; None: there is none.

        Many fail at once, which says nothing.
        """
        each_s = [task.seconds / task.n_good for task in self._tasks if task.n_good > task.n_ran / 2]
        return statistics.median(each_s) if each_s else None

    @property
    def task_s(self) -> float:
        """The mean time of a task; 0 before one has ended."""
        return self._seconds / max(len(self._tasks), 1)

    def _replace_first(self, fraction: float) -> None:
        first = self._tasks.popleft()
        left = first.last(fraction)
        if fraction:
            self._tasks.appendleft(left)
        else:
            self._n_left_out += 1
        self._seconds -= first.seconds - left.seconds
        self._n_ran -= first.n_ran - left.n_ran
