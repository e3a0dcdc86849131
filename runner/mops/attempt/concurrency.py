"""How much runs at once: groups in flight, and simulations on each worker.

``MODELOPS_JOB_BATCH_SIZE`` says it, or with ``auto`` what simulations take. A worker or a runner that ran out of memory
halves the groups in flight. The rules are :mod:`mops.attempt.planning.window`'s and
:mod:`mops.attempt.planning.batch_size`'s.
"""

from __future__ import annotations

import logging

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.lost_tasks import killed_report, memory_report
from mops.attempt.planning.batch_size import (
    MOST_GROUPS,
    PILOT_TASKS_PER_SLOT,
    BatchSize,
    BatchSizer,
    Resources,
    TaskUsage,
    room_for_results,
)
from mops.attempt.planning.task_size import WINDOW_PER_EMBEDDED_SLOT, WINDOW_PER_SLOT
from mops.attempt.planning.window import Window, start_after
from mops.cluster.base import Cluster
from mops.cluster.capacity import ClusterCapacity
from mops.cluster.worker_losses import Pods, WorkerLoss
from mops.storage.live_record import read_live
from mops.system.heap import resident_bytes
from mops.system.memory_limits import allowed_bytes, available_bytes
from mops.task import Task, TaskRequest

logger = logging.getLogger(__name__)


class Concurrency:
    """The window and, with BATCH_SIZE=auto, what is reckoned from measurements. Used by the loop alone.

    Parameters
    ----------
    pods
        Tells why the pod of the previous attempt ended; None: nobody can.
    """

    def __init__(self, job: ClaimedJob, cluster: Cluster, capacity: ClusterCapacity, pods: Pods | None):
        self._job, self._cluster, self._capacity = job, cluster, capacity
        self.window = self._first_window(pods)
        self._sizer = BatchSizer() if job.settings.batch_size == "auto" else None
        self._size: BatchSize | None = None
        self._halved_at_task = 0
        self._suspects: set[str] = set()  # keys of tasks whose deaths say nothing of the window: alone, or suspected

    @property
    def window_per_slot(self) -> float:
        """Tasks that a window of short groups is divided into at least, for each slot."""
        return WINDOW_PER_SLOT if self._job.context.slots is None else WINDOW_PER_EMBEDDED_SLOT

    @property
    def per_worker(self) -> int | None:
        """Simulations at once on a worker: one until it is known what they take; None: as many as it has slots."""
        if self._sizer is None:
            return None
        return self._size.per_worker if self._size else 1

    @property
    def arithmetic(self) -> str:
        """How it was reckoned, for people; empty: it was not."""
        return self._size.said if self._size else ""

    def sent(self, task: Task, request: TaskRequest) -> None:
        """Note a task that is sent."""
        if task.alone or task.suspect:
            self._suspects.update(request.keys)

    def measured(self, usage: TaskUsage, *, trouble: bool) -> None:
        """Learn from a finished task what simulations take.

        Parameters
        ----------
        trouble
            One of them took more than there is for each.
        """
        if self._sizer is None or not usage.allowed_bytes:  # nothing ran: it was given up
            return
        self._sizer.measured(usage)
        if self._sizer.due or trouble:
            self._resize()

    def batch_done(self) -> None:
        """Note that a batch is committed: a window that was halved grows by a tenth."""
        self.window.batch_done()
        self._resize()

    def worker_lost(self, loss: WorkerLoss, last_task: int) -> None:
        """Halve the window where a worker ran out of memory; its tasks run again by themselves.

        Parameters
        ----------
        last_task
            The number of the task that was sent last: losses of tasks up to it do not halve the window again.
        """
        mine = [key for key in loss.keys if f"-{self._job.name}-{self._job.context.run}-" in key]
        n_tasks = len(mine)
        telling = [key for key in set(mine) - self._suspects if int(key.rpartition("-")[2]) > self._halved_at_task]
        if loss.cause.memory and telling:
            before, self._halved_at_task = self.window.size, last_task
            report = memory_report(loss, n_tasks, before, self.window.halve())
            logger.warning("%s: %s", self._job.name, report)
        elif n_tasks:
            why = f": {loss.cause.text}" if loss.cause.text else ""
            logger.info("%s: worker %s is gone%s; %d tasks run again", self._job.name, loss.worker, why, n_tasks)

    def _first_window(self, pods: Pods | None) -> Window:
        """Return the window; half of that of an attempt before that ran out of memory."""
        job, before = self._job, self._job.attempt - 1
        live = read_live(job.files, job.paths, before) if before else None
        ended = all(claim.n != before for claim in job.inherited.unended)
        oom = pods.runner_out_of_memory(live.host) if pods and live and not ended else ""
        start = start_after(live, ended=ended, oom=bool(oom))
        if live is not None and start is not None and start < job.settings.batch_size_or(MOST_GROUPS):
            logger.warning("%s: %s", job.name, killed_report(live, before, start, oom))
        return Window(job.settings.batch_size_or(PILOT_TASKS_PER_SLOT * self._capacity.slots), start)

    def _resize(self) -> None:
        """With BATCH_SIZE=auto, reckon anew how much runs at once, and log it where it has changed."""
        if self._sizer is None:
            return
        workers, settings = max(self._cluster.workers, 1), self._job.settings
        free = min(allowed_bytes() - resident_bytes(), available_bytes())
        results = room_for_results(self._job.context.held_bytes, workers, free)
        task_seconds = settings.task_seconds if settings.checkpoint_seconds > 0 else 0.0
        there_is = Resources(self._capacity.slots, workers, results, task_seconds, self.window_per_slot)
        size = self._sizer.sizes(there_is)
        if size is None or not size.differs(self._size):
            return
        self._size = size
        self.window.allow(size.groups)
        logger.info("%s: MODELOPS_JOB_BATCH_SIZE=auto: %s", self._job.name, size.said)
