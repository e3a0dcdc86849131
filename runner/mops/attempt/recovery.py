"""What follows when a task is lost, raises or comes back empty.

It runs again: on another worker, in smaller tasks, or alone.

A single simulation that keeps killing its workers is quarantined: mops records it as failed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.plan import Plan
from mops.attempt.sizing import TASKS_PER_SLOT
from mops.attempt.tasks import TaskLost, TaskRaised
from mops.cluster.base import DEATHS, Cluster
from mops.cluster.worker_losses import LossCause, WorkerLoss
from mops.errors import ClusterError, MopsError, UsageError
from mops.task import Failure, Task, TaskRequest, TaskResult, missing_losses, task_number
from mops.units import shortened

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


logger = logging.getLogger(__name__)

_LOST_LIMIT = 100
"""How many tasks may be lost in a row before the attempt gives up; more if more can be in flight."""

_ERROR_CHARACTERS = 200


class TaskRecovery:
    """What happens to the tasks that do not come back with a result. Used by the loop alone.

    Parameters
    ----------
    plan
        Sends the tasks again.
    quarantine
        Gives up a task: called with its loss, and how often it was lost.
    """

    def __init__(self, job: ClaimedJob, cluster: Cluster, plan: Plan, quarantine: Callable[[TaskLost, int], None]):
        self._job, self._cluster, self._plan, self._quarantine = job, cluster, plan, quarantine
        self._lost_tasks = LostTasks()
        self._faulty_workers = FaultyWorkers()

    def came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Note that a task has come back. A result clears the counts against the task and its worker.

        Parameters
        ----------
        worker
            Its address; empty: the runner made the result itself, which says nothing about workers.
        """
        self._lost_tasks.came_back(task, worker, is_empty=is_empty)
        if worker and not is_empty:
            self._faulty_workers.succeeded(worker)

    def postponed(self, tries: Mapping[tuple[int, int], int]) -> None:
        """Count the tries of what a task has left to a task that runs alone."""
        self._lost_tasks.postponed(tries)

    def tries_before(self, task: Task) -> dict[int, int]:
        """Return how often the replicates and targets of a task were tried, by number; nothing unless it runs alone."""
        if not task.alone:
            return {}
        n_replicates = self._job.groups.n_replicates(task.groups[0])
        return self._lost_tasks.tries_before(task, n_replicates, len(self._job.context.targets))

    def is_blamed_for_empty_result(self, task: Task) -> bool:
        """Count an empty result. After several in a row treat the task as lost, and return True."""
        loss = self._lost_tasks.came_back_empty(task)
        if loss is None:
            logger.info("%s: %s came back without a result; it runs again", self._job.name, task_text(task))
            return False
        self.lost(loss)
        return True

    def lost(self, loss: TaskLost) -> None:
        """Send a lost task again, or quarantine it.

        Raises
        ------
        ClusterError
            So many tasks were lost in a row that the cluster is to blame.
        """
        self._lost_tasks.n_in_a_row += loss.connected
        if self._lost_tasks.n_in_a_row > max(_LOST_LIMIT, 2 * TASKS_PER_SLOT * self._plan.share.slots):
            raise ClusterError(
                f"Dask lost {self._lost_tasks.n_in_a_row} tasks in a row; the last one: {loss.why}",
                where=self._job.name,
                hint=f"look at the logs of the workers; then continue the job: mops jobs resume {self._job.name}",
            )
        task = loss.task
        if not loss.blamed:
            logger.info("%s: %s was lost: %s; it runs again", self._job.name, task_text(task), loss.why)
            self._plan.task_lost(task.number)
            return
        n_times = self._lost_tasks.count_death(task)
        quarantined = task.alone and is_single(task, self._job.n_to_run)
        logger.warning("%s: %s", self._job.name, loss_text(loss, n_times, quarantined=quarantined))
        if quarantined:
            self._quarantine(loss, n_times)
        else:
            self._plan.task_lost(task.number, blamed=True)

    def raised(self, event: TaskRaised) -> None:
        """Send a task that raised to another worker, and avoid a worker that is faulty.

        Raises
        ------
        MopsError
            No task can run.
        """
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
            raise end_of_attempt(task, event.worker, error, decision, self._job.name) from event.error
        if len(faulty.avoided) > n_avoided:
            self._cluster.avoid(frozenset(faulty.avoided))
            message = "%s: worker %s is faulty; it gets no more tasks; workers left: %d"
            logger.warning(message, self._job.name, event.worker, self._cluster.workers)
        if decision is AfterFault.BLAME:
            self.lost(TaskLost(task, f"it raised {error}", blamed=True, signal=type(event.error).__name__))
        else:
            self._plan.task_lost(task.number)

    def worker_lost(self, loss: WorkerLoss) -> list[TaskLost]:
        """Forget a worker, because another one may get its address; return losses of tasks that its death blames."""
        if self._faulty_workers.worker_left(loss.worker):
            self._cluster.avoid(frozenset(self._faulty_workers.avoided))
        numbers = (task_number(key) for key in loss.results if self._job.context.mark in key)
        tasks = [self._plan.tasks_in_flight[number] for number in numbers if number in self._plan.tasks_in_flight]
        blamed = (self._lost_tasks.result_lost(task, loss.cause) for task in tasks)
        return [lost for lost in blamed if lost is not None]

    def groups_finished(self, groups: Iterable[int]) -> None:
        """Forget groups that are finished."""
        self._faulty_workers.groups_finished(groups)

    def to_avoid(self, task: Task) -> frozenset[str]:
        """Return the workers that must not run a task."""
        return self._faulty_workers.to_avoid(task)
