"""What a simulation takes: the time that is left, and what runs much longer than others. Pure.

Simulations that were reused did not run, so they do not count. Many that fail at once may come before long ones, so
only recent ones count: enough for a mix of short and long ones, and few enough to follow a change.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mops.storage.progress_record import SlowStep
from mops.task import RunningStep, Task

LEAST_SIMULATIONS = 200  # with 1 of 20 simulations ten times as long as others, the mean of so many varies by 10 %
LEAST_PER_SLOT = 5  # the same for each slot: on many slots, the first ones to end are the short ones
# The least time of each slot that counts: 200 simulations of 0 ms take 0.1 s, in which other things disturb.
LEAST_SLOT_SECONDS = 2.0


@dataclass(frozen=True)
class _Task:
    seconds: float
    n_ran: float
    n_good: float


class RecentTasks:
    """The tasks that ended last."""

    def __init__(self) -> None:
        self._tasks: deque[_Task] = deque()
        self._n_tasks = self._n_left_out = 0
        self._seconds = self._n_ran = 0.0
        self._is_warm = False
        self.busy_s = 0.0  # the time of slots that all tasks took, old ones too

    def add(self, seconds: float, n_ran: int, n_failed: int = 0, n_reused: int = 0) -> None:
        """Add a task: its time on its slot, the simulations that it ran, and those that it took from other jobs."""
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
        """The median time of a simulation in the tasks of which most succeeded; None: there is none."""
        # Many simulations that fail at once say nothing.
        each_s = [task.seconds / task.n_good for task in self._tasks if task.n_good > task.n_ran / 2]
        return statistics.median(each_s) if each_s else None

    @property
    def task_s(self) -> float:
        """The mean time of a task; 0 before one has ended."""
        return self._seconds / max(len(self._tasks), 1)

    def _replace_first(self, fraction: float) -> None:
        first = self._tasks.popleft()
        left = _Task(first.seconds * fraction, first.n_ran * fraction, first.n_good * fraction)
        if fraction:
            self._tasks.appendleft(left)
        else:
            self._n_left_out += 1
        self._seconds -= first.seconds - left.seconds
        self._n_ran -= first.n_ran - left.n_ran


LOOK_SECONDS = 0.25  # the least time between two estimates
_WINDOW_SECONDS = 20.0
# Waits are measured only if the window has this many tasks of each slot: else it cuts tasks at its ends.
_TASKS_IN_WINDOW = 10


class TimeLeft:
    """The estimate of one attempt."""

    def __init__(self, recent: RecentTasks, n_simulations: Callable[[Task], int]):  # of a task, those that must run
        self._recent, self._n_simulations = recent, n_simulations
        self._slot_s = 0.0
        self._marks: deque[tuple[float, float, float]] = deque()  # time, and slots' busy time and all time until then
        self._began: dict[int, tuple[float, int]] = {}
        self._looked_at = float("-inf")
        self._slots = 0
        # The seconds that are left; None: not known yet, or what is left takes longer than anything before it.
        self.seconds: float | None = None

    def look(
        self,
        now: float,
        slots: int,
        n_left: int,  # simulations that have not run and must
        in_flight: Mapping[int, Task],  # by number; as many as there are slots run: those that were sent first
        n_slow: int = 0,  # how many of those left run much longer than others; nothing tells when they end
    ) -> None:
        """Estimate again, if it is time to."""
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


# A simulation that has run less than this never stands out. Workers report none that has run less.
LEAST_SLOW_SECONDS = 10.0
UNKNOWN_SECONDS = 60.0  # the same before a simulation has succeeded
# A simulation stands out if it has run this many times as long as the median of those that succeeded last.
TIMES_MEDIAN = 10.0
SLOW_LOOK_SECONDS = 2.0  # the time between two looks at what runs
_MOST_KEPT = 100
_MOST_LOGGED = 20


class SlowSteps:
    """What stands out in one attempt. The caller gives the time, in seconds since the epoch."""

    def __init__(self, recent: RecentTasks) -> None:
        self._recent = recent
        self._seen: set[tuple[int, int | None, str | None]] = set()
        self._look_at = 0.0
        self.found: tuple[SlowStep, ...] = ()  # what stood out at the last look, the longest first

    def is_due(self, now: float) -> bool:
        """Tell whether it is time for a look."""
        return now >= self._look_at

    def look(self, now: float, running: Sequence[RunningStep]) -> list[SlowStep]:
        """Look at what runs; return what stands out for the first time, for the log."""
        self._look_at = now + SLOW_LOOK_SECONDS
        median_s = self._recent.median_s
        least_s = UNKNOWN_SECONDS if median_s is None else max(LEAST_SLOW_SECONDS, TIMES_MEDIAN * median_s)
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
