"""Counts lost tasks, and makes the results of those that are given up. Pure.

:mod:`mops.attempt.task_recovery` acts on the counts. :mod:`mops.attempt.planning.plan` cuts a task whose workers died
into smaller ones, until one simulation is left, alone on a worker. If that fails too, it is quarantined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from mops.attempt.tasks_in_flight import TaskLost
from mops.cluster.base import DEATHS
from mops.cluster.worker_losses import LossCause
from mops.task import Failure, Task, TaskRequest, TaskResult, missing_losses

EMPTY_LIMIT = 5
"""How often in a row a task may come back empty before it counts as lost by its own fault."""

_LISTED = 5

Step = tuple[int, int | None]


class LostTasks:
    """Counts how often tasks were lost, came back empty, or had their workers die.

    Attributes
    ----------
    n_in_a_row
        Tasks that were lost since the last one came back, not counting those that a broken connection took.
    """

    def __init__(self) -> None:
        self.n_in_a_row = 0
        self._n_empty: Counter[Step] = Counter()
        self._n_deaths: Counter[Step] = Counter()
        self._n_results_lost: Counter[int] = Counter()
        self._n_tries: Counter[tuple[int, int]] = Counter()

    def came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Note that a task has come back from a worker; empty address: the runner made the result itself."""
        self._n_results_lost.pop(task.number, None)
        if worker:
            self.n_in_a_row = 0
        if not is_empty and self._n_empty:
            for step in steps_of(task):
                self._n_empty.pop(step, None)

    def came_back_empty(self, task: Task) -> TaskLost | None:
        """Count an empty result; return a loss that blames the task after several in a row.

        A replaced pool or another schema causes one empty result, and not several in a row. A partial result does not
        count, because it leaves less to run.
        """
        steps = steps_of(task)
        self._n_empty.update(steps)
        n = min(self._n_empty[step] for step in steps)
        if n < EMPTY_LIMIT:
            return None
        for step in steps:
            del self._n_empty[step]
        return TaskLost(task, f"it came back without a result {n} times", blamed=True, signal="no result")

    def result_lost(self, task: Task, cause: LossCause) -> TaskLost | None:
        """Count a death of the worker that had a task's result; return a loss that blames the task after several.

        Dask counts deaths only while a task runs. If a task's result kills each worker that sends it to the runner,
        Dask runs the task again without end.
        """
        if cause.removed:
            return None
        self._n_results_lost[task.number] += 1
        n = self._n_results_lost[task.number]
        if n < (1 if task.suspect else DEATHS):
            return None
        del self._n_results_lost[task.number]
        died = "a worker" if n == 1 else f"{n} workers"
        return TaskLost(task, f"{died} died while sending its result", blamed=True, cause=cause)

    def count_death(self, task: Task) -> int:
        """Count a death of a task's workers; return how often that happened to its first simulation, or its targets."""
        steps = steps_of(task)
        self._n_deaths.update(steps)
        first, whole = steps[0], (task.groups[0], None)
        return self._n_deaths[whole] + (self._n_deaths[first] if first != whole else 0)

    def postponed(self, tries: Mapping[tuple[int, int], int]) -> None:
        """Count the tries of what a task has left to a task that runs alone (:class:`TaskResult`)."""
        self._n_tries.update(tries)

    def tries_before(self, task: Task, n_replicates: int, n_targets: int) -> dict[int, int]:
        """Return how often the replicates and targets of a task that runs alone were tried, by number."""
        group, numbers = task.groups[0], task.replicates
        if not numbers:  # the targets, or all of the group
            numbers = tuple(range(n_replicates if task.replicates == () else 0, n_replicates + n_targets))
        found = {}
        for number in numbers:
            deaths = self._n_deaths[group, None] + self._n_deaths[group, number if number < n_replicates else -1]
            if n := deaths + self._n_tries[group, number]:
                found[number] = n
        return found


def steps_of(task: Task) -> list[Step]:
    """Name the steps of a task: (group, None) for a group, (group, replicate), or (group, -1) for its targets."""
    if task.replicates is None:
        return [(group, None) for group in task.groups]
    return [(task.groups[0], replicate) for replicate in task.replicates or (-1,)]


def is_single(task: Task, n_to_run: Callable[[int], int]) -> bool:
    """Tell whether a task cannot be cut: it runs one simulation, or one group's targets.

    Parameters
    ----------
    n_to_run
        Returns how many replicates of a group must run.
    """
    if task.replicates is not None:
        return len(task.replicates) <= 1
    return len(task.groups) == 1 and n_to_run(task.groups[0]) <= 1


def quarantine_result(request: TaskRequest, loss: TaskLost, attempts: int) -> TaskResult:
    """Return the result of a task that is not sent again: its simulation, or each of its targets, has failed.

    Parameters
    ----------
    attempts
        How often it was lost.
    """
    (group,), targets = request.groups, request.context.targets
    reason = "oom" if loss.cause.memory else "lost"
    signals = "; ".join(filter(None, (loss.signal, loss.cause.text)))
    what = (reason, f"alone on a worker: {loss.why}", "", attempts, signals)
    first = request.replicates[0] if request.replicates else request.taken_over.get(group.index, 0)
    if request.replicates == () or first == group.n_replicates:
        failures = [Failure(group.index, None, None, target, *what) for target in targets]
    else:
        failures = [Failure(group.index, first, group.seeds[first], None, *what)]
        if targets and request.replicates is None:
            failures.append(missing_losses(failures))
    return TaskResult(
        keys=request.keys,
        done=frozenset() if request.replicates else frozenset({group.index}),
        replicates=frozenset(request.replicates or ()),
        seconds=0.0,
        reference=request.reference,
        failures=failures,
    )


def loss_text(loss: TaskLost, n_times: int, *, quarantined: bool) -> str:
    """Return the log line of a task that is blamed for its loss.

    Parameters
    ----------
    n_times
        How often a task with its first group was lost in this way.
    """
    task, cause = loss.task, f" ({loss.cause.text})" if loss.cause.text else ""
    what = "killed its workers" if loss.workers_died else "gave no result"
    if quarantined:
        consequence = "recorded as failed"
    elif task.replicates is None and len(task.groups) > 1:
        consequence = "its groups run again one by one"
    else:
        consequence = "its simulations run again at the end, each alone on a worker"
    return f"{task_text(task)} {what} (times so far: {n_times}): {loss.why}{cause}; {consequence}"


def task_text(task: Task) -> str:
    """Describe a task for people, by its number and what it runs."""
    if task.replicates is None:
        return f"task {task.number} with group{'s' * (len(task.groups) > 1)} {_listed(task.groups)}"
    what = f"replicates {_listed(task.replicates)}" if task.replicates else "the targets"
    return f"task {task.number} with {what} of group {task.groups[0]}"


def _listed(numbers: tuple[int, ...]) -> str:
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return ", ".join(map(str, numbers[:_LISTED])) + more
