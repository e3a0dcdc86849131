"""Decides, after a task has raised on a worker, whether the worker is faulty, or the task, or nothing can run. Pure.

An error that a task raises counts first against its worker, which may have a full disk, no free file descriptors, or
a missing package. So the task runs on another worker. A worker is faulty after :data:`FAULTS` errors in a row, and gets
no more tasks. Errors of a task that has raised elsewhere before, or runs alone, do not count against its worker.

A task that has raised :data:`FAULTS` times is cut into smaller ones, like a task whose workers died
(:mod:`mops.attempt.lost_tasks`). At the end, the runner records it as failed if workers on which it raised have
succeeded with other tasks since. If all workers are faulty, the attempt ends. Without workers, the attempt
waits for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from enum import Enum

from mops.attempt.lost_tasks import task_text
from mops.errors import ClusterError, MopsError
from mops.task import Task

FAULTS = 3
"""How many tasks in a row raise on a worker until it is faulty, and how often a task raises until it is cut."""

WITNESSES = 3
"""How many workers must report that nothing can run, if there are that many and nothing has run yet."""

_SUCCEEDED_SINCE = 2


class AfterFault(Enum):
    """What follows after a task has raised."""

    ELSEWHERE = "runs on another worker"
    BLAME = "runs in smaller tasks"
    END = "no task can run on any worker"
    RAISES_EVERYWHERE = "it raised on all its workers, and no other task has succeeded there since"


@dataclass
class _FaultsOfGroup:
    """How often a group has raised since it was cut, on which workers, and which of them have succeeded since."""

    times: int = 0
    on: set[str] = field(default_factory=set)
    succeeded_since: set[str] = field(default_factory=set)

    @property
    def is_to_blame(self) -> bool:
        return len(self.succeeded_since) >= min(_SUCCEEDED_SINCE, len(self.on))


class FaultyWorkers:
    """Which tasks have raised on which workers in this attempt."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()
        self._faults: dict[int, _FaultsOfGroup] = {}
        self._witnesses: set[str] = set()  # workers that reported that nothing can run, before anything has
        self._has_succeeded = False
        self.avoided: set[str] = set()
        """The faulty workers."""

    def raised(self, task: Task, worker: str, error: BaseException, workers: Set[str]) -> AfterFault:
        """Count an error of a task, and decide what follows.

        Parameters
        ----------
        worker
            The address of the task's worker; empty: the task reached none.
        workers
            The addresses of all workers.
        """
        if not self._has_succeeded and isinstance(error, MopsError):
            self._witnesses.add(worker)
            if len(self._witnesses) >= min(WITNESSES, max(len(workers - self.avoided), 1)):
                return AfterFault.END
        faults = [self._faults.setdefault(group, _FaultsOfGroup()) for group in task.groups]
        raised_elsewhere = any(of_group.on - {worker} for of_group in faults)
        for of_group in faults:
            of_group.times += 1
            of_group.on.update([worker] if worker else ())
        if not worker or not (task.alone or raised_elsewhere):
            self._in_a_row[worker] += 1
        if self._in_a_row[worker] >= FAULTS:
            self.avoided.add(worker)
        # If a task reaches no worker, the scheduler cannot read the task.
        if "" in self.avoided or (workers and workers <= self.avoided):
            return AfterFault.END
        if min(of_group.times for of_group in faults) < FAULTS:
            return AfterFault.ELSEWHERE
        for of_group in faults:
            of_group.times = 0
        if not task.alone or all(of_group.is_to_blame for of_group in faults):
            return AfterFault.BLAME
        others_raise = len(self._faults) > len(faults)
        return AfterFault.END if others_raise else AfterFault.RAISES_EVERYWHERE

    def succeeded(self, worker: str) -> None:
        """Note that a worker has returned a result."""
        self._has_succeeded = True
        for address in (worker, ""):
            self._in_a_row.pop(address, None)
        for faults in self._faults.values():
            faults.succeeded_since |= faults.on & {worker}

    def worker_left(self, worker: str) -> bool:
        """Forget a worker, because another one may get its address; return whether it was avoided."""
        self._in_a_row.pop(worker, None)
        was_avoided = worker in self.avoided
        self.avoided.discard(worker)
        return was_avoided

    def groups_finished(self, groups: Iterable[int]) -> None:
        """Forget groups that are finished."""
        for group in groups if self._faults else ():
            self._faults.pop(group, None)

    def to_avoid(self, task: Task) -> frozenset[str]:
        """Return the workers that must not run a task: the faulty ones, and those on which its groups have raised."""
        if not self._faults and not self.avoided:
            return frozenset()
        on = (self._faults[group].on for group in task.groups if group in self._faults)
        return frozenset(self.avoided.union(*on))


def end_of_attempt(task: Task, worker: str, error: str, why: AfterFault, job: str) -> ClusterError:
    """Return the error that ends an attempt after a task has raised.

    Parameters
    ----------
    worker
        The address of the worker that ran the task last; empty: the task reached none.
    error
        What the task raised there.
    """
    if why is AfterFault.RAISES_EVERYWHERE:
        what = f"{task_text(task)} raised on every worker that ran it; on the last one, {worker}: {error}"
        hint = "fix the cause of this error, or look at the logs of the workers"
    else:
        what = f"no task can run on any worker; the last error, from {worker or 'the scheduler'}: {error}"
        hint = "look at the disks, limits and logs of the workers"
    return ClusterError(what, where=job, hint=f"{hint}; then continue the job: mops jobs resume {job}")
