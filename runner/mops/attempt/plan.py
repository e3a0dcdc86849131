"""Decides what runs next: events in, tasks out. Pure.

The window rolls: when groups leave it, the next groups enter, and it never holds more than its size. Measured times
decide how much a task holds (:mod:`mops.attempt.sizing`). Short groups are fused into one task. A long
group is split: tasks run a few of its replicates each, and then its targets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mops.attempt.sizing import SPLIT_TASKS_PER_SLOT, TASKS_PER_SLOT, TaskSizer, Window
from mops.cluster.shares import Share
from mops.study.ranges import Ranges
from mops.task import Task

_MANY = 1 << 20
_MOST_GROUPS = 1024  # of a task


@dataclass
class _SplitGroup:
    """A group that runs as several tasks."""

    left: list[int] = field(default_factory=list)  # a heap: replicates that are not sent
    alone: list[int] = field(default_factory=list)  # replicates that must run alone
    targets_due: bool = False
    targets_alone: bool = False  # whether the targets are due and must run alone
    delivering: bool = False


class Plan:
    """The groups that are left, the tasks in flight, and the next tasks."""

    def __init__(
        self,
        todo: Ranges,  # groups start in study order
        replicates: Callable[[int], range],  # those of a group that must run, because they are not stored already
        *,
        window: Window,
        sizer: TaskSizer,
        share: Share,  # may be replaced at any time
        task_share: Callable[[int], float] = lambda _: 0.0,  # of the stored rows that a task may carry, by group
    ):
        self._new_groups: Iterator[int] = iter(todo)
        self._n_left = len(todo)
        self._replicates, self._window, self.sizer = replicates, window, sizer
        self.share, self._task_share = share, task_share
        self.tasks_in_flight: dict[int, Task] = {}  # the tasks that are not back, by number
        self.last_number = 0  # the number of the task that was sent last
        self._returned_groups: list[int] = []  # a heap: groups that a task did not finish run first, in study order
        self._n_whole_groups = 0  # in the tasks in flight
        self._split: dict[int, _SplitGroup] = {}
        self._suspects: set[int] = set()  # groups of a task whose workers died: each runs in a task without others
        # A heap of groups that must run alone when nothing else runs, and whether they are suspects, which run last.
        self._alone_at_end: list[tuple[bool, int]] = []
        self._stopped = False

    @property
    def groups_in_flight(self) -> int:
        """The number of groups in flight."""
        return self._n_whole_groups + len(self._split)

    @property
    def groups_left(self) -> int:
        """The number of groups that are in flight, or will be."""
        return self._n_left + self.groups_in_flight + len(self._alone_at_end)

    @property
    def finished(self) -> bool:
        """Whether nothing is in flight and nothing will be sent."""
        if self.tasks_in_flight or any(split.targets_due or split.delivering for split in self._split.values()):
            return False
        return self._stopped or not (self._n_left or self._split or self._alone_at_end)

    @property
    def slots(self) -> int:
        """Simulations that run at once now: a task that runs alone has its worker to itself."""
        return self.share.workers if self.is_alone_phase else self.share.slots

    @property
    def wanted_slots(self) -> int:
        """Simulations that the job could run at once now, on any number of slots."""
        n_tasks = len(self.tasks_in_flight)
        if self._stopped:
            return n_tasks
        if self.is_alone_phase:
            return n_tasks * max(self.share.slots // self.share.workers, 1)
        n_groups = min(self._n_left, max(self._window.size - self.groups_in_flight, 0))
        n_replicates = sum(len(split.left) for split in self._split.values())
        return n_tasks + n_replicates + n_groups * (self.sizer.tasks_per_group(self.share.slots) or _MANY)

    def n_simulations(self, task: Task) -> int:
        """Return how many simulations a task has."""
        if task.replicates is not None:
            return len(task.replicates)
        return sum(len(self._replicates(group)) for group in task.groups)

    def next_tasks(self) -> list[Task]:
        """Return the tasks that fill the window; they are in flight from now on."""
        tasks: list[Task] = []
        while (task := self._next_task()) is not None:
            self.tasks_in_flight[task.number] = task
            tasks.append(task)
        return tasks

    def task_finished(
        self, number: int, done: frozenset[int], seconds: float, run_alone_later: frozenset[int] = frozenset()
    ) -> None:
        """Take the end of a task of whole groups, whose results are in the open checkpoint."""
        task = self._remove_whole(number)
        left = [group for group in task.groups if group not in done | run_alone_later]
        if task.alone:  # it still has to run alone
            self._run_alone_at_end(left)
        else:  # the task was stopped or had used its budget: these groups are sent first
            self._return_groups(left)
        self._run_alone_at_end(run_alone_later)
        self._suspects -= done
        if done and seconds:
            self.sizer.add(seconds, len(done), sum(len(self._replicates(group)) for group in done))

    def split_task_finished(
        self, number: int, settled: frozenset[int], seconds: float, run_alone_later: frozenset[int] = frozenset()
    ) -> None:
        """Take the end of a task of replicates, or of targets."""
        task = self.tasks_in_flight.pop(number)
        group, split = task.groups[0], self._split[task.groups[0]]
        if task.replicates:
            split.alone += sorted(run_alone_later)
        else:
            split.targets_alone = bool(run_alone_later)
        left = [replicate for replicate in task.replicates or () if replicate not in settled | run_alone_later]
        if task.alone:  # they still have to run alone
            split.alone += left
        else:
            self._return_replicates(group, left)
        if settled and seconds:
            self.sizer.add(seconds, len(settled) / len(self._replicates(group)), len(settled))

    def targets_due(self, group: int) -> None:
        """Note that all replicates of a split group are there, so that its targets can run."""
        self._split[group].targets_due = True

    def targets_unfinished(self, group: int, *, alone: bool) -> None:
        """Send a split group's targets again, because their task came back without a result; not after a stop."""
        split = self._split[group]
        split.targets_due, split.targets_alone = not (alone or self._stopped), alone

    def group_delivering(self, group: int) -> None:
        """Note that a split group is on its way into the open checkpoint."""
        self._split[group].delivering = True

    def group_finished(self, group: int) -> None:
        """Note that a split group is in the open checkpoint."""
        del self._split[group]
        self._suspects.discard(group)

    def task_lost(self, number: int, *, blamed: bool = False) -> None:
        """Requeue the groups of a lost task. It is blamed if workers died while running it."""
        # Groups of a blamed task are sent one by one, and then each simulation alone, to find what killed the workers.
        task = self.tasks_in_flight[number]
        self._suspects.update(task.groups if blamed else ())
        alone = blamed or task.alone
        if task.replicates is None:
            self._remove_whole(number)
            if len(task.groups) > 1 or not alone:
                self._return_groups(task.groups)
            elif blamed and len(replicates := self._replicates(task.groups[0])) > 1:
                self._split[task.groups[0]] = _SplitGroup(alone=list(replicates))
            else:
                self._run_alone_at_end(task.groups)
            return
        del self.tasks_in_flight[number]
        split = self._split[task.groups[0]]
        if not task.replicates:
            split.targets_alone, split.targets_due = alone, not alone
        elif alone:
            split.alone += task.replicates
        else:
            self._return_replicates(task.groups[0], task.replicates)

    def release(self, number: int, released: frozenset[int]) -> None:
        """Send again, in other tasks, what a task in flight will not run: groups, or replicates of its group."""
        task = self.tasks_in_flight.get(number)
        if task is None:  # it has come back meanwhile, so they are returned already
            return
        left = self.tasks_in_flight[number] = task.without(released)
        returned = [unit for unit in task.units if unit not in left.units]
        if task.replicates is None:
            self._n_whole_groups -= len(returned)
            self._return_groups(returned)
        else:
            self._return_replicates(task.groups[0], returned)

    def stop(self) -> None:
        """Send no more tasks, except for the targets of groups whose replicates are all there."""
        self._stopped = True

    def _remove_whole(self, number: int) -> Task:
        task = self.tasks_in_flight.pop(number)
        self._n_whole_groups -= len(task.groups)
        return task

    def _return_groups(self, groups: Iterable[int]) -> None:
        for group in groups:
            heapq.heappush(self._returned_groups, group)
            self._n_left += 1

    def _run_alone_at_end(self, groups: Iterable[int]) -> None:
        for group in groups:
            heapq.heappush(self._alone_at_end, (group in self._suspects, group))

    def _return_replicates(self, group: int, replicates: Iterable[int]) -> None:
        for replicate in replicates:
            heapq.heappush(self._split[group].left, replicate)

    @property
    def is_alone_phase(self) -> bool:
        """Whether the tasks in flight run alone, or the next ones do. No others are sent meanwhile."""
        if self.tasks_in_flight:
            return next(iter(self.tasks_in_flight.values())).alone
        splits = self._split.values()
        may_send_group = self._n_left and self.groups_in_flight < self._window.size
        if self._stopped or may_send_group or any(split.left for split in splits):
            return False  # targets that are due can wait: so a job moves to a pool for such tasks once
        return bool(self._alone_at_end) or any(split.alone or split.targets_alone for split in splits)

    def _next_task(self) -> Task | None:
        if self.is_alone_phase:
            suspected = any(not self._suspects.isdisjoint(task.groups) for task in self.tasks_in_flight.values())
            has_room = len(self.tasks_in_flight) < self.share.workers and not self._stopped and not suspected
            task = self._next_alone() if has_room else None
            if task is not None or self.tasks_in_flight:
                return task
        for group, split in self._split.items():
            if split.targets_due or (split.left and not self._stopped):
                return self._next_of_split(group, split)
        if self._stopped:
            return None
        if self._n_left and self.groups_in_flight < self._window.size:
            return self._next_groups()
        return None

    def _next_alone(self) -> Task | None:
        """Return a task that gets a worker to itself: one for each worker, and no other tasks meanwhile."""
        # Suspects come last, because one that no worker can run ends the attempt. Each is the only task in flight,
        # because two tasks on a worker that dies would both be suspects.
        for suspects in (False, True) if not self.tasks_in_flight else (False,):
            for group, split in self._split.items():
                if (group in self._suspects) is not suspects:
                    continue
                if split.alone:
                    return self._new_task((group,), (split.alone.pop(),), alone=True)
                if split.targets_alone:
                    split.targets_alone = False
                    return self._new_task((group,), (), alone=True)
            has_whole = bool(self._alone_at_end) and self._alone_at_end[0][0] is suspects
            if has_whole and self.groups_in_flight < self._window.size:
                self._n_whole_groups += 1
                return self._new_task((heapq.heappop(self._alone_at_end)[1],), None, alone=True)
        return None

    def _next_of_split(self, group: int, split: _SplitGroup) -> Task | None:
        if self._is_full(SPLIT_TASKS_PER_SLOT):  # limits targets too, whose tasks carry all results of their group
            return None
        if split.targets_due:
            split.targets_due = False
            return self._new_task((group,), ())
        n = self.sizer.replicates_per_task(len(split.left), self._n_left, self.share.slots)
        return self._new_task((group,), tuple(heapq.heappop(split.left) for _ in range(n)))

    def _next_groups(self) -> Task | None:
        """Return the next task of whole groups, or the first task of a group that must be split."""
        slots = self.share.slots
        if self._is_full(1 if self.sizer.seconds_per_group is None else TASKS_PER_SLOT):
            return None
        size = min(self.sizer.groups_per_task(self._n_left, slots, self._window.size), _MOST_GROUPS)
        room = self._window.size - self.groups_in_flight
        if room < min(size, self._n_left) and len(self.tasks_in_flight) >= self.sizer.least_tasks(slots):
            return None  # a small task now leaves small room when it ends, so all later tasks would be small
        first = self._first_group()
        replicates = self._replicates(first)
        if self.sizer.must_split(len(replicates), self._n_left, slots):
            self._split[first] = _SplitGroup(list(replicates))
            return self._next_of_split(first, self._split[first])
        groups, carried = [first], self._task_share(first)
        while len(groups) < min(size, room) and self._n_left and first not in self._suspects:
            group = self._first_group()
            carried += self._task_share(group)
            if group in self._suspects or carried > 1:
                self._return_groups((group,))
                break
            groups.append(group)
        self._n_whole_groups += len(groups)
        return self._new_task(tuple(groups), None)

    def _is_full(self, tasks_per_slot: int) -> bool:
        """Tell whether enough tasks are in flight."""
        most = tasks_per_slot * self.share.slots
        return len(self.tasks_in_flight) >= (most if self.share.tasks is None else min(most, self.share.tasks))

    def _first_group(self) -> int:
        self._n_left -= 1
        return heapq.heappop(self._returned_groups) if self._returned_groups else next(self._new_groups)

    def _new_task(self, groups: tuple[int, ...], replicates: tuple[int, ...] | None, *, alone: bool = False) -> Task:
        self.last_number += 1
        suspect = not alone and groups[0] in self._suspects
        seconds = self.sizer.expected_s(len(groups), None if replicates is None else len(replicates))
        return Task(self.last_number, groups, replicates, alone, suspect, seconds)
