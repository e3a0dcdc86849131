"""Decides what runs next: events in, tasks out. Pure, so that its tests need no cluster.

The window rolls: as groups leave, the next enter, and never more than fit into it are in flight. Work is cut by
measured time: groups that are short against a task's budget are fused into one, a group that is long is run in
pieces, a few replicates each, and its targets by themselves.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from mops.attempt.planning.task_size import PIECES_PER_SLOT, TASKS_PER_SLOT, least_tasks, piece_size, task_budget_s
from mops.attempt.planning.window import Window
from mops.task import Task

_DECAY = 0.8
_ANY = 1 << 20


@dataclass
class _Split:
    """A group that is run in pieces."""

    left: list[int] = field(default_factory=list)  # a heap: replicates that are not sent
    targets_due: bool = False
    closing: bool = False
    late: list[int] = field(default_factory=list)  # replicates that are to run alone
    targets_late: bool = False


class Plan:
    """The groups that are left, those in flight, and the next tasks.

    Parameters
    ----------
    todo
        Indices of the groups to run, in study order.
    n_todo
        How many they are.
    n_replicates
        Returns a group's number of replicates.
    window
        The most groups in flight.
    slots
        Simulations that run at once. May be set anew at any time, as ``workers`` may, and ``tasks``: the most tasks
        in flight where other jobs have a share (None: nobody else is there).
    task_seconds
        How long a task should take.
    fuse
        Whether a task may hold several groups.
    window_per_slot
        Tasks that the window is divided into at least, for each slot.
    """

    def __init__(
        self,
        todo: Iterable[int],
        n_todo: int,
        n_replicates: Callable[[int], int],
        *,
        window: Window,
        slots: int,
        task_seconds: float,
        fuse: bool,
        window_per_slot: float,
    ):
        self._new_groups: Iterator[int] = iter(todo)
        self._n_left = n_todo
        self._n_replicates = n_replicates
        self._window, self._window_per_slot = window, window_per_slot
        self._task_seconds, self._fuse = task_seconds, fuse
        self.slots, self.workers = slots, 1
        self.tasks: int | None = None
        self._returned_groups: list[int] = []  # a heap: what a task gave back goes first, in study order
        self._flying: dict[int, Task] = {}
        self._n_whole = 0  # groups of the tasks in flight that hold whole ones
        self._split: dict[int, _Split] = {}
        self._suspects: set[int] = set()  # groups of a task that took down its workers: each in a task of its own
        self._alone_at_end: deque[int] = deque()  # groups that are to run alone, when nothing else does
        self._number = 0
        self._seconds = self._groups = self._simulations = 0.0
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """Groups that are in flight."""
        return self._n_whole + len(self._split)

    @property
    def tasks_in_flight(self) -> dict[int, Task]:
        """The tasks that are not back, by number."""
        return self._flying

    @property
    def last_number(self) -> int:
        """The number of the task that was sent last; 0: none was."""
        return self._number

    @property
    def over(self) -> bool:
        """Whether nothing is in flight and nothing will be sent."""
        if self._flying or any(split.targets_due or split.closing for split in self._split.values()):
            return False
        return self._stopped or not (self._n_left or self._split or self._alone_at_end)

    @property
    def wanted_slots(self) -> int:
        """Simulations that it could run at once now, if there were slots without end."""
        flying = len(self._flying)
        if self._stopped:
            return flying
        if flying and next(iter(self._flying.values())).alone:
            return flying * max(self.slots // self.workers, 1)
        each_s = self.seconds_per_group
        pieces = _ANY if each_s is None else max(math.ceil(each_s / self._task_seconds), 1)
        whole = min(self._n_left, max(self._window.size - self.in_flight, 0))
        return flying + sum(len(split.left) for split in self._split.values()) + whole * pieces

    @property
    def seconds_per_group(self) -> float | None:
        """The measured time of a group on one slot, recent tasks counting most; None: not measured."""
        return self._seconds / self._groups if self._groups else None

    @property
    def _seconds_per_simulation(self) -> float | None:
        return self._seconds / self._simulations if self._simulations else None

    def measured(self, seconds: float, groups: float, simulations: float) -> None:
        """Take a measurement: so many groups (a piece is a fraction of one) took ``seconds`` on one slot."""
        self._seconds = self._seconds * _DECAY + seconds
        self._groups = self._groups * _DECAY + groups
        self._simulations = self._simulations * _DECAY + simulations

    def next_tasks(self, *, pilot: bool) -> list[Task]:
        """Return the tasks that fill the window.

        Parameters
        ----------
        pilot
            The job has no reference schema yet: one task at a time, in study order, until one gives it.
        """
        if pilot and self._flying:
            return []
        requests: list[Task] = []
        while (request := self._next()) is not None:
            self._flying[request.number] = request
            requests.append(request)
            if pilot:
                break
        return requests

    def finished(
        self, number: int, done: frozenset[int], seconds: float, postponed: frozenset[int] = frozenset()
    ) -> None:
        """Take the end of a task of whole groups: its results are in the open checkpoint and its future is released.

        Groups that it gave back (its budget was used, or it was stopped) go first in what is sent next; those that are
        postponed go last, each alone.
        """
        alone, elsewhere = self._flying[number].alone, done | postponed
        left = [group for group in self._land_whole(number) if group not in elsewhere]
        if alone:  # it has its reason
            self._alone_at_end += left
        else:
            self._give_back(left)
        self._alone_at_end += sorted(postponed)
        self._suspects -= done
        if done and seconds:
            self.measured(seconds, len(done), sum(map(self._n_replicates, done)))

    def piece_finished(
        self, number: int, settled: frozenset[int], seconds: float, postponed: frozenset[int] = frozenset()
    ) -> None:
        """Take the end of a piece; replicates that are not settled are sent again, and those postponed last."""
        alone = self._flying[number].alone
        group, sent = self._land_piece(number)
        if sent:
            self._split[group].late += sorted(postponed)
        else:
            self._split[group].targets_late = bool(postponed)
        left = [replicate for replicate in sent if replicate not in settled | postponed]
        if alone:  # it has its reason
            self._split[group].late += left
        else:
            self._return_replicates(group, left)
        if settled and seconds:
            self.measured(seconds, len(settled) / self._n_replicates(group), len(settled))

    def targets_due(self, group: int) -> None:
        """Note that a group in pieces has all its replicates, and is to be scored."""
        self._split[group].targets_due = True

    def targets_again(self, group: int, *, alone: bool) -> None:
        """Note that a group's targets have come back without what was asked for; after a stop that is their end."""
        split = self._split[group]
        split.targets_due, split.targets_late = not (alone or self._stopped), alone

    def closing(self, group: int) -> None:
        """Note that a group that was run in pieces is on its way into the open checkpoint."""
        self._split[group].closing = True

    def closed(self, group: int) -> None:
        """Note that a group that was run in pieces has left: its results are in the open checkpoint."""
        del self._split[group]
        self._suspects.discard(group)

    def lost(self, number: int, *, blamed: bool = False) -> None:
        """Take a task back that did not come back; what it held is sent again.

        Parameters
        ----------
        blamed
            Workers died of it: its groups are sent one by one, then each simulation alone, to find the one that did it.
        """
        request = self._flying[number]
        self._suspects.update(request.groups if blamed else ())
        late = blamed or request.alone
        if request.replicates is None:
            self._whole_lost(self._land_whole(number), blamed=blamed, late=late)
            return
        group, sent = self._land_piece(number)
        split = self._split[group]
        if not sent:
            split.targets_late, split.targets_due = late, not late
        elif late:
            split.late += sent
        else:
            self._return_replicates(group, sent)

    def _whole_lost(self, groups: tuple[int, ...], *, blamed: bool, late: bool) -> None:
        if len(groups) > 1 or not late:
            self._give_back(groups)
        elif blamed and (n := self._n_replicates(groups[0])) > 1:
            self._split[groups[0]] = _Split(late=list(range(n)))
        else:
            self._alone_at_end += groups

    def stop(self) -> None:
        """Send nothing more but the targets of groups that have all their replicates."""
        self._stopped = True

    def _land_whole(self, number: int) -> tuple[int, ...]:
        groups = self._flying.pop(number).groups
        self._n_whole -= len(groups)
        return groups

    def _land_piece(self, number: int) -> tuple[int, tuple[int, ...]]:
        request = self._flying.pop(number)
        assert request.replicates is not None
        return request.groups[0], request.replicates

    def _give_back(self, groups: Iterable[int]) -> None:
        for group in groups:
            heapq.heappush(self._returned_groups, group)
            self._n_left += 1

    def _return_replicates(self, group: int, replicates: Iterable[int]) -> None:
        for replicate in replicates:
            heapq.heappush(self._split[group].left, replicate)

    def _next(self) -> Task | None:
        if self._flying and next(iter(self._flying.values())).alone:  # then all are: nothing else is sent beside one
            suspected = any(not self._suspects.isdisjoint(request.groups) for request in self._flying.values())
            room = len(self._flying) < self.workers and not self._stopped and not suspected
            return self._next_alone() if room else None
        for group, split in self._split.items():
            if split.targets_due or (split.left and not self._stopped):
                return self._next_piece(group, split)
        if self._stopped:
            return None
        if self._n_left and self.in_flight < self._window.size:
            return self._next_groups()
        return self._next_alone() if not self._flying else None

    def _next_alone(self) -> Task | None:
        """Return what is to have a worker for itself: one for each worker, and nothing beside them.

        What is suspected to end its worker is the only one: on a worker that dies with two, which one did it?
        """
        for group, split in self._split.items():
            if self._flying and group in self._suspects:
                continue
            if split.late:
                return self._numbered((group,), (split.late.pop(),), alone=True)
            if split.targets_late:
                split.targets_late = False
                return self._numbered((group,), (), alone=True)
        if self._flying and self._alone_at_end and self._alone_at_end[0] in self._suspects:
            return None
        if self._alone_at_end and self.in_flight < self._window.size:
            self._n_whole += 1
            return self._numbered((self._alone_at_end.popleft(),), None, alone=True)
        return None

    def _next_piece(self, group: int, split: _Split) -> Task | None:
        if self._full(PIECES_PER_SLOT):  # also for targets: all the results of their group go with each task
            return None
        if split.targets_due:
            split.targets_due = False
            return self._numbered((group,), ())
        size = piece_size(len(split.left), self._seconds_per_simulation, self._budget_s())
        return self._numbered((group,), tuple(heapq.heappop(split.left) for _ in range(size)))

    def _next_groups(self) -> Task | None:
        """Return the next task of whole groups, or the first piece of a group that is too long for one."""
        if self._full(1 if self.seconds_per_group is None else TASKS_PER_SLOT):
            return None
        size, room = self._size(), self._window.size - self.in_flight
        if room < min(size, self._n_left) and len(self._flying) >= self._least_tasks:
            return None  # a crumb now would leave a crumb of room when it is back, and so on for ever
        first = self._first()
        if self._too_long(first):
            self._split[first] = _Split(list(range(self._n_replicates(first))))
            return self._next_piece(first, self._split[first])
        groups = (first, *self._more(min(size, room) - 1 if first not in self._suspects else 0))
        self._n_whole += len(groups)
        return self._numbered(groups, None)

    def _full(self, tasks_per_slot: int) -> bool:
        """Tell whether enough tasks are in flight."""
        most = tasks_per_slot * self.slots
        return len(self._flying) >= (most if self.tasks is None else min(most, self.tasks))

    def _more(self, n: int) -> Iterator[int]:
        """Yield up to ``n`` further groups of the same task."""
        for _ in range(min(n, self._n_left)):
            group = self._first()
            if group in self._suspects:
                self._give_back((group,))
                return
            yield group

    def _numbered(self, groups: tuple[int, ...], replicates: tuple[int, ...] | None, *, alone: bool = False) -> Task:
        self._number += 1
        suspect = not alone and groups[0] in self._suspects
        return Task(self._number, groups, replicates, alone, suspect, self._expected_s(groups, replicates))

    def _expected_s(self, groups: tuple[int, ...], replicates: tuple[int, ...] | None) -> float:
        if replicates is None:
            return len(groups) * (self.seconds_per_group or self._task_seconds)
        return len(replicates) * (self._seconds_per_simulation or self._task_seconds)

    def _size(self) -> int:
        """Return how many groups a task should hold: about the budget, and a share of the window."""
        if not self._fuse or self.seconds_per_group is None:
            return 1
        by_window = self._window.size // self._least_tasks
        return max(1, min(by_window, int(self._budget_s() / max(self.seconds_per_group, 1e-9))))

    @property
    def _least_tasks(self) -> int:
        return least_tasks(self.slots, self._window_per_slot)

    def _budget_s(self) -> float:
        left_s = self._n_left * (self.seconds_per_group or 0.0)
        return task_budget_s(task_seconds=self._task_seconds, left_s=left_s, slots=self.slots)

    def _too_long(self, group: int) -> bool:
        """Tell whether a group does not fit into one task; before anything is measured, each may be too long."""
        n_replicates, each_s = self._n_replicates(group), self._seconds_per_simulation
        return n_replicates > 1 and (each_s is None or n_replicates * each_s > self._budget_s())

    def _first(self) -> int:
        self._n_left -= 1
        return heapq.heappop(self._returned_groups) if self._returned_groups else next(self._new_groups)
