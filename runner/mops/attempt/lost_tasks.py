"""What to do about tasks that took down their workers, and about workers that ran out of memory.

Such work is sent in ever smaller tasks, until one simulation is found, alone on its worker: it is quarantined. Cutting
the tasks is :mod:`mops.attempt.planning.plan`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mops.attempt.tasks_in_flight import TaskLost
from mops.cluster.worker_losses import LossCause, WorkerLoss
from mops.storage.live_record import Live
from mops.task import Failure, Task, TaskRequest, TaskResult, missing_losses
from mops.units import bytes_text
from mops.verdicts import Report

EMPTY_LIMIT = 5
"""How often a task may come back without anything in a row before what it runs is to blame."""

Step = tuple[int, int | None]


class LostTasks:
    """How often tasks were lost, came back empty, or took down their workers. Used by the loop alone.

    Attributes
    ----------
    n_in_a_row
        Tasks lost since one came back. Those that a lost connection took with it say nothing of the cluster, and do not
        count.
    """

    def __init__(self) -> None:
        self.n_in_a_row = 0
        self._n_empty: Counter[Step] = Counter()
        self._n_deaths: Counter[Step] = Counter()

    def came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Note a task that has come back from a worker; an empty address: none ran it."""
        if worker:
            self.n_in_a_row = 0
        if not is_empty and self._n_empty:
            for step in steps_of(task):
                self._n_empty.pop(step, None)

    def came_back_empty(self, task: Task) -> TaskLost | None:
        """Count a task that has come back without anything; return a loss to blame it for after several in a row.

        A pool that was replaced, or another schema, can cause one empty return, not several in a row. What comes back
        in part makes progress, and so ends by itself.
        """
        steps = steps_of(task)
        self._n_empty.update(steps)
        n = min(self._n_empty[step] for step in steps)
        if n < EMPTY_LIMIT:
            return None
        for step in steps:
            del self._n_empty[step]
        return TaskLost(task, f"it came back without one {n} times", blamed=True, signal="no result")

    def count_death(self, task: Task) -> int:
        """Count that its workers died of a task; return how often its first simulation, or its targets, had that."""
        steps = steps_of(task)
        self._n_deaths.update(steps)
        first, whole = steps[0], (task.groups[0], None)
        return self._n_deaths[whole] + (self._n_deaths[first] if first != whole else 0)


def steps_of(task: Task) -> list[Step]:
    """Name what a task runs: (group, None), or (group, replicate), or (group, -1) for its targets."""
    if task.replicates is None:
        return [(group, None) for group in task.groups]
    return [(task.groups[0], replicate) for replicate in task.replicates or (-1,)]


def is_single(task: Task, n_replicates: Callable[[int], int]) -> bool:
    """Tell whether a task cannot be made smaller: one simulation, or one group's targets."""
    if task.replicates is not None:
        return len(task.replicates) <= 1
    return len(task.groups) == 1 and n_replicates(task.groups[0]) == 1


def quarantine_result(request: TaskRequest, why: str, cause: LossCause, attempts: int, signal: str) -> TaskResult:
    """Return the result of a task that cannot be made smaller and is not sent again: quarantined.

    Parameters
    ----------
    why
        What became of it, for people.
    cause
        Why its workers died: it is ``oom`` where they ran out of memory, and else ``lost``.
    signal
        What says that it cannot be run.
    """
    (group,), targets = request.groups, request.context.targets
    signals = "; ".join(filter(None, (signal, cause.text)))
    said = ("oom" if cause.memory else "lost", f"quarantined: {why}", "", attempts, signals)
    if request.replicates == ():
        failures = [Failure(group.index, None, None, target, *said) for target in targets]
    else:
        replicate = request.replicates[0] if request.replicates else 0
        failures = [Failure(group.index, replicate, group.seeds[replicate], None, *said)]
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


def lost_report(event: TaskLost, n_times: int, *, quarantined: bool) -> Report:
    """Return what is to be said of a task that took down its workers.

    Parameters
    ----------
    n_times
        How often its first group has been part of such a task.
    """
    task = event.task
    if event.died:
        cause = event.cause.text or "they were killed, or the simulation ended them"
        what = f"{described(task)} ended its workers (time {n_times}): {event.why}: {cause}"
    else:
        what = f"{described(task)} gives no result (time {n_times}), other tasks on its workers do: {event.why}"
    if quarantined:
        then = "it is quarantined, recorded as failed"
    elif task.replicates is None and len(task.groups) > 1:
        then = "its parameter sets run again one by one"
    else:
        then = "its simulations run again at the end, each alone on a worker"
    return Report("oom" if event.cause.memory else "lost", what, then)


def described(task: Task) -> str:
    """Name a task for people, by what it holds."""
    if task.replicates is None:
        return f"task {task.number} with group{'s' * (len(task.groups) > 1)} {', '.join(map(str, task.groups))}"
    which = f"replicates {', '.join(map(str, task.replicates))}" if task.replicates else "the targets"
    return f"task {task.number} with {which} of group {task.groups[0]}"


def killed_report(live: Live, attempt: int, now: int, oom: str) -> Report:
    """Return what is to be said where the runner of the attempt before ran out of memory, or probably did.

    Parameters
    ----------
    live
        Its last sign of life.
    now
        Parameter sets in flight.
    oom
        What says so; empty: only its last sign of life does.
    """
    took = f"{bytes_text(live.memory_bytes)} of {bytes_text(live.limit_bytes)}"
    in_flight = f"parameter sets in flight: {now} now, {live.window} before"
    return Report(
        "oom",
        f"the runner of attempt {attempt} ended at {took} on {live.host}: "
        f"{oom or 'it probably ran out of memory'}: {in_flight}",
        f"set MODELOPS_JOB_BATCH_SIZE={now} to keep it so, or give the runner more memory",
    )


def memory_report(loss: WorkerLoss, n_tasks: int, before: int, now: int) -> Report:
    """Return what is to be said where a worker ran out of memory.

    Parameters
    ----------
    n_tasks
        Tasks of this job that it had.
    before, now
        Parameter sets in flight.
    """
    in_flight = f"parameter sets in flight: {now} now, {before} before"
    return Report(
        "oom",
        f"a worker ran out of memory: {loss.cause.text} ({loss.worker}; tasks that run again: {n_tasks}): {in_flight}",
        f"set MODELOPS_JOB_BATCH_SIZE={now} to keep it so, or give workers more memory",
    )
