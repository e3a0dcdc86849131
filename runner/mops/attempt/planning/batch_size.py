"""How much runs at once, from what simulations use and what the machines have, unless the user set a number. Pure.

Each task adds a measurement, and the size is computed again after each batch (docs/internals/limits.md). With
``MODELOPS_JOB_BATCH_SIZE=auto`` it also limits the simulations at once. Then each worker runs one simulation until the
first task ends, which has all its memory to itself.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from mops.attempt.planning.task_size import TASKS_PER_SLOT, WINDOW_PER_SLOT, least_tasks
from mops.system.memory_limits import HEADROOM_BYTES
from mops.units import bytes_text

FIRST_TASKS_PER_SLOT = 4
"""Groups in flight for each slot before anything is measured."""

LEAST_GROUPS = 200
"""The groups in flight if MODELOPS_JOB_BATCH_SIZE is not set, unless many slots need more."""

MOST_PER_SLOT = 200
"""The most groups in flight for each slot if MODELOPS_JOB_BATCH_SIZE is not set.

With 400 groups on two slots instead of 200, jobs of 0 ms take 10 to 17 % less time, and 2 MiB more memory. With 1,000
or 2,000 groups they take as long as with 400, and 9 or 24 MiB more (docs/internals/throughput.md)."""

MOST_GROUPS = 10_000
"""The most groups in flight, because each takes the runner about 5 KiB."""

MARGIN = 1.25
"""The room for a simulation, as a multiple of the peak memory that nine in ten simulations do not exceed."""

CHANGE = 0.1
"""A relative change of the size up to this is ignored, because measurements vary as much."""

_RECENT = 64
_PEAK_QUANTILE = 0.9


@dataclass(frozen=True)
class TaskUsage:
    """The time and memory of a task.

    Parameters
    ----------
    peak_bytes
        The highest resident memory of one of its simulations.
    result_bytes
        The size of its results in memory.
    seconds
        Its time on one slot.
    groups
        How many groups it ran; for replicates of a group, a fraction.
    allowed_bytes, own_bytes
        What its worker may use with all its processes, and what the worker uses without simulations.
    """

    peak_bytes: int
    result_bytes: int
    seconds: float
    groups: float
    allowed_bytes: int
    own_bytes: int


@dataclass(frozen=True)
class Resources:
    """The slots, workers and memory that a job may use.

    Parameters
    ----------
    slots, workers
        Simulations that could run at once, and the workers that run them.
    result_bytes
        Room for results on workers and in the runner.
    task_bytes
        Bytes of results at which a task comes back, with the rest of its groups unrun.
    task_seconds
        How long a task should take; 0: each group is a task.
    window_per_slot
        The least tasks that a window is divided into, for each slot.
    is_auto
        Whether simulations at once follow from their memory; else each slot has one.
    """

    slots: int
    workers: int
    result_bytes: int
    task_bytes: int
    task_seconds: float
    window_per_slot: float = WINDOW_PER_SLOT
    is_auto: bool = True


@dataclass(frozen=True)
class BatchSize:
    """How much runs at once.

    Parameters
    ----------
    groups
        The most groups in flight.
    per_worker
        Simulations at once on each worker.
    explanation
        The arithmetic, for people.
    """

    groups: int
    per_worker: int
    explanation: str

    def differs(self, other: BatchSize | None) -> bool:
        """Tell whether this size differs from another by more than measurements vary."""
        if other is None or self.per_worker != other.per_worker:
            return True
        return abs(self.groups - other.groups) > CHANGE * other.groups


RESULTS_SHARE = 0.25


def first_groups(slots: int, *, is_auto: bool) -> int:
    """Return the groups in flight before anything is measured."""
    return max(FIRST_TASKS_PER_SLOT * slots, 1 if is_auto else LEAST_GROUPS)


def room_for_results(held_bytes: int, workers: int, runner_free_bytes: int) -> int:
    """Return the room for results: what workers may hold, and at most a quarter of the runner's free memory."""
    return max(min(held_bytes * workers, int(RESULTS_SHARE * runner_free_bytes)), 1)


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
    """Return how much fits.

    Parameters
    ----------
    tasks
        The recent tasks, of which at least one ran a group.
    """
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
    n_least = least_tasks(per_worker * room.workers, room.window_per_slot)
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
