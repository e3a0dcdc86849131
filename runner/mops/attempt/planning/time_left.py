"""Estimates how long an attempt will still take, from what has run. Pure: the caller gives the time.

The work that is left is the simulations that have not finished times the mean of those that have, on one slot. What
runs has done a part of its work already. That matters for long simulations, of which all slots finish one at the same
time. If slots wait between tasks, because the runner or the machine is the limit, the time grows by the same factor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice

from mops.task import Task

LOOK_SECONDS = 0.25
"""The least time between two estimates."""

_TASKS = 500
"""The mean is that of so many recent tasks: few enough to follow a change, enough for a mix of short and long ones."""

_WINDOW_SECONDS = 20.0
_TASKS_IN_WINDOW = 10
"""Waits are measured only if the window has this many tasks of each slot: else it cuts tasks at its ends."""


class TimeLeft:
    """The estimate of one attempt.

    Parameters
    ----------
    n_simulations
        Returns how many simulations a task has.
    """

    def __init__(self, n_simulations: Callable[[Task], int]):
        self._n_simulations = n_simulations
        self._finished: deque[tuple[float, int]] = deque()
        self._seconds, self._n = 0.0, 0  # the sums of the above
        self._busy_s = self._slot_s = 0.0
        self._marks: deque[tuple[float, float, float]] = deque()  # time, and the two above at that time
        self._began: dict[int, tuple[float, int]] = {}
        self._looked_at = float("-inf")
        self._is_warm = False
        self._slots = 0
        self.seconds: float | None = None
        """The seconds that are left; None: not known yet, or what is left takes longer than anything before it."""

    def task_finished(self, seconds: float, n_simulations: int) -> None:
        """Take the seconds of a task on its slot, and how many simulations it ran."""
        if len(self._finished) == _TASKS:
            self._forget_first()
        self._finished.append((seconds, n_simulations))
        self._seconds, self._n = self._seconds + seconds, self._n + n_simulations
        self._busy_s += seconds

    def look(self, now: float, slots: int, n_left: int, in_flight: Mapping[int, Task], n_slow: int = 0) -> None:
        """Estimate again, if it is time to.

        Parameters
        ----------
        now
            The time (s).
        slots
            Simulations that run at once.
        n_left
            Simulations that have not finished.
        in_flight
            The tasks that were sent, by number. As many as there are slots run: those that were sent first.
        n_slow
            How many of those that are left run much longer than others. Nothing tells when they end.
        """
        if n_left and now - self._looked_at < LOOK_SECONDS:
            return
        self._note_slots(now)
        self._slots = max(slots - n_slow, 1)
        self._leave_out_first_calls(slots)
        self._began = {
            number: self._began.get(number) or (now, self._n_simulations(task))
            for number, task in islice(in_flight.items(), slots)
        }
        self.seconds = self._estimate(now, max(n_left - n_slow, 0), n_slow)

    def _forget_first(self) -> None:
        seconds, n = self._finished.popleft()
        self._seconds, self._n = self._seconds - seconds, self._n - n

    def _leave_out_first_calls(self, slots: int) -> None:
        """Forget the first task of each slot once there are as many others: its first call imports and compiles."""
        if not self._is_warm and len(self._finished) >= 2 * slots:
            self._is_warm = True
            for _ in range(slots):
                self._forget_first()

    def _note_slots(self, now: float) -> None:
        """Add up the time of all slots since the first task came back."""
        if self._n and self._marks:
            self._slot_s += self._slots * (now - self._looked_at)
        self._looked_at = now
        if self._n:
            self._marks.append((now, self._busy_s, self._slot_s))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()

    def _estimate(self, now: float, n_left: int, n_slow: int) -> float | None:
        if not n_left:
            return 0.0
        if not self._n or not self._seconds:
            return None
        each_s = self._seconds / self._n
        # The slow ones run longest. They are left out of all that is left, so nothing of them is done.
        done_s = sum(min(now - began, n * each_s) for began, n in sorted(self._began.values())[n_slow:])
        left_s = n_left * each_s - done_s
        if left_s <= 0:  # all that is left runs, and takes longer than others
            return None
        return left_s * self._waits() / min(self._slots, n_left)

    def _waits(self) -> float:
        """Return the time of the slots as a multiple of the time in which they ran tasks, at least 1."""
        (first, busy, slot_s), (last, busy_now, slot_s_now) = self._marks[0], self._marks[-1]
        task_s = self._seconds / len(self._finished)
        if last - first < max(_TASKS_IN_WINDOW * task_s, LOOK_SECONDS) or busy_now <= busy:
            return 1.0
        return max((slot_s_now - slot_s) / (busy_now - busy), 1.0)
