"""Recovers from tasks that are lost, raise or come back empty.

The task runs again: on another worker, in smaller tasks, or alone on a worker. A single simulation that keeps killing
its workers is quarantined, which means that mops records it as failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.faulty_workers import AfterFault, FaultyWorkers, end_of_attempt
from mops.attempt.lost_tasks import LostTasks, is_single, loss_text, task_text
from mops.attempt.planning.plan import Plan
from mops.attempt.planning.task_size import TASKS_PER_SLOT
from mops.attempt.tasks_in_flight import TaskLost, TaskRaised
from mops.cluster.base import Cluster
from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError, UsageError
from mops.task import Task, task_number
from mops.units import shortened

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
