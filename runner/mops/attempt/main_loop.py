"""The runner's main loop: sends what the plan decides and handles what comes back, until nothing is left to run.

Then the committer commits the rest. The loop only waits for events. Fetching results, committing them and the drain
check have threads of their own. Deciding is :mod:`mops.attempt.planning.plan`'s, what becomes of a result
:mod:`mops.attempt.results`'s, durability :mod:`mops.attempt.checkpoint.committer`'s.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import os
import queue
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from mops.attempt import drain
from mops.attempt.checkpoint.committer import Committed, Committer
from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.checkpoint.pending_results import PendingResults
from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.concurrency import Concurrency
from mops.attempt.drain import Batches
from mops.attempt.faulty_workers import AfterFault, FaultyWorkers, nothing_can_run
from mops.attempt.job_families import JobFamilies
from mops.attempt.lost_tasks import LostTasks, described, is_single, lost_report, quarantine_result
from mops.attempt.planning.batch_size import MOST_GROUPS
from mops.attempt.planning.forecast import Forecast
from mops.attempt.planning.partial_groups import PartialGroups, PartialResult
from mops.attempt.planning.plan import Plan
from mops.attempt.planning.task_size import TASKS_PER_SLOT
from mops.attempt.reporting.observer import Observer
from mops.attempt.reporting.progress import Progress, ProgressCallback, Snapshot
from mops.attempt.reporting.text_log import TextLogBuffer
from mops.attempt.results import GroupFinished, ResultReceiver, TaskFinished
from mops.attempt.task_threads import TaskThreads, ThreadFault
from mops.attempt.tasks_in_flight import Reconnected, TaskLost, TaskRaised, TasksInFlight
from mops.cluster.base import Cluster
from mops.cluster.capacity import ClusterCapacity
from mops.cluster.worker_losses import Pods, WorkerLoss
from mops.errors import ClusterError, JobFailed, MopsError, Terminated, UsageError
from mops.storage import advisory
from mops.storage.ancestors import stored_families
from mops.storage.job_records import JobRecord, keep_finished
from mops.storage.joblog.records import State
from mops.storage.joblog.view import LogView
from mops.task import Task, TaskRequest, TaskResult
from mops.units import bytes_text
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
_TICK_SECONDS = 0.25
_STOP_SECONDS = 5.0
"""Waited for after the grace period of a stop, in case the cluster no longer answers."""

_LOST_LIMIT = 100
"""Tasks lost in a row, without a result between, after which a cluster is given up: at least so many, and more than
twice what can be in flight."""

_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class StopRequested:
    """An event: somebody asks this runner to stop; with ``to_go_on`` another runner continues the job."""

    grace_s: float
    to_go_on: bool


class Runner:
    """Drives one attempt of one job.

    Parameters
    ----------
    cluster
        Runs the simulations.
    on_progress
        Called in the runner's thread with a :class:`Snapshot`, about four times a second.
    pods
        Tells why the pod of the previous attempt ended; None: nobody can.
    threads
        The threads that carry tasks' fates, given where events go; None: threads of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: ClaimedJob,
        text_log: TextLogBuffer,
        on_progress: Callable[[Snapshot], None] = lambda _: None,
        pods: Pods | None = None,
        threads: Callable[[Callable[[object], None]], TaskThreads] = TaskThreads,
    ):
        self._cluster, self._job, self._text_log = cluster, job, text_log
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._families = JobFamilies(stored_families(job.files, job.record, job.inherited))
        self._reference = self._families.known
        self._partial_groups = PartialGroups(
            job.groups.n_replicates, has_targets=bool(job.context.targets), spool=job.files.spool
        )
        self._progress = Progress(
            job.name,
            job.groups.n_simulations,
            job.record.taken_over_counts + job.inherited.counts,
            n_groups=len(job.groups),
            n_todo=len(job.todo),
        )
        self._tell_progress = ProgressCallback(job.name, on_progress, self._stop_on_interrupt)
        self._receiver = ResultReceiver(
            job, self._families, self._partial_groups, text_log, self._put, self._progress.note_start
        )
        # As much as may wait to be encoded (mops.attempt.checkpoint.committer).
        room_bytes, put = job.settings.checkpoint_bytes // 4, self._events.put
        self._tasks_in_flight = TasksInFlight(cluster, self._receiver.receive, put, room_bytes, threads(put))
        self._capacity = ClusterCapacity(cluster, job.settings, job.name, len(job.groups))
        self._concurrency = Concurrency(job, cluster, self._capacity, pods)
        self._progress.window = self._concurrency.window.size  # also in the first sign of life, which may be the last
        self._plan = self._new_plan()
        self._lost_tasks = LostTasks()
        self._faulty_workers = FaultyWorkers()
        self._forecast = Forecast(
            job.files,
            job.name,
            self._limits,
            job.inherited,
            n_groups=len(job.todo),
            n_simulations=self._progress.left,
        )
        self.pending_results = PendingResults()
        """What is finished and not durable."""
        self._batches = Batches(self._concurrency.window)
        self._trimmer = drain.Trimmer()
        self._reconnecting = self._stopping = self._to_go_on = False
        self._stop_by = math.inf
        self._observer = Observer(
            job.files, job.paths, job.attempt, job.settings.to_json(), self._snapshot, text_log.last_lines
        )

    def stop(self, grace_s: float = GRACE_SECONDS, *, to_go_on: bool = False) -> None:
        """Start nothing new; running simulations get ``grace_s`` seconds; then commit. From any thread or handler.

        Parameters
        ----------
        to_go_on
            The job is not cancelled: the attempt has no end, and the next runner goes on.
        """
        self._events.put(StopRequested(grace_s, to_go_on))

    def look(self) -> Snapshot:
        """Return where the job stands. From any thread."""
        return self._progress.snapshot()

    def run(self) -> State:
        """Run until every group is committed, or a stop; return the state that the log now ends with.

        Returns
        -------
        State
            ``succeeded``, ``partial`` or ``cancelled``.

        Raises
        ------
        Superseded
            A newer attempt owns the job.
        StorageError
            Finished work cannot be made durable.
        ClusterError
            The cluster stays out of reach; what was finished is committed, and the attempt has no end.
        Terminated
            It was stopped so that another runner goes on; what was finished is committed, and the attempt has no end.
        JobFailed, UsageError
            Nothing can run; the log says ``failed``.
        """
        self._committer = self._started_committer()
        self._log_begin()
        with ThreadPoolExecutor(1, "mops-drain") as self._drainer, contextlib.closing(self._tasks_in_flight):
            try:
                failure = self._ended_by(self._loop)
                self._log_end(failure)
                self._tasks_in_flight.finish_deliveries()
                self._committer.finish()
                failure = self._ended_by(self._take_last_events) or failure
                self._check_drained(self._batches.rest())
                self._run_in_background(self._cluster.finish)  # after the look at what its children hold
            except BaseException as error:
                self._cluster.stop(0.0)
                if isinstance(error, Exception) and not isinstance(error, MopsError):  # a defect of mops
                    self._committer.finish()
                else:
                    self._committer.abandon()
                raise
            return self._append_end(failure)

    def _loop(self) -> None:
        """Run the pilot and the window, until nothing is left to run or the time of a stop is over."""
        self._forecast.committed(self._job.inherited, self._reference)
        while not self._plan.over and time.monotonic() < self._stop_by:
            self._step()

    def _ended_by(self, call: Callable[[], None]) -> MopsError | None:
        """Call something; return the error after which nothing can run, if there is one."""
        try:
            call()
        except (JobFailed, UsageError, ClusterError) as failure:
            self._cluster.stop(0.0)
            return failure
        return None

    def _step(self, wait_s: float = _TICK_SECONDS) -> None:
        """Send what is to be sent, and handle an event, if one comes within ``wait_s`` seconds."""
        self._follow_cluster()
        if not self._reconnecting:
            for task in self._plan.next_tasks(pilot=self._reference is None):
                self._send(task)
        self._handle(self._next_event(wait_s))

    def _follow_cluster(self) -> None:
        """Update the slots; if the connection is lost, reconnect in a thread, while commits and a stop go on."""
        if self._reconnecting:
            self._capacity.reset_timeout()
        elif self._cluster.is_connected:
            share, per_worker = self._capacity.share(self._plan.wanted_slots), self._concurrency.per_worker
            self._plan.workers, self._plan.tasks = share.workers, share.tasks
            self._plan.slots = share.slots if per_worker is None else min(share.slots, per_worker * share.workers)
            for loss in self._cluster.worker_losses():
                self._worker_lost(loss)
        else:
            n = len(self._plan.tasks_in_flight)
            logger.warning("%s: the connection to the Dask scheduler is lost; %d tasks run again", self._job.name, n)
            self._reconnecting = True
            for task in self._tasks_in_flight.take_back(list(self._plan.tasks_in_flight.values())):
                self._plan.lost(task.number)
            self._tasks_in_flight.reconnect()

    def _send(self, task: Task) -> None:
        request, avoid = self._request_for(task), self._faulty_workers.avoid(task)
        self._concurrency.sent(task, request)
        if request.replicates == ():
            self._tasks_in_flight.send_targets(task, request, self._partial_groups.parts(task.groups[0]), avoid)
        else:
            self._tasks_in_flight.send(task, request, avoid)

    def _request_for(self, task: Task) -> TaskRequest:
        settings, groups = self._job.settings, self._job.groups
        return TaskRequest(
            self._job.context,
            task.number,
            groups.groups(task.groups) if task.replicates is None else (groups.part(task.groups[0], task.replicates),),
            self._families.known,
            # Twice what was planned: a task that turns out long comes back at a border.
            seconds=2 * settings.task_seconds,
            bytes=max(settings.checkpoint_bytes // (2 * self._plan.slots), 1),
            replicates=task.replicates,
            alone=task.alone,
            per_worker=self._concurrency.per_worker,
            pool=self._cluster.pool,
        )

    def _next_event(self, wait_s: float) -> object:
        """Return the next event, or None after ``wait_s`` seconds without one."""
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=wait_s)
        return None

    def _handle(self, event: object) -> None:
        match event:
            case TaskFinished():
                self._task_finished(event)
            case GroupFinished():
                self._plan.closed(event.group)
                self._faulty_workers.forget((event.group,))
                self._progress.took(event.counts, {})
            case TaskLost():
                self._task_lost(event)
            case TaskRaised():
                self._task_raised(event)
            case Committed():
                self._committed(event)
            case Reconnected():
                logger.warning("%s: connected again, %d slots", self._job.name, self._cluster.slots)
                self._reconnecting = False
            case StopRequested():
                self._stop(event)
            case ThreadFault():
                raise event.error
            case BaseException():
                raise event
        self._show_progress()  # also of the last commits, which come after the loop

    def _task_finished(self, event: TaskFinished) -> None:
        task = self._plan.tasks_in_flight[event.number]
        if event.is_empty and self._is_blamed_for_coming_empty(task):
            if event.partial is not None:
                self._partial_groups.drop(event.partial)
            return
        self._came_back(task, event.worker, is_empty=event.is_empty)
        if task.alone and event.worker and not event.is_empty:
            where, took = (self._job.name, task.groups[0]), bytes_text(event.usage.peak_bytes)
            logger.info("%s: group %d ran alone on its worker: its processes took %s", *where, took)
        self._reference = self._reference or event.reference
        if event.partial is None:
            self._faulty_workers.forget(event.done)
            self._plan.finished(event.number, event.done, event.usage.seconds, event.run_alone_later)
        self._count(event.counts, event.failed)
        self._forecast.measured(event.usage.seconds, event.counts.simulations)
        self._concurrency.measured(event.usage, trouble=bool(event.run_alone_later))
        if event.partial is not None:
            self._part_of_group_finished(task, event, event.partial)

    def _part_of_group_finished(self, task: Task, event: TaskFinished, partial: PartialResult) -> None:
        """Keep what a task gave of a group; deliver the group where it is whole, score it where targets are left."""
        group, result = task.groups[0], partial.result
        targets_run_alone = task.replicates == () and bool(event.run_alone_later)
        if targets_run_alone:
            self._partial_groups.drop(partial)  # all targets run again, alone
        whole = not targets_run_alone and self._partial_groups.add(group, partial)
        self._plan.piece_finished(event.number, result.replicates, result.seconds, event.run_alone_later)
        if whole:
            self._plan.closing(group)
            self._tasks_in_flight.deliver_later(lambda: self._receiver.receive_group(group))
        elif not targets_run_alone and self._partial_groups.targets_due(group):
            if task.replicates:
                self._plan.targets_due(group)
            else:
                self._plan.targets_again(group, alone=task.alone)

    def _came_back(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Note that a task has come back: what it gave counts for its worker, and for what it ran."""
        self._lost_tasks.came_back(task, worker, is_empty=is_empty)
        if worker and not is_empty:
            self._faulty_workers.good(worker)

    def _is_blamed_for_coming_empty(self, task: Task) -> bool:
        if self._stopping:
            return False
        blamed = self._lost_tasks.came_back_empty(task)
        if blamed is None:
            logger.info("%s: %s came back without a result and runs again", self._job.name, described(task))
            return False
        self._task_lost(blamed)
        return True

    def _count(self, counts: Counts, failed: Mapping[str, int]) -> None:
        """Count what has come back; end the job where more has failed than may.

        Raises
        ------
        JobFailed
            It is hopeless; what is finished is committed.
        """
        self._progress.took(counts, failed)
        n_failed, settings = self._progress.finished.simulations_failed, self._job.settings
        if n_failed > settings.failures_allowed(self._job.groups.n_simulations):
            raise JobFailed(
                f"{n_failed} simulations have failed, more than MODELOPS_JOB_MAX_FAILURES={settings.max_failures}",
                where=self._job.name,
                hint=f"what is finished is kept; why they failed: mops jobs status {self._job.name}",
            )

    def _task_lost(self, event: TaskLost) -> None:
        """Requeue a lost task. If a single simulation, alone on its worker, keeps killing it, record it as failed.

        Raises
        ------
        ClusterError
            So many tasks are lost in a row that the cluster is to blame.
        """
        self._lost_tasks.n_in_a_row += event.connected
        if self._lost_tasks.n_in_a_row > max(_LOST_LIMIT, 2 * TASKS_PER_SLOT * self._plan.slots):
            raise ClusterError(
                f"Dask lost {self._lost_tasks.n_in_a_row} tasks in a row, the last one: {event.why}",
                where=self._job.name,
                hint="look at the workers' logs; mops jobs resume goes on from what is committed",
            )
        task = event.task
        if not event.blamed:
            logger.info("%s: task %d is lost and runs again: %s", self._job.name, task.number, event.why)
            self._plan.lost(task.number)
            return
        attempts = self._lost_tasks.count_death(task)
        quarantined = task.alone and is_single(task, self._job.groups.n_replicates)
        logger.warning("%s: %s", self._job.name, lost_report(event, attempts, quarantined=quarantined))
        if not quarantined:
            self._plan.lost(task.number, blamed=True)
            return
        why = f"alone, {event.why}"
        result = quarantine_result(self._request_for(task), why, event.cause, attempts, event.signal)
        self._tasks_in_flight.deliver_later(lambda: self._receiver.receive(task, result))

    def _task_raised(self, event: TaskRaised) -> None:
        """Have a task that has raised run elsewhere, and avoid a worker that is faulty.

        Raises
        ------
        MopsError
            No task can run; what is finished is committed.
        """
        task, before = event.task, len(self._faulty_workers.avoided)
        then = self._faulty_workers.raised(task, event.worker, event.error, self._cluster.addresses)
        said = f"{type(event.error).__name__}: {' '.join(str(event.error).split())}"[:_ERROR_CHARACTERS]
        what = (described(task), event.worker or "no worker")
        logger.warning("%s: %s raised on %s, %s: %s", self._job.name, *what, then.value, said)
        if then in (AfterFault.END, AfterFault.RAISES_EVERYWHERE):
            if isinstance(event.error, UsageError | ClusterError):
                raise event.error
            # Also for a StorageError: it is the worker's, and the runner can commit.
            raise nothing_can_run(task, event.worker, said, then, self._job.name) from event.error
        if len(self._faulty_workers.avoided) > before:
            self._cluster.avoid(frozenset(self._faulty_workers.avoided))
            message = "%s: worker %s is faulty, and avoided from now on; %d workers are left"
            logger.warning(message, self._job.name, event.worker, self._cluster.workers)
        if then is AfterFault.BLAME:
            self._task_lost(TaskLost(task, f"it raised {said}", blamed=True, signal=type(event.error).__name__))
        else:
            self._plan.lost(task.number)

    def _worker_lost(self, loss: WorkerLoss) -> None:
        if self._faulty_workers.left(loss.worker):
            self._cluster.avoid(frozenset(self._faulty_workers.avoided))
        self._concurrency.worker_lost(loss, self._plan.last_number)

    def _committed(self, event: Committed) -> None:
        self._progress.committed(event.counts, event.groups)
        self._forecast.committed(self._job.log.view, self._reference)
        self._check_drained(self._batches.add(event.groups, event.keys))

    def _check_drained(self, batch: tuple[int, list[str]] | None) -> None:
        """Where a batch is committed: look whether anything of it is left somewhere, and give free memory back."""
        if batch is not None:
            self._concurrency.batch_done()
            client, pool = self._cluster.client, self._cluster.pool
            self._run_in_background(drain.check, client, self._job.name, pool, *batch)
            self._run_in_background(self._trimmer.trim, client)

    def _run_in_background(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call something in a thread of its own, one call at a time. Errors there are only logged."""
        self._drainer.submit(call, *arguments).add_done_callback(_warn_of_fault)

    def _stop(self, asked: StopRequested) -> None:
        """Send nothing more. A stop that cancels wins over one that does not, and a later one gives no more time."""
        now = time.monotonic()
        grace_s = max(min(asked.grace_s, self._stop_by - _STOP_SECONDS - now), 0.0)
        self._to_go_on = asked.to_go_on and (self._to_go_on or not self._stopping)
        self._stopping, self._stop_by = True, now + grace_s + _STOP_SECONDS
        self._plan.stop()
        self._cluster.stop(grace_s)

    def _take_last_events(self) -> None:
        """Take what came behind the loop: the last commits, or the errors that prevented them."""
        while (event := self._next_event(0.0)) is not None:
            if isinstance(event, ThreadFault) and event.thread == "connect":
                continue  # nothing needs the cluster any more
            if isinstance(event, Committed | ThreadFault | BaseException):
                self._handle(event)

    def _append_end(self, failure: MopsError | None) -> State:
        """Append the attempt's end to the log, unless another runner is to go on."""
        job, view = self._job, self._job.log.view
        if isinstance(failure, ClusterError):
            raise failure  # no end: whoever restarts this job goes on
        if failure is not None:
            job.log.end("failed", totals=view.counts)
            raise failure
        state = end_state(job.record, view)
        if self._to_go_on and state == "cancelled" and not job.log.cancelled:
            raise Terminated(job.name, where=job.files.url)
        job.log.end(state, totals=view.counts)
        self._keep_finished()
        return state

    def _keep_finished(self) -> None:
        """Write the copy that makes lists quick; it decides nothing, so that without it the job is as complete."""
        end = self._job.log.view.end
        if end is None or not end.complete:
            return
        what = "the copy of the job's end, for quick listing,"
        advisory.Writer(self._job.files).write(what, lambda files: keep_finished(files, self._job.record, end))

    # What the owners above are made with, and what other threads call.

    def _new_plan(self) -> Plan:
        settings = self._job.settings
        return Plan(
            self._job.todo,
            len(self._job.todo),
            self._job.groups.n_replicates,
            window=self._concurrency.window,
            slots=self._capacity.slots,
            task_seconds=settings.task_seconds,
            # With checkpoints of 0 s each group is committed as it finishes: none waits for another in its task.
            fuse=settings.checkpoint_seconds > 0,
            window_per_slot=self._concurrency.window_per_slot,
        )

    @property
    def _limits(self) -> Limits:
        settings = self._job.settings
        return Limits(settings.checkpoint_seconds, settings.checkpoint_bytes, settings.batch_size_or(MOST_GROUPS))

    def _started_committer(self) -> Committer:
        return Committer(
            self._job.files,
            self._job.paths,
            self._job.log,
            self._job.groups,
            self._limits,
            attempt=self._job.attempt,
            n_targets=len(self._job.context.targets),
            outputs=self._job.context.outputs,
            on_event=self._events.put,
            on_tick=self._tick_storage,
            take_text=self._text_log.take,
            backlog=self.pending_results,
            families=self._families,
        )

    def _put(self, result: TaskResult) -> Counts:
        """Take groups into the open checkpoint. Runs in the delivering thread."""
        return self._committer.put(result)

    def _tick_storage(self, open_bytes: int, last: bool) -> None:
        """Write observations; learn of a cancel. Runs in the committing thread."""
        if self._job.log.cancelled and not self._stopping:
            logger.info("%s: a cancel was asked for", self._job.name)
            self.stop()
        self._observer.tick(open_bytes, last=last)

    def _snapshot(self) -> Snapshot:
        """Return where the job stands. Runs in the committing thread, which knows best what is durable."""
        durable = self._job.record.taken_over_counts + self._job.log.view.counts
        return replace(self._progress.snapshot(), durable=durable)

    def _stop_on_interrupt(self) -> None:
        if not self._stopping:  # who asked before has said how, and whether another runner goes on
            self.stop()

    def _show_progress(self) -> None:
        progress = self._progress
        progress.in_flight, progress.slots = self._plan.in_flight, self._plan.slots
        progress.window, progress.sizing = self._concurrency.window.size, self._concurrency.arithmetic
        progress.expected = self._forecast.estimate(progress.left, self._plan.slots)
        self._tell_progress(progress.snapshot())

    def _log_begin(self) -> None:
        """Say in the job's log who runs it, and what."""
        place, sets = (os.getpid(), socket.gethostname()), (len(self._job.todo), len(self._job.groups))
        logger.info(
            "%s: attempt %d by process %d on %s: %d of %d parameter sets are left, %d simulations run at once",
            *(self._job.name, self._job.attempt, *place, *sets, self._capacity.slots),
        )

    def _log_end(self, failure: MopsError | None) -> None:
        """Say in the job's log why nothing runs any more; it is written with the last checkpoint."""
        how = failure or ("stopped" if self._stopping else "every simulation has run")
        logger.info("%s: attempt %d ends: %s", self._job.name, self._job.attempt, how)


def end_state(record: JobRecord, view: LogView) -> State:
    """Return the state that an attempt ends with when nothing prevented it."""
    if record.todo(view.committed):
        return "cancelled"
    return "partial" if (record.taken_over_counts + view.counts).failed else "succeeded"


def _warn_of_fault(called: concurrent.futures.Future[object]) -> None:
    if (error := called.exception()) is not None:
        logger.warning("a look at what batches left, or giving it back, failed itself; the job goes on", exc_info=error)
