"""Workers on which tasks raise: whether the worker is faulty, or the task, or nothing can run anywhere. Pure.

A task that raises is first a fault of its worker (a full disk, no descriptors left, a missing package): it runs on
another one. A worker is faulty after :data:`FAULTS` in a row, and nothing more is sent there; what has raised elsewhere
before, or runs alone, says nothing of it. A task that has raised as often is cut down like one that has taken down its
workers (:mod:`mops.attempt.lost_tasks`), and failed by name at the end, where workers on which it has raised have come
good with others since. Where all workers are faulty, nothing can run; without any, the cluster is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from enum import Enum

from mops.attempt.lost_tasks import described
from mops.errors import ClusterError, MopsError
from mops.task import Task

FAULTS = 3
"""Tasks that raise on a worker, without a good one between, after which it is faulty. And how often a task raises until
it is cut down."""

WITNESSES = 3
"""Workers that say that nothing can run, if there are so many, where nothing has run yet."""

_GOOD_SINCE = 2


class AfterFault(Enum):
    """What follows of a task that has raised."""

    ELSEWHERE = "it runs elsewhere"
    BLAME = "it has raised on several workers"
    END = "nothing can run anywhere"
    RAISES_EVERYWHERE = "it has raised on all its workers, and no other task has run there since"


@dataclass
class _FaultsOfTask:
    """How often a group has raised since it was cut down, on which workers, and which have come good since."""

    times: int = 0
    on: set[str] = field(default_factory=set)
    good_since: set[str] = field(default_factory=set)

    @property
    def is_to_blame(self) -> bool:
        return len(self.good_since) >= min(_GOOD_SINCE, len(self.on))


class FaultyWorkers:
    """What has raised where, in one attempt."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()
        self._raised: dict[int, _FaultsOfTask] = {}
        self._at_first: set[str] = set()  # workers that have said why nothing can run, before anything has
        self._anything_good = False
        self.avoided: set[str] = set()
        """Workers that are faulty."""

    def raised(self, task: Task, worker: str, error: BaseException, workers: Set[str]) -> AfterFault:
        """Take a task that has raised; its worker may be faulty from now on.

        Parameters
        ----------
        worker
            Its address; empty: it came to none.
        workers
            The addresses of all workers that there are now, as far as it is known.
        """
        if not self._anything_good and isinstance(error, MopsError):
            self._at_first.add(worker)
            if len(self._at_first) >= min(WITNESSES, max(len(workers - self.avoided), 1)):
                return AfterFault.END
        past = [self._raised.setdefault(group, _FaultsOfTask()) for group in task.groups]
        raised_elsewhere = any(one.on - {worker} for one in past)
        for one in past:
            one.times += 1
            one.on.update([worker] if worker else ())
        if not worker or not (task.alone or raised_elsewhere):
            self._in_a_row[worker] += 1
        if self._in_a_row[worker] >= FAULTS:
            self.avoided.add(worker)
        # Without a worker's address, the scheduler cannot read tasks.
        if "" in self.avoided or (workers and workers <= self.avoided):
            return AfterFault.END
        if min(one.times for one in past) < FAULTS:
            return AfterFault.ELSEWHERE
        for one in past:
            one.times = 0
        if not task.alone or all(one.is_to_blame for one in past):
            return AfterFault.BLAME
        others_raise = len(self._raised) > len(past)
        return AfterFault.END if others_raise else AfterFault.RAISES_EVERYWHERE

    def good(self, worker: str) -> None:
        """Take a task that has come back from a worker with what it was asked for, or part of it."""
        self._anything_good = True
        for of in (worker, ""):
            self._in_a_row.pop(of, None)
        for past in self._raised.values():
            past.good_since |= past.on & {worker}

    def left(self, worker: str) -> bool:
        """Forget a worker that has left, whose address another one may get; return whether it was avoided."""
        self._in_a_row.pop(worker, None)
        was_avoided = worker in self.avoided
        self.avoided.discard(worker)
        return was_avoided

    def forget(self, groups: Iterable[int]) -> None:
        """Forget groups that are finished."""
        for group in groups if self._raised else ():
            self._raised.pop(group, None)

    def avoid(self, task: Task) -> frozenset[str]:
        """Return the workers on which a task is not to run: the faulty ones, and those on which its work has raised."""
        if not self._raised and not self.avoided:
            return frozenset()
        on = (self._raised[group].on for group in task.groups if group in self._raised)
        return frozenset(self.avoided.union(*on))


def nothing_can_run(task: Task, worker: str, said: str, why: AfterFault, job: str) -> ClusterError:
    """Return the error that ends an attempt after a task has raised.

    Parameters
    ----------
    worker
        The address of the worker that ran it last; empty: it came to none.
    said
        What it raised there.
    """
    if why is AfterFault.RAISES_EVERYWHERE:
        what = f"{described(task)} raised on every worker that ran it; on the last one, {worker or 'none'}: {said}"
        hint = "correct what it raised, or look at the workers' logs"
    else:
        what = f"no simulation can run on any worker; the last one, {worker or 'none'}, says: {said}"
        hint = "look at the workers' disks, limits and logs"
    return ClusterError(what, where=job, hint=f"{hint}; mops jobs resume goes on from what is committed")
