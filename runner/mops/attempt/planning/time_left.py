"""Estimates how long an attempt will still take, from what has run. Pure: the caller gives the time.

The work that is left is the simulations that have not run and must, times the mean of those that ran, on one slot. What
runs has done a part of its work already. That matters for long simulations, of which all slots finish one at the same
time. If slots wait between tasks, because the runner or the machine is the limit, the time grows by the same factor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from mops.attempt.planning.recent_tasks import RecentTasks
from mops.task import Task

LOOK_SECONDS = 0.25
"""The least time between two estimates."""

_WINDOW_SECONDS = 20.0
_TASKS_IN_WINDOW = 10
"""Waits are measured only if the window has this many tasks of each slot: else it cuts tasks at its ends."""


class TimeLeft:
    """The estimate of one attempt.

    Parameters
    ----------
    recent
        The tasks that have finished.
    n_simulations
        Returns how many simulations a task has.
    """

    def __init__(self, recent: RecentTasks, n_simulations: Callable[[Task], int]):
        self._recent, self._n_simulations = recent, n_simulations
        self._slot_s = 0.0
        self._marks: deque[tuple[float, float, float]] = deque()  # time, and slots' busy time and all time until then
        self._began: dict[int, tuple[float, int]] = {}
        self._looked_at = float("-inf")
        self._slots = 0
        self.seconds: float | None = None
        """The seconds that are left; None: not known yet, or what is left takes longer than anything before it."""

    def look(self, now: float, slots: int, n_left: int, in_flight: Mapping[int, Task], n_slow: int = 0) -> None:
        """Estimate again, if it is time to.

        Parameters
        ----------
        now
            The time (s).
        slots
            Simulations that run at once.
        n_left
            Simulations that have not run and must.
        in_flight
            The tasks that were sent, by number. As many as there are slots run: those that were sent first.
        n_slow
            How many of those that are left run much longer than others. Nothing tells when they end.
        """
        if n_left and now - self._looked_at < LOOK_SECONDS:
            return
        self._note_slots(now)
        self._slots = max(slots - n_slow, 1)
        self._recent.forget_old(slots)
        self._began = {
            number: self._began.get(number) or (now, self._n_simulations(task))
            for number, task in islice(in_flight.items(), slots)
        }
        self.seconds = self._estimate(now, max(n_left - n_slow, 0), n_slow)

    def _note_slots(self, now: float) -> None:
        """Add up the time of all slots since the first task came back."""
        if self._marks:
            self._slot_s += self._slots * (now - self._looked_at)
        self._looked_at = now
        if self._recent.mean_s is not None:
            self._marks.append((now, self._recent.busy_s, self._slot_s))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()

    def _estimate(self, now: float, n_left: int, n_slow: int) -> float | None:
        if not n_left:
            return 0.0
        if (each_s := self._recent.mean_s) is None:
            return None
        # The slow ones run longest. They are left out of all that is left, so nothing of them is done.
        done_s = sum(min(now - began, n * each_s) for began, n in sorted(self._began.values())[n_slow:])
        left_s = n_left * each_s - done_s
        if left_s <= 0:  # all that is left runs, and takes longer than others
            return None
        return left_s * self._waits() / min(self._slots, n_left)

    def _waits(self) -> float:
        """Return the time of the slots as a multiple of the time in which they ran tasks, at least 1."""
        (first, busy, slot_s), (last, busy_now, slot_s_now) = self._marks[0], self._marks[-1]
        if last - first < max(_TASKS_IN_WINDOW * self._recent.task_s, LOOK_SECONDS) or busy_now <= busy:
            return 1.0
        return max((slot_s_now - slot_s) / (busy_now - busy), 1.0)
