"""How much runs at once and how large a task is: groups in flight, simulations on each worker, groups of a task. Pure.

MODELOPS_JOB_BATCH_SIZE sets the groups in flight; else they follow from the slots and from what simulations use. After
a worker or a runner ran out of memory, half as many are in flight (docs/internals/limits.md).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from mops.child.task_run import PART_BYTES
from mops.storage.progress_record import Progress
from mops.system.resources import HEADROOM_BYTES
from mops.units import bytes_text

# Tasks in flight for each slot: enough that no slot waits for the runner. The rest of the window would only queue.
TASKS_PER_SLOT = 4
# The same for tasks of replicates. They take longer, and fewer of them leave fewer groups half done.
SPLIT_TASKS_PER_SLOT = 2
# The least tasks that a window of short groups is divided into, for each slot: one runs, and the next one waits.
WINDOW_PER_SLOT = 2.0
# The same if the runner shares its processors with the simulations. Fewer tasks leave them more time, because a task
# costs the runner about 1 ms, whatever it holds. The next task starts at once. With 2.0, simulations of 0 ms took 3
# to 8 % more CPU time.
WINDOW_PER_EMBEDDED_SLOT = 1.5
# The least seconds of a task near the job's end, where tasks become smaller. A group that takes less is not split.
# Otherwise about the last two groups of each slot would be split into three or more tasks, which cost the runner up
# to 7 ms each on a cluster, with a gap between a group's last simulation and its targets. With groups of 60 ms on two
# slots of a Dask cluster, the end of a job lost 90 ms of slot time at 0.03 s and 65 ms at 0.1 s, and the job had 20
# tasks instead of 34.
MIN_TASK_SECONDS = 0.1
# The most tasks per second that a job plans for, because a task costs the runner 2 to 3 ms of CPU time, and the
# scheduler as much. With more slots than this, tasks become longer than TASK_SECONDS. On 160 slots, tasks of two
# simulations of 1 s halve both costs for each simulation (docs/internals/throughput.md).
TASKS_PER_SECOND = 75
END_TASKS_PER_SECOND = 400  # the same near the job's end, for the seconds in which the last tasks come back
# The least bytes of a task are this part of a checkpoint. With the slots alone, a task on a thousand slots would come
# back after 32 KiB, which is often one simulation.
SHARES_OF_CHECKPOINT = 64
_DECAY = 0.8


class TaskSizer:
    """Decides how many groups, or replicates of a group, a task holds."""

    # ``fuse``: a task may hold several groups. The window is divided into at least ``window_per_slot`` tasks for
    # each slot.
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
        return math.ceil(self._window_per_slot * slots)

    def groups_per_task(self, n_left: int, slots: int, window: int) -> int:
        """Return how many groups a task holds: about the budget, and at most a share of the window."""
        if not self._fuse or self.seconds_per_group is None:
            return 1
        by_window = window // self.least_tasks(slots)
        return max(1, min(by_window, int(self.budget_s(n_left, slots) / max(self.seconds_per_group, 1e-9))))

    def replicates_per_task(self, n_replicates: int, n_left: int, slots: int) -> int:
        """Return how many of a group's remaining replicates a task holds: at least one, and equal numbers."""
        if self.seconds_per_simulation is None:
            return 1
        most = max(1, int(self.budget_s(n_left, slots) / max(self.seconds_per_simulation, 1e-9)))
        return math.ceil(n_replicates / math.ceil(n_replicates / most))

    def must_split(self, n_replicates: int, n_left: int, slots: int) -> bool:
        """Tell whether a group is too long for one task. Before anything is measured, any group may be."""
        each_s = self.seconds_per_simulation
        return n_replicates > 1 and (each_s is None or n_replicates * each_s > self.budget_s(n_left, slots))

    def budget_s(self, n_left: int, slots: int) -> float:
        """Return how many seconds of work a task should hold."""
        # Near the job's end it is a share of the remaining work, so that all slots finish together (guided
        # self-scheduling, Polychronopoulos and Kuck 1987).
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
    """Return after how many bytes of results a task comes back early."""
    # On up to 32 slots, the tasks of all slots together fill half a checkpoint.
    return max(checkpoint_bytes // min(2 * slots, SHARES_OF_CHECKPOINT), 1)


# Rows per second, as Arrow, up to which the runner of a cluster encodes them itself. It encodes about 90 MiB/s on one
# core, and receives and uploads rows meanwhile.
RUNNER_BYTES_PER_SECOND = 32 << 20


class PartWriting:
    """The processes that encode and store rows: child processes and workers, or the runner."""

    def __init__(self, setting: Literal["runner", "worker", "auto"], *, is_embedded: bool, checkpoint_bytes: int):
        self._setting, self._is_embedded, self._checkpoint_bytes = setting, is_embedded, checkpoint_bytes
        self._bytes = self._seconds = 0.0

    def add(self, row_bytes: int, seconds: float) -> None:
        """Take a measurement: a task made so many bytes of rows in ``seconds`` on one slot."""
        self._bytes = self._bytes * _DECAY + row_bytes
        self._seconds = self._seconds * _DECAY + seconds

    def in_tasks(self, slots: int) -> bool:
        """Tell whether a task encodes its rows, if it has at least PART_BYTES."""
        if self._setting == "auto" and not self._is_embedded:
            return slots * self._bytes >= RUNNER_BYTES_PER_SECOND * self._seconds > 0
        return self._setting != "runner"

    def by_workers(self, slots: int) -> bool:
        """Tell whether workers store these files."""
        return not self._is_embedded and self.in_tasks(slots)

    def task_bytes(self, slots: int) -> int:
        """Return after how many bytes of rows a task comes back early."""
        least = 2 * PART_BYTES if self.in_tasks(slots) else 0
        return max(limit_bytes(self._checkpoint_bytes, slots), least)


GROWTH = 1.1  # the growth of a halved window after each batch without trouble
FULL = 0.8  # if a killed runner used more than this fraction of its memory, mops assumes that it ran out of memory


def start_size(live: Progress | None, *, ended: bool, oom: bool = False) -> int | None:
    """Return the window of an attempt whose predecessor ran out of memory: half of the predecessor's; else None."""
    # After an end in the log, the predecessor was not killed. If its pod was killed for memory, the memory in its last
    # sign of life does not matter.
    if live is None or ended or not live.window:
        return None
    return max(live.window // 2, 1) if oom or live.memory_bytes > FULL * live.limit_bytes else None


class Window:
    """The most groups in flight."""

    def __init__(self, most: int, start: int | None = None):
        self._most, self._cap = most, start
        self._halved = False

    @property
    def size(self) -> int:
        """Groups that may be in flight, at least one."""
        return self._most if self._cap is None else min(self._most, self._cap)

    def halve(self) -> int:
        """Halve the window, after a process ran out of memory; return its size."""
        self._cap = max(self.size // 2, 1)
        self._halved = True
        return self._cap

    def batches_committed(self, n: int = 1) -> None:
        """Grow by a tenth for each batch, unless the window was halved since the last one, or is smaller anyway."""
        # It stays halved below a limit that is smaller now: the limit may grow when more is measured.
        if self._cap is not None and self._cap < self._most and not self._halved:
            self._cap = math.ceil(self._cap * GROWTH**n)
        self._halved = False

    def set_most(self, most: int) -> None:
        """Change the upper limit. A halved window stays halved."""
        self._most = most


FIRST_TASKS_PER_SLOT = 4  # groups in flight for each slot before anything is measured
LEAST_GROUPS = 200  # the groups in flight if MODELOPS_JOB_BATCH_SIZE is not set, unless many slots need more
# The most groups in flight for each slot if MODELOPS_JOB_BATCH_SIZE is not set. With 400 groups on two slots instead
# of 200, jobs of 0 ms take 10 to 17 % less time, and 2 MiB more memory. With 1,000 or 2,000 groups they take as long
# as with 400, and 9 or 24 MiB more (docs/internals/throughput.md).
MOST_PER_SLOT = 200
# The least work for which a further worker is started: its start takes 10 s on a node that is there, and minutes on a
# new one.
WORKER_SECONDS = 60.0

MOST_GROUPS = 10_000  # the most groups in flight, because each takes the runner about 5 KiB
MARGIN = 1.25  # the room for a simulation, as a multiple of the peak memory that nine in ten simulations do not exceed
CHANGE = 0.1  # a relative change of the size up to this is ignored, because measurements vary as much
_RECENT = 64
_PEAK_QUANTILE = 0.9


@dataclass(frozen=True)
class TaskUsage:
    """The time and memory of a task."""

    peak_bytes: int  # the highest resident memory of one of its simulations
    result_bytes: int  # of its results in memory
    seconds: float  # on one slot
    groups: float  # that it ran; for replicates of a group, a fraction
    allowed_bytes: int  # what its worker may use with all its processes
    own_bytes: int  # what the worker uses without simulations


@dataclass(frozen=True)
class Resources:
    """The slots, workers and memory that a job may use."""

    slots: int
    workers: int
    result_bytes: int  # room for results on workers and in the runner
    task_bytes: int  # of results at which a task comes back, with the rest of its groups unrun
    task_seconds: float  # that a task should take; 0: each group is a task
    window_per_slot: float = WINDOW_PER_SLOT
    is_auto: bool = True  # simulations at once follow from their memory; else each slot has one


@dataclass(frozen=True)
class BatchSize:
    """How much runs at once."""

    groups: int  # in flight, at most
    per_worker: int  # simulations at once
    explanation: str  # the arithmetic, for people

    def differs(self, other: BatchSize | None) -> bool:
        """Tell whether this size differs from another by more than measurements vary."""
        if other is None or self.per_worker != other.per_worker:
            return True
        return abs(self.groups - other.groups) > CHANGE * other.groups


def first_groups(slots: int, *, is_auto: bool) -> int:
    """Return the groups in flight before anything is measured."""
    return max(FIRST_TASKS_PER_SLOT * slots, 1 if is_auto else LEAST_GROUPS)


def useful_slots(n_left: int, work_s: float) -> int:
    """Return how many slots have WORKER_SECONDS of work each, and at least one.

    ``n_left`` simulations or targets can run at once, and take ``work_s`` seconds together.
    """
    return max(min(n_left, math.ceil(work_s / WORKER_SECONDS)), 1)


def room_for_results(held_bytes: int, workers: int, runner_free_bytes: int) -> int:
    """Return the room for results: what workers may hold, and at most a quarter of the runner's free memory."""
    return max(min(held_bytes * workers, runner_free_bytes // 4), 1)


class BatchSizer:
    """Computes sizes from the most recent tasks."""

    def __init__(self) -> None:
        self._tasks: deque[TaskUsage] = deque(maxlen=_RECENT)
        self._n = 0

    def add(self, task: TaskUsage) -> None:
        """Add the measurement of a task."""
        self._tasks.append(task)
        self._n += 1

    @property
    def is_due(self) -> bool:
        """Whether to compute the size now, between two batches: after 1, 2, 4 ... 64 tasks."""
        return self._n <= _RECENT and self._n.bit_count() == 1

    def size(self, room: Resources) -> BatchSize | None:
        """Return how much fits; None before a group has finished."""
        return batch_size_for(list(self._tasks), room) if sum(task.groups for task in self._tasks) else None


def batch_size_for(tasks: list[TaskUsage], room: Resources) -> BatchSize:
    """Return how much fits. At least one of the recent tasks ran a group."""
    peak = sorted(task.peak_bytes for task in tasks)[math.ceil(_PEAK_QUANTILE * len(tasks)) - 1]
    least = min(tasks, key=lambda task: task.allowed_bytes - task.own_bytes)
    free = max(least.allowed_bytes - least.own_bytes, 0)
    each = math.ceil(MARGIN * peak) + HEADROOM_BYTES
    most = max(room.slots // room.workers, 1)
    per_worker = max(min(free // each, most), 1) if room.is_auto else most
    n_groups = sum(task.groups for task in tasks)
    group_s = sum(task.seconds for task in tasks) / n_groups
    group_bytes = max(sum(task.result_bytes for task in tasks) / n_groups, 1.0)
    per_task = max(int(room.task_seconds / max(group_s, 1e-9)), 1)
    n_tasks = TASKS_PER_SLOT * per_worker * room.workers
    n_least = math.ceil(room.window_per_slot * per_worker * room.workers)
    by_tasks = max(n_least * int(room.task_bytes / group_bytes), n_tasks)
    by_results = max(int(room.result_bytes / group_bytes), 1)
    groups = min(n_tasks * per_task, by_tasks, by_results, MOST_GROUPS)
    if not room.is_auto:
        groups = max(min(groups, MOST_PER_SLOT * room.slots), LEAST_GROUPS)
    per_task = min(per_task, max(groups // n_least, 1))
    explanation = (
        f"{per_worker} of {most} simulations at once (up to {bytes_text(peak)} each, {bytes_text(free)} on a worker); "
        f"{groups} parameter sets in flight, {per_task} in a task ({group_s:.2g} s and "
        f"{bytes_text(round(group_bytes))} each, {bytes_text(room.result_bytes)} for results)"
    )
    return BatchSize(groups, per_worker, explanation)
