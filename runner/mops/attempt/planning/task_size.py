"""How much one task holds, from the times that tasks took. Pure."""

from __future__ import annotations

import math

TASKS_PER_SLOT = 4
"""Tasks in flight for each slot: enough that no slot waits for the runner. The rest of the window would only queue."""

SPLIT_TASKS_PER_SLOT = 2
"""The same for tasks of replicates. They take longer, and fewer of them leave fewer groups half done."""

WINDOW_PER_SLOT = 2.0
"""The least tasks that a window of short groups is divided into, for each slot: one runs, and the next one waits."""

WINDOW_PER_EMBEDDED_SLOT = 1.5
"""The same if the runner shares its processors with the simulations. Fewer tasks leave them more time, because a task
costs the runner about 1 ms, whatever it holds. The next task starts at once. With 2.0, simulations of 0 ms took 3 to
8 % more CPU time."""

MIN_TASK_SECONDS = 0.1
"""The least seconds of a task near the job's end, where tasks become smaller.

A group that takes less is not split. Otherwise about the last two groups of each slot would be split into three or more
tasks, which cost the runner up to 7 ms each on a cluster, with a gap between a group's last simulation and its targets.
With groups of 60 ms on two slots of a Dask cluster, the end of a job lost 90 ms of slot time at 0.03 s and 65 ms at
0.1 s, and the job had 20 tasks instead of 34."""

TASKS_PER_SECOND = 75
"""The most tasks per second that a job plans for, because a task costs the runner 2 to 3 ms of CPU time, and the
scheduler as much. With more slots than this, tasks become longer than TASK_SECONDS. On 160 slots, tasks of two
simulations of 1 s halve both costs for each simulation (docs/internals/throughput.md)."""

END_TASKS_PER_SECOND = 400
"""The same near the job's end, for the seconds in which the last tasks come back."""

SHARES_OF_CHECKPOINT = 64
"""The least bytes of a task are this part of a checkpoint. With the slots alone, a task on a thousand slots would come
back after 32 KiB, which is often one simulation."""

_DECAY = 0.8


class TaskSizer:
    """Decides how many groups, or replicates of a group, a task holds.

    Parameters
    ----------
    task_seconds
        How long a task should take, on few slots.
    fuse
        Whether a task may hold several groups.
    window_per_slot
        The least tasks that the window is divided into, for each slot.
    """

    def __init__(self, task_seconds: float, *, fuse: bool, window_per_slot: float):
        self._task_seconds, self._fuse, self._window_per_slot = task_seconds, fuse, window_per_slot
        self._seconds = self._groups = self._simulations = 0.0

    def add(self, seconds: float, n_groups: float, n_simulations: float) -> None:
        """Take a measurement: ``n_groups`` groups, or a fraction of one, took ``seconds`` on one slot."""
        self._seconds = self._seconds * _DECAY + seconds
        self._groups = self._groups * _DECAY + n_groups
        self._simulations = self._simulations * _DECAY + n_simulations

    @property
    def seconds_per_group(self) -> float | None:
        """The time of a group on one slot, from recent tasks most of all; None: not measured."""
        return self._seconds / self._groups if self._groups else None

    @property
    def seconds_per_simulation(self) -> float | None:
        """The time of a simulation on one slot, with its share of the targets; None: not measured."""
        return self._seconds / self._simulations if self._simulations else None

    def tasks_per_group(self, slots: int) -> int | None:
        """Return how many tasks a group makes; None: not measured."""
        each_s = self.seconds_per_group
        return None if each_s is None else max(math.ceil(each_s / longest_s(self._task_seconds, slots)), 1)

    def expected_s(self, n_groups: int, n_replicates: int | None) -> float:
        """Return how long a task of groups takes; or one of replicates, if their number is given."""
        if n_replicates is None:
            return n_groups * (self.seconds_per_group or self._task_seconds)
        return n_replicates * (self.seconds_per_simulation or self._task_seconds)

    def least_tasks(self, slots: int) -> int:
        """Return the least tasks that the window is divided into."""
        return least_tasks(slots, self._window_per_slot)

    def groups_per_task(self, n_left: int, slots: int, window: int) -> int:
        """Return how many groups a task holds: about the budget, and at most a share of the window.

        Parameters
        ----------
        n_left
            Groups that are not sent yet.
        window
            The most groups in flight.
        """
        if not self._fuse or self.seconds_per_group is None:
            return 1
        by_window = window // self.least_tasks(slots)
        return max(1, min(by_window, int(self.budget_s(n_left, slots) / max(self.seconds_per_group, 1e-9))))

    def replicates_per_task(self, n_replicates: int, n_left: int, slots: int) -> int:
        """Return how many of a group's remaining replicates a task holds: at least one.

        The tasks of a group hold equal numbers, of about the budget.
        """
        if self.seconds_per_simulation is None:
            return 1
        most = max(1, int(self.budget_s(n_left, slots) / max(self.seconds_per_simulation, 1e-9)))
        return math.ceil(n_replicates / math.ceil(n_replicates / most))

    def must_split(self, n_replicates: int, n_left: int, slots: int) -> bool:
        """Tell whether a group is too long for one task. Before anything is measured, any group may be."""
        each_s = self.seconds_per_simulation
        return n_replicates > 1 and (each_s is None or n_replicates * each_s > self.budget_s(n_left, slots))

    def budget_s(self, n_left: int, slots: int) -> float:
        """Return how many seconds of work a task should hold.

        That is :func:`longest_s`. Near the job's end it is a share of the remaining work, so that all slots finish
        together (guided self-scheduling, Polychronopoulos and Kuck 1987).
        """
        left_s = n_left * (self.seconds_per_group or 0.0)
        least_s = max(left_s / (2 * slots), MIN_TASK_SECONDS, slots / END_TASKS_PER_SECOND)
        return min(longest_s(self._task_seconds, slots), least_s)

    def limit_s(self, slots: int) -> float:
        """Return after how many seconds a task comes back early: twice the planned time."""
        return 2 * longest_s(self._task_seconds, slots)


def longest_s(task_seconds: float, slots: int) -> float:
    """Return how long a task should take while much work is left: ``task_seconds``, and longer on many slots."""
    return max(task_seconds, slots / TASKS_PER_SECOND)


def limit_bytes(checkpoint_bytes: int, slots: int) -> int:
    """Return after how many bytes of results a task comes back early.

    On up to 32 slots, the tasks of all slots together fill half a checkpoint.
    """
    return max(checkpoint_bytes // min(2 * slots, SHARES_OF_CHECKPOINT), 1)


def least_tasks(slots: int, per_slot: float) -> int:
    """Return the least tasks that a window is divided into."""
    return math.ceil(per_slot * slots)
