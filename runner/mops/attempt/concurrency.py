"""Applies :mod:`mops.attempt.sizing` to a job: the groups in flight, and the simulations on each worker."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.sizing import (
    MOST_GROUPS,
    WINDOW_PER_EMBEDDED_SLOT,
    WINDOW_PER_SLOT,
    BatchSize,
    BatchSizer,
    PartWriting,
    Resources,
    TaskUsage,
    Window,
    first_groups,
    longest_s,
    room_for_results,
    start_size,
    useful_slots,
)
from mops.cluster.base import Cluster
from mops.cluster.shares import ClusterCapacity, Share
from mops.cluster.worker_losses import Pods, WorkerLoss
from mops.storage.progress_record import read_live
from mops.system.process_memory import resident_bytes
from mops.system.resources import allowed_bytes, available_bytes
from mops.task import Task, TaskRequest, task_number
from mops.units import bytes_text

logger = logging.getLogger(__name__)

# After this time, simulations run on all slots although none has ended. Else slots would idle for the hour of a
# model. Most models need most of their memory by then. Those that need more than their share run again, alone on
# their worker.
UNMEASURED_SECONDS = 30.0


class Concurrency:
    """The window, and what it follows from. Used by the loop alone."""

    def __init__(self, job: ClaimedJob, cluster: Cluster, capacity: ClusterCapacity, pods: Pods | None):
        self._job, self._cluster, self._capacity = job, cluster, capacity
        self._is_auto = job.settings.batch_size == "auto"
        self.window = self._first_window(pods)
        self.part_writing = PartWriting(
            job.settings.persist,
            is_embedded=job.context.slots is not None,
            checkpoint_bytes=job.settings.checkpoint_bytes,
        )
        self._sizer = None if isinstance(job.settings.batch_size, int) else BatchSizer()
        self._sized_for = capacity.slots
        self._size: BatchSize | None = None
        self._began = time.monotonic()
        self._halved_at_task = 0
        self._warned_slots = 0
        # Keys of tasks that ran alone or were suspects: their deaths say nothing about the window.
        self._unrelated_keys: set[str] = set()
        self._warn_of_idle_slots()

    @property
    def window_per_slot(self) -> float:
        """The least tasks that a window of short groups is divided into, for each slot."""
        return WINDOW_PER_SLOT if self._job.context.slots is None else WINDOW_PER_EMBEDDED_SLOT

    @property
    def per_worker(self) -> int | None:
        """Simulations at once on a worker; None: as many as the worker has slots."""
        if not self._is_auto:
            return None
        # Until the memory of a simulation is known, it is one, but no longer than UNMEASURED_SECONDS.
        if self._size is not None:
            return self._size.per_worker
        is_first = time.monotonic() - self._began < UNMEASURED_SECONDS
        return 1 if is_first else max(self._capacity.slots // max(self._cluster.workers, 1), 1)

    @property
    def explanation(self) -> str:
        """How BATCH_SIZE=auto arrived at the size, for people; empty if it has not."""
        return self._size.explanation if self._size and self._is_auto else ""

    def limit(self, share: Share) -> Share:
        """Return the share with no more slots than may run at once on its workers; follow a change of the slots."""
        if self._sized_for != self._capacity.slots:
            self._sized_for = self._capacity.slots
            self._resize()
        per_worker = self.per_worker
        if per_worker is None:
            return share
        return replace(share, slots=min(share.slots, per_worker * share.workers))

    def useful_slots(self, n_simulations: int, n_groups: int, group_s: float | None) -> int:
        """Return for how many slots the rest of the job is enough work: simulations and groups that have not ended.

        ``group_s`` is the time of a group. None: no group has ended, and each simulation takes at least as long as the
        one that has run longest.
        """
        groups, batch_size = self._job.groups, self._job.settings.batch_size
        if group_s is None:
            work_s = n_simulations * max((step.seconds for step in self._cluster.long_steps()), default=0.0)
        else:
            work_s = n_groups * group_s
        n_left = max(n_simulations, n_groups)  # each group may have a target left
        if isinstance(batch_size, int):
            n_left = min(n_left, math.ceil(batch_size * groups.n_simulations / len(groups)))
        slots = useful_slots(n_left, work_s)
        if self._size is None or not self._is_auto:
            return slots
        per_worker = max(self._capacity.slots // max(self._cluster.workers, 1), 1)  # some have too little memory
        return math.ceil(slots * per_worker / self._size.per_worker)

    def task_sent(self, task: Task, request: TaskRequest) -> None:
        """Note that a task is sent."""
        if task.alone or task.suspect:
            self._unrelated_keys.update(request.keys)

    def task_finished(self, usage: TaskUsage, *, exceeded_memory: bool) -> None:
        """Update the estimates of what simulations use."""
        self.part_writing.add(usage.result_bytes, usage.seconds)
        if self._sizer is None or not usage.allowed_bytes:  # the runner gave the task up: it was not run
            return
        self._sizer.add(usage)
        if self._sizer.is_due or exceeded_memory:
            self._resize()

    def batches_committed(self, n: int) -> None:
        """Let a window that was halved grow by a tenth for each batch."""
        self.window.batches_committed(n)
        self._resize()

    def worker_lost(self, loss: WorkerLoss, last_task: int) -> None:
        """Halve the window if a worker ran out of memory."""
        own = [key for key in loss.keys if self._job.context.mark in key]
        if not own:
            return
        consequence = f"tasks to run again: {len(own)}"
        # Tasks that were sent under the window before it was halved do not halve it again.
        related = [key for key in set(own) - self._unrelated_keys if task_number(key) > self._halved_at_task]
        if loss.cause.memory and related:
            before, self._halved_at_task = self.window.size, last_task
            consequence = f"{consequence}; {_window_text(self.window.halve(), before)}"
        level = logging.INFO if loss.cause.removed else logging.WARNING
        logger.log(level, "%s: %s; %s", self._job.name, loss, consequence)

    def _first_window(self, pods: Pods | None) -> Window:
        """Return the window; half of the previous attempt's if its runner ran out of memory."""
        job, before = self._job, self._job.attempt - 1
        live = read_live(job.files, job.paths, before) if before else None
        ended = all(claim.n != before for claim in job.inherited.unended)
        evidence = pods.runner_out_of_memory(live.host) if pods and live and not ended else ""
        start = start_size(live, ended=ended, oom=bool(evidence))
        if live is not None and start is not None and start < job.settings.batch_size_or(MOST_GROUPS):
            used = f"{bytes_text(live.memory_bytes)} of {bytes_text(live.limit_bytes)} on {live.host}"
            why = evidence or "it probably ran out of memory"
            message = "%s: the runner of attempt %d was killed at %s: %s; %s"
            logger.warning(message, job.name, before, used, why, _window_text(start, live.window))
        return Window(job.settings.batch_size_or(self._first_groups()), start)

    def _first_groups(self) -> int:
        return first_groups(self._capacity.slots, is_auto=self._is_auto)

    def _resize(self) -> None:
        """Unless BATCH_SIZE is a number, compute the window; with ``auto`` also the simulations per worker."""
        if self._sizer is not None:
            slots, workers, settings = self._capacity.slots, max(self._cluster.workers, 1), self._job.settings
            free = min(allowed_bytes() - resident_bytes(), available_bytes())
            results = room_for_results(self._job.context.held_bytes, workers, free)
            task_seconds = longest_s(settings.task_seconds, slots) if settings.checkpoint_seconds > 0 else 0.0
            in_task = self.part_writing.task_bytes(slots)
            room = Resources(slots, workers, results, in_task, task_seconds, self.window_per_slot, self._is_auto)
            size = self._sizer.size(room)
            if size is None:
                self.window.set_most(self._first_groups())
            elif size.differs(self._size):
                self._size = size
                self.window.set_most(size.groups)
                if self._is_auto:
                    logger.info("%s: batch size: %s", self._job.name, size.explanation)
        self._warn_of_idle_slots()

    def _warn_of_idle_slots(self) -> None:
        """Warn if so few groups may be in flight that slots idle, and again when the slots have doubled."""
        slots, n_groups, batch_size = self._capacity.slots, len(self._job.groups), self._job.settings.batch_size
        if slots < 2 * self._warned_slots:
            return
        enough = 2 * slots  # one group for each slot runs, and the next one waits
        if isinstance(batch_size, int) and batch_size < min(enough, n_groups):
            message = "%s: MODELOPS_JOB_BATCH_SIZE=%d is too small for %d slots; set at least %d, or leave it out"
            logger.warning(message, self._job.name, batch_size, slots, enough)
            self._warned_slots = slots


def _window_text(now: int, before: int) -> str:
    return f"window: {now} parameter sets (before: {before}); to keep it: MODELOPS_JOB_BATCH_SIZE={now}"
