"""The runner's side of recovery: counts how tasks end badly, and does what :mod:`mops.recovery` decides."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.plan import Plan
from mops.attempt.sizing import TASKS_PER_SLOT
from mops.attempt.tasks import TaskLost, TaskRaised
from mops.cluster.base import Cluster
from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError, MopsError, UsageError
from mops.recovery import EMPTY_LIMIT, Then, after_error, after_loss, deaths_to_blame
from mops.task import Failure, Task, TaskRequest, TaskResult, missing_losses, task_number
from mops.units import listed, shortened

logger = logging.getLogger(__name__)

_ERROR_CHARACTERS = 200
_LISTED = 5

_Item = tuple[int, int | None]


class TaskRecovery:
    """Handles the tasks that do not come back with a result. Used by the loop alone."""

    def __init__(self, job: ClaimedJob, cluster: Cluster, plan: Plan):
        self._job, self._cluster, self._plan = job, cluster, plan
        self._n_lost_in_a_row = 0  # without those that a broken connection took
        self._n_empty: Counter[_Item] = Counter()
        self._n_deaths: Counter[_Item] = Counter()
        self._n_results_lost: Counter[int] = Counter()
        self._raised_on: defaultdict[_Item, list[str]] = defaultdict(list)
        """The workers on which the present task with this step has raised, one for each time."""
        self._in_a_row: defaultdict[str, set[_Item]] = defaultdict(set)
        """The first steps of the tasks that have raised on a worker, with no success between them."""
        self._retired: set[str] = set()
        self._has_succeeded = False
        self._first_errors: defaultdict[type[MopsError], set[str]] = defaultdict(set)
        """The workers on which an error was raised before anything has succeeded."""

    def to_avoid(self, task: Task) -> frozenset[str]:
        """Return the workers that must not run a task: those that are retired, or on which it has raised."""
        if not self._raised_on:
            return frozenset(self._retired)
        return frozenset(self._retired.union(*(self._raised_on.get(step, ()) for step in _steps_of(task))))

    def came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Clear the counts against a task and its worker."""
        self._n_results_lost.pop(task.number, None)
        if worker:  # else the runner made the result itself, which says nothing about workers
            self._n_lost_in_a_row = 0
        if is_empty:
            return
        if worker:
            self._has_succeeded = True
            for address in (worker, ""):
                self._in_a_row.pop(address, None)
        for step in _steps_of(task) if self._n_empty or self._raised_on else ():
            self._n_empty.pop(step, None)
            self._raised_on.pop(step, None)

    def came_back_empty(self, task: Task) -> TaskLost | None:
        """Count an empty result; after several in a row return a loss, which the caller delivers to :meth:`lost`."""
        # A partial result does not count, because it leaves less to run.
        steps = _steps_of(task)
        self._n_empty.update(steps)
        n = min(self._n_empty[step] for step in steps)
        if n < EMPTY_LIMIT:  # a replaced pool or another schema causes one empty result, and not several in a row
            logger.info("%s: %s came back without a result; it runs again", self._job.name, task_text(task))
            return None
        for step in steps:
            del self._n_empty[step]
        return TaskLost(task, f"it came back without a result {n} times", blamed=True, signal="no result")

    def lost(self, loss: TaskLost) -> int:
        """Send a lost task again: 0; or return how often it was lost: the caller must then quarantine it."""
        task, job = loss.task, self._job
        self._n_lost_in_a_row += loss.connected
        units = job.replicates_to_run(task.groups[0]) if task.replicates is None else task.replicates
        then = after_loss(
            blamed=loss.blamed,
            alone=task.alone,
            n_units=len(units),
            n_in_a_row=self._n_lost_in_a_row,
            most_in_flight=2 * TASKS_PER_SLOT * self._plan.share.slots,
        )
        if then is Then.END:
            raise ClusterError(
                f"Dask lost {self._n_lost_in_a_row} tasks in a row; the last one: {loss.why}",
                where=job.name,
                hint=f"look at the logs of the workers; then continue the job: mops jobs resume {job.name}",
            )
        if then is Then.AGAIN:
            logger.info("%s: %s was lost: %s; %s", job.name, task_text(task), loss.why, then.value)
            self._plan.task_lost(task.number)
            return 0
        steps = _steps_of(task)
        self._n_deaths.update(steps)
        n_times = sum(self._n_deaths[step] for step in {(task.groups[0], None), steps[0]})
        cause = f" ({loss.cause.text})" if loss.cause.text else ""
        what = "killed its workers" if loss.signal == "KilledWorker" else "gave no result"
        message = "%s: %s %s (times so far: %d): %s%s; %s"
        logger.warning(message, job.name, task_text(task), what, n_times, loss.why, cause, _what_follows(then, task))
        if then is Then.FAILED:
            return n_times
        self._plan.task_lost(task.number, blamed=True)
        return 0

    def raised(self, event: TaskRaised) -> None:
        """Send a task that raised again; raise if no worker can run it."""
        task, worker, error, job = event.task, event.worker, event.error, self._job.name
        steps = _steps_of(task)
        for step in steps:
            self._raised_on[step].append(worker)
        if not task.alone:  # else it may be one of many pieces of a bad group, which say nothing about the worker
            self._in_a_row[worker].add(steps[0])
        same_error: set[str] = set()
        if isinstance(error, MopsError) and not self._has_succeeded:
            same_error = self._first_errors[type(error)]
            same_error.add(worker)
        then, is_faulty = after_error(
            alone=task.alone,
            n_raised=min(len(self._raised_on[step]) for step in steps),
            n_in_a_row=len(self._in_a_row[worker]),
            worker=worker,
            workers=self._cluster.addresses,
            retired=self._retired,
            same_error=same_error,
        )
        said = shortened(f"{type(error).__name__}: {' '.join(str(error).split())}", _ERROR_CHARACTERS)
        name = worker or "the scheduler"
        logger.warning("%s: %s raised on %s: %s; %s", job, task_text(task), name, said, _what_follows(then, task))
        if then is Then.END:
            if isinstance(error, UsageError | ClusterError):
                raise error
            # A StorageError counts too, because only the worker met it: the runner can still commit.
            raise ClusterError(
                f"no worker can run {task_text(task)}; the last error, from {name}: {said}",
                where=job,
                hint=f"look at the logs and disks of the workers; then continue the job: mops jobs resume {job}",
            ) from error
        if is_faulty and worker not in self._retired:
            self._retired.add(worker)
            self._cluster.avoid(frozenset(self._retired))
            message = "%s: worker %s is faulty; it gets no more tasks; workers left: %d"
            logger.warning(message, job, worker, self._cluster.workers)
        if then is Then.SMALLER:
            for step in steps:
                del self._raised_on[step]
        self._plan.task_lost(task.number, blamed=then is Then.SMALLER)

    def worker_lost(self, loss: WorkerLoss) -> list[TaskLost]:
        """Forget a worker, because another one may get its address; return losses of tasks that its death blames."""
        self._in_a_row.pop(loss.worker, None)
        for workers in self._first_errors.values():
            workers.discard(loss.worker)
        if loss.worker in self._retired:
            self._retired.remove(loss.worker)
            self._cluster.avoid(frozenset(self._retired))
        # Dask counts deaths only while a task runs. If a task's result kills each worker that sends it to the runner,
        # Dask runs the task again without end.
        numbers = [task_number(key) for key in loss.results if self._job.context.mark in key]
        blamed = []
        for number in numbers if not loss.cause.removed else ():
            if (task := self._plan.tasks_in_flight.get(number)) is None:
                continue
            self._n_results_lost[number] += 1
            n = self._n_results_lost[number]
            if n >= deaths_to_blame(suspect=task.suspect):
                del self._n_results_lost[number]
                died = "a worker" if n == 1 else f"{n} workers"
                blamed.append(TaskLost(task, f"{died} died while sending its result", blamed=True, cause=loss.cause))
        return blamed


def _steps_of(task: Task) -> list[_Item]:
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


def _what_follows(then: Then, task: Task) -> str:
    if then is not Then.SMALLER:
        return str(then.value)
    if len(task.groups) > 1:
        return "its groups run again one by one"
    if task.replicates == ():
        return "its targets run again at the end, alone on a worker"
    return "its simulations run again at the end, each alone on a worker"


def task_text(task: Task) -> str:
    """Describe a task for people, by its number and what it runs."""
    if task.replicates is None:
        return f"task {task.number} with group{'s' * (len(task.groups) > 1)} {listed(task.groups, _LISTED)}"
    what = f"replicates {listed(task.replicates, _LISTED)}" if task.replicates else "the targets"
    return f"task {task.number} with {what} of group {task.groups[0]}"
