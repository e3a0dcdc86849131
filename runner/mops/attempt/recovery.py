"""What follows when a task is lost, raises or comes back empty: it runs again elsewhere, in smaller tasks or alone.

A single simulation that keeps killing its workers is quarantined: mops records it as failed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.plan import Plan
from mops.attempt.sizing import TASKS_PER_SLOT
from mops.attempt.tasks import TaskLost, TaskRaised
from mops.cluster.base import DEATHS, Cluster
from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError, MopsError, UsageError
from mops.task import Failure, Task, TaskRequest, TaskResult, missing_losses, task_number
from mops.units import shortened

logger = logging.getLogger(__name__)

EMPTY_LIMIT = 5  # how often in a row a task may come back empty before it counts as lost by its own fault
_LOST_LIMIT = 100  # how many tasks may be lost in a row before the attempt gives up; more if more can be in flight
_ERROR_CHARACTERS = 200
_LISTED = 5

_Step = tuple[int, int | None]


class TaskRecovery:
    """Decides about the tasks that do not come back with a result. Used by the loop alone."""

    def __init__(self, job: ClaimedJob, cluster: Cluster, plan: Plan):
        self._job, self._cluster, self._plan = job, cluster, plan
        self._faulty_workers = FaultyWorkers()
        self._n_lost_in_a_row = 0  # without those that a broken connection took
        self._n_empty: Counter[_Step] = Counter()
        self._n_deaths: Counter[_Step] = Counter()
        self._n_results_lost: Counter[int] = Counter()
        self._n_tries: Counter[tuple[int, int]] = Counter()

    def came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Clear the counts against a task and its worker, unless its result is empty."""
        self._n_results_lost.pop(task.number, None)
        if worker:  # else the runner made the result itself, which says nothing about workers
            self._n_lost_in_a_row = 0
        if is_empty:
            return
        if worker:
            self._faulty_workers.succeeded(worker)
        if self._n_empty:
            for step in _steps_of(task):
                self._n_empty.pop(step, None)

    def came_back_empty(self, task: Task) -> TaskLost | None:
        """Count an empty result; after several in a row return a loss, which the caller delivers to :meth:`lost`."""
        # A replaced pool or another schema causes one empty result, and not several in a row. A partial result does not
        # count, because it leaves less to run.
        steps = _steps_of(task)
        self._n_empty.update(steps)
        n = min(self._n_empty[step] for step in steps)
        if n < EMPTY_LIMIT:
            logger.info("%s: %s came back without a result; it runs again", self._job.name, task_text(task))
            return None
        for step in steps:
            del self._n_empty[step]
        return TaskLost(task, f"it came back without a result {n} times", blamed=True, signal="no result")

    def postponed(self, tries: Mapping[tuple[int, int], int]) -> None:
        """Count the tries of what a task has left to a task that runs alone (:class:`TaskResult`)."""
        self._n_tries.update(tries)

    def tries_before(self, task: Task) -> dict[int, int]:
        """Return how often the replicates and targets of a task were tried, by number; nothing unless it runs alone."""
        if not task.alone:
            return {}
        group, numbers = task.groups[0], task.replicates
        n_replicates, n_targets = self._job.groups.n_replicates(group), len(self._job.context.targets)
        if not numbers:  # the targets, or all of the group
            numbers = tuple(range(n_replicates if task.replicates == () else 0, n_replicates + n_targets))
        found = {}
        for number in numbers:
            deaths = self._n_deaths[group, None] + self._n_deaths[group, number if number < n_replicates else -1]
            if n := deaths + self._n_tries[group, number]:
                found[number] = n
        return found

    def lost(self, loss: TaskLost) -> int:
        """Send a lost task again: 0; or return how often it was lost: the caller must then quarantine it."""
        # Dask has run the task a second time already, if its first worker died (`DEATHS`).
        self._n_lost_in_a_row += loss.connected
        if self._n_lost_in_a_row > max(_LOST_LIMIT, 2 * TASKS_PER_SLOT * self._plan.share.slots):
            raise ClusterError(
                f"Dask lost {self._n_lost_in_a_row} tasks in a row; the last one: {loss.why}",
                where=self._job.name,
                hint=f"look at the logs of the workers; then continue the job: mops jobs resume {self._job.name}",
            )
        task = loss.task
        if not loss.blamed:
            logger.info("%s: %s was lost: %s; it runs again", self._job.name, task_text(task), loss.why)
            self._plan.task_lost(task.number)
            return 0
        steps = _steps_of(task)
        self._n_deaths.update(steps)
        n_times = sum(self._n_deaths[step] for step in {(task.groups[0], None), steps[0]})
        # A task that runs alone has one group. It cannot be cut if it runs one simulation, or only targets.
        units = self._job.replicates_to_run(task.groups[0]) if task.replicates is None else task.replicates
        quarantined = task.alone and len(units) <= 1
        logger.warning("%s: %s", self._job.name, _loss_text(loss, n_times, quarantined=quarantined))
        if quarantined:
            return n_times
        self._plan.task_lost(task.number, blamed=True)
        return 0

    def raised(self, event: TaskRaised) -> TaskLost | None:
        """Send a task that raised to another worker, or return a loss, which the caller delivers to :meth:`lost`."""
        task, faulty, n_avoided = event.task, self._faulty_workers, len(self._faulty_workers.avoided)
        decision = faulty.raised(task, event.worker, event.error, self._cluster.addresses)
        said = " ".join(str(event.error).split())
        error = shortened(f"{type(event.error).__name__}: {said}", _ERROR_CHARACTERS)
        what = (task_text(task), event.worker or "the scheduler", error, decision.value)
        logger.warning("%s: %s raised on %s: %s; %s", self._job.name, *what)
        if decision in (AfterFault.END, AfterFault.RAISES_EVERYWHERE):
            if isinstance(event.error, UsageError | ClusterError):
                raise event.error
            # A StorageError counts too, because only the worker met it: the runner can still commit.
            raise _end_of_attempt(event, error, decision, self._job.name) from event.error
        if len(faulty.avoided) > n_avoided:
            self._cluster.avoid(frozenset(faulty.avoided))
            message = "%s: worker %s is faulty; it gets no more tasks; workers left: %d"
            logger.warning(message, self._job.name, event.worker, self._cluster.workers)
        if decision is AfterFault.BLAME:
            return TaskLost(task, f"it raised {error}", blamed=True, signal=type(event.error).__name__)
        self._plan.task_lost(task.number)
        return None

    def worker_lost(self, loss: WorkerLoss) -> list[TaskLost]:
        """Forget a worker, because another one may get its address; return losses of tasks that its death blames."""
        if self._faulty_workers.worker_left(loss.worker):
            self._cluster.avoid(frozenset(self._faulty_workers.avoided))
        # Dask counts deaths only while a task runs. If a task's result kills each worker that sends it to the runner,
        # Dask runs the task again without end.
        numbers = [task_number(key) for key in loss.results if self._job.context.mark in key]
        tasks = [self._plan.tasks_in_flight[number] for number in numbers if number in self._plan.tasks_in_flight]
        blamed = []
        for task in tasks if not loss.cause.removed else ():
            self._n_results_lost[task.number] += 1
            n = self._n_results_lost[task.number]
            if n >= (1 if task.suspect else DEATHS):
                del self._n_results_lost[task.number]
                died = "a worker" if n == 1 else f"{n} workers"
                blamed.append(TaskLost(task, f"{died} died while sending its result", blamed=True, cause=loss.cause))
        return blamed

    def groups_finished(self, groups: Iterable[int]) -> None:
        """Forget groups that are finished."""
        self._faulty_workers.groups_finished(groups)

    def to_avoid(self, task: Task) -> frozenset[str]:
        """Return the workers that must not run a task."""
        return self._faulty_workers.to_avoid(task)


FAULTS = 3  # how many tasks in a row raise on a worker until it is faulty, and how often a task raises until it is cut

WITNESSES = 3  # how many workers must report that nothing can run, if there are that many and nothing has run yet

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


class FaultyWorkers:
    """Which tasks have raised on which workers in this attempt."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()
        self._faults: dict[int, _FaultsOfGroup] = {}
        self._witnesses: set[str] = set()  # workers that reported that nothing can run, before anything has
        self._has_succeeded = False
        self.avoided: set[str] = set()  # the faulty workers

    def raised(self, task: Task, worker: str, error: BaseException, workers: Set[str]) -> AfterFault:
        """Count an error of a task on a worker (empty: the task reached none) of all workers; decide what follows."""
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
        if not task.alone or all(len(of.succeeded_since) >= min(_SUCCEEDED_SINCE, len(of.on)) for of in faults):
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


def _end_of_attempt(event: TaskRaised, error: str, why: AfterFault, job: str) -> ClusterError:
    """Return the error that ends an attempt after a task has raised."""
    if why is AfterFault.RAISES_EVERYWHERE:
        what = f"{task_text(event.task)} raised on every worker that ran it; on the last one, {event.worker}: {error}"
        hint = "fix the cause of this error, or look at the logs of the workers"
    else:
        what = f"no task can run on any worker; the last error, from {event.worker or 'the scheduler'}: {error}"
        hint = "look at the disks, limits and logs of the workers"
    return ClusterError(what, where=job, hint=f"{hint}; then continue the job: mops jobs resume {job}")


def _steps_of(task: Task) -> list[_Step]:
    """Name the steps of a task: (group, None) for a group, (group, replicate), or (group, -1) for its targets."""
    if task.replicates is None:
        return [(group, None) for group in task.groups]
    return [(task.groups[0], replicate) for replicate in task.replicates or (-1,)]


def quarantine_result(request: TaskRequest, loss: TaskLost, attempts: int) -> TaskResult:
    """Return the result of a task that is not sent again: its simulation, or each of its targets, has failed."""
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


def _loss_text(loss: TaskLost, n_times: int, *, quarantined: bool) -> str:
    """Return the log line of a task that is blamed for its loss."""
    task, cause = loss.task, f" ({loss.cause.text})" if loss.cause.text else ""
    what = "killed its workers" if loss.signal == "KilledWorker" else "gave no result"
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
