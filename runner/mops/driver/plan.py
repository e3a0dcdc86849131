"""Decides what runs next: events in, orders out. Pure, so that its tests need no cluster.

The window rolls: as groups leave, the next enter, and never more than ``batch_size`` are in flight. Short groups
are fused into one task, by measured time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

TASKS_PER_SLOT = 4
"""Tasks in flight for each slot: enough that none waits for the runner; the rest of the window would only queue."""

MIN_TASK_SECONDS = 0.03
"""Near a job's end tasks shrink, but not below this: a Dask task costs about 2 ms."""

_DECAY = 0.8


@dataclass(frozen=True)
class Submit:
    """An action: send these groups as one task."""

    number: int
    groups: tuple[int, ...]


def groups_per_task(
    *, batch_size: int, slots: int, left: int, seconds_per_group: float | None, task_seconds: float
) -> int:
    """Return how many groups one task should hold.

    The least of about ``task_seconds`` of work, a share of the window that leaves two tasks for each slot, and a
    share of what is left, so that slots finish together (guided self-scheduling, Polychronopoulos and Kuck 1987).

    Parameters
    ----------
    left
        Groups not yet sent.
    seconds_per_group
        As measured; None: nothing is known yet, so that one group is sent to find out.
    """
    if seconds_per_group is None:
        return 1
    by_window = batch_size // (2 * slots)
    by_time = int(task_seconds / max(seconds_per_group, 1e-9))
    by_end = max(math.ceil(left / (2 * slots)), int(MIN_TASK_SECONDS / max(seconds_per_group, 1e-9)))
    return max(1, min(by_window, by_time, by_end))


class Plan:
    """The groups that are left, those in flight, and the next orders.

    Parameters
    ----------
    todo
        Indices of the groups to run, in study order.
    n_todo
        How many they are.
    batch_size
        The most groups in flight.
    slots
        Simulations that run at once.
    task_seconds
        Fuse short groups up to about this long; 0: a task for each group.
    """

    def __init__(self, todo: Iterable[int], n_todo: int, *, batch_size: int, slots: int, task_seconds: float):
        self._fresh: Iterator[int] = iter(todo)
        self._n_left = n_todo
        self._batch_size, self._slots, self._task_seconds = batch_size, slots, task_seconds
        self._returned: list[int] = []  # a heap: what a task gave back goes first, in study order
        self._flying: dict[int, tuple[int, ...]] = {}
        self._number = 0
        self._seconds = self._groups = 0.0
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """Groups that are in flight."""
        return sum(map(len, self._flying.values()))

    @property
    def over(self) -> bool:
        """Whether nothing is in flight and nothing will be sent."""
        return not self._flying and (self._stopped or self._n_left == 0)

    @property
    def seconds_per_group(self) -> float | None:
        """The measured time of a group on one slot, recent tasks counting most; None: not measured."""
        return self._seconds / self._groups if self._groups else None

    def measured(self, seconds: float, groups: int) -> None:
        """Take a measurement: ``groups`` took ``seconds`` on one slot."""
        self._seconds = self._seconds * _DECAY + seconds
        self._groups = self._groups * _DECAY + groups

    def fill(self, *, pilot: bool) -> list[Submit]:
        """Return the orders that fill the window.

        Parameters
        ----------
        pilot
            The job has no reference schema yet: one group at a time, in study order, until one gives it.
        """
        if pilot and self._flying:
            return []
        orders: list[Submit] = []
        while (order := self._next()) is not None:
            orders.append(order)
            if pilot:
                break
        return orders

    def finished(self, number: int, done: frozenset[int], seconds: float) -> None:
        """Take the end of a task: its results are in the open checkpoint and its future is released.

        Groups that it gave back (its budget was used, or it was stopped) go first in what is sent next.
        """
        for group in self._flying.pop(number):
            if group not in done:
                heapq.heappush(self._returned, group)
                self._n_left += 1
        if done:
            self.measured(seconds, len(done))

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def _next(self) -> Submit | None:
        room = self._batch_size - self.in_flight
        measuring = self.seconds_per_group is None
        most_tasks = self._slots * (1 if measuring else TASKS_PER_SLOT)
        if self._stopped or room < 1 or not self._n_left or len(self._flying) >= most_tasks:
            return None
        size = groups_per_task(
            batch_size=self._batch_size,
            slots=self._slots,
            left=self._n_left,
            seconds_per_group=self.seconds_per_group,
            task_seconds=self._task_seconds,
        )
        if room < min(size, self._n_left) and len(self._flying) >= 2 * self._slots:
            return None  # a crumb now would leave a crumb of room when it is back, and so on for ever
        groups = self._first(min(size, room))
        self._n_left -= len(groups)
        self._number += 1
        self._flying[self._number] = groups
        return Submit(self._number, groups)

    def _first(self, size: int) -> tuple[int, ...]:
        again = [heapq.heappop(self._returned) for _ in range(min(size, len(self._returned)))]
        return (*again, *islice(self._fresh, size - len(again)))


class Batches:
    """Counts committed groups off in batches, for the drain check.

    Parameters
    ----------
    size
        Groups in a batch: the batch size of the job.
    """

    def __init__(self, size: int):
        self._size = size
        self._groups = 0
        self._keys: list[str] = []

    def add(self, groups: int, keys: Iterable[str]) -> tuple[int, list[str]] | None:
        """Take a commit; return the batch that it completes and the keys committed since the one before."""
        before = self._groups // self._size
        self._groups += groups
        self._keys += keys
        batch = self._groups // self._size
        if batch == before:
            return None
        due, self._keys = self._keys, []
        return batch, due

    def rest(self) -> tuple[int, list[str]] | None:
        """Return the last batch, which may be short; None if it was returned already."""
        due, self._keys = self._keys, []
        return (self._groups // self._size + 1, due) if due else None
