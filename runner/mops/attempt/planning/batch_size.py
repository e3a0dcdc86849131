"""``MODELOPS_JOB_BATCH_SIZE=auto``: how much runs at once, from what simulations take and what there is. Pure.

The first task of a job is its pilot, alone on its worker with all the memory; each further one adds to what is known,
and after each batch it is reckoned anew (docs/internals/limits.md).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from mops.attempt.planning.task_size import TASKS_PER_SLOT, WINDOW_PER_SLOT, least_tasks
from mops.system.memory_limits import HEADROOM_BYTES
from mops.units import bytes_text

PILOT_TASKS_PER_SLOT = 4
"""Groups in flight for each slot until something is measured."""

MOST_GROUPS = 10_000
"""In flight: their bookkeeping takes about 5 KiB each."""

MARGIN = 1.25
"""What a simulation is given of what nine in ten need: the others differ."""

CHANGE = 0.1
"""A change by no more than this is none: what is measured moves by as much."""

_RECENT = 64
_PEAK_QUANTILE = 0.9


@dataclass(frozen=True)
class TaskUsage:
    """What is measured of a task.

    Parameters
    ----------
    peak_bytes
        The highest resident memory of one of its simulations.
    result_bytes
        Its results, as Arrow.
    seconds
        On one slot.
    groups
        How many it ran; a piece is a fraction of one.
    allowed_bytes, own_bytes
        What its worker may take with all its processes, and what the worker takes without simulations.
    """

    peak_bytes: int
    result_bytes: int
    seconds: float
    groups: float
    allowed_bytes: int
    own_bytes: int


@dataclass(frozen=True)
class Resources:
    """What there is.

    Parameters
    ----------
    slots, workers
        Simulations that could run at once, on so many workers.
    result_bytes
        For results that are on their way, on workers and in the runner.
    task_seconds
        MODELOPS_JOB_TASK_SECONDS; 0: each group is a task.
    window_per_slot
        Tasks that a window is divided into at least, for each slot.
    """

    slots: int
    workers: int
    result_bytes: int
    task_seconds: float
    window_per_slot: float = WINDOW_PER_SLOT


@dataclass(frozen=True)
class BatchSize:
    """How much runs at once.

    Parameters
    ----------
    groups
        In flight.
    per_worker
        Simulations at once on each worker.
    said
        The arithmetic, for people.
    """

    groups: int
    per_worker: int
    said: str

    def differs(self, other: BatchSize | None) -> bool:
        """Tell whether it is another plan, and not the same one measured anew."""
        if other is None or self.per_worker != other.per_worker:
            return True
        return abs(self.groups - other.groups) > CHANGE * other.groups


RESULTS_SHARE = 0.25


def room_for_results(held_bytes: int, workers: int, runner_free_bytes: int) -> int:
    """Return the bytes for results that are on their way: what workers may hold, and a quarter of the runner's room."""
    return max(min(held_bytes * workers, int(RESULTS_SHARE * runner_free_bytes)), 1)


class BatchSizer:
    """Reckons sizes from the tasks that were measured last."""

    def __init__(self) -> None:
        self._tasks: deque[TaskUsage] = deque(maxlen=_RECENT)
        self._n = 0

    def measured(self, task: TaskUsage) -> None:
        """Take a task, and forget the oldest of many."""
        self._tasks.append(task)
        self._n += 1

    @property
    def due(self) -> bool:
        """Whether it is time to reckon anew between two batches: after 1, 2, 4 ... 64 tasks, each twice as sure."""
        return self._n <= _RECENT and self._n.bit_count() == 1

    def sizes(self, room: Resources) -> BatchSize | None:
        """Return what fits; None before anything has finished."""
        return batch_size_for(list(self._tasks), room) if sum(task.groups for task in self._tasks) else None


def batch_size_for(tasks: list[TaskUsage], room: Resources) -> BatchSize:
    """Return what fits.

    Parameters
    ----------
    tasks
        At least one of them with a group.
    """
    peak = sorted(task.peak_bytes for task in tasks)[math.ceil(_PEAK_QUANTILE * len(tasks)) - 1]
    least = min(tasks, key=lambda task: task.allowed_bytes - task.own_bytes)
    free = max(least.allowed_bytes - least.own_bytes, 0)
    each = math.ceil(MARGIN * peak) + HEADROOM_BYTES
    most = max(room.slots // room.workers, 1)
    per_worker = max(min(free // each, most), 1)
    n_groups = sum(task.groups for task in tasks)
    group_s = sum(task.seconds for task in tasks) / n_groups
    group_bytes = max(sum(task.result_bytes for task in tasks) / n_groups, 1.0)
    per_task = max(int(room.task_seconds / max(group_s, 1e-9)), 1)
    n_tasks = TASKS_PER_SLOT * per_worker * room.workers
    by_results = max(int(room.result_bytes / group_bytes), 1)
    groups = min(n_tasks * per_task, by_results, MOST_GROUPS)
    per_task = min(per_task, max(groups // least_tasks(per_worker * room.workers, room.window_per_slot), 1))
    said = (
        f"a simulation takes up to {bytes_text(peak)}, with room for a quarter more and for a burst "
        f"{bytes_text(each)}; "
        f"a worker has {bytes_text(free)}: {per_worker} at once on each, of {most}; "
        f"a parameter set takes {group_s:.2g} s and gives {bytes_text(round(group_bytes))} of "
        f"{bytes_text(room.result_bytes)} for results: {groups} in flight, {per_task} to a task"
    )
    return BatchSize(groups, per_worker, said)
