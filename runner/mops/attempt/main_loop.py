"""The runner: performs what the plan decides, until every group of a job is committed.

The loop only waits for events and sends tasks. Fetching results, committing them and the drain check have threads
of their own; deciding is :mod:`mops.attempt.planning.plan`'s, durability :mod:`mops.attempt.checkpoint.committer`'s.
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from mops.attempt import drain
from mops.attempt.checkpoint.backlog import PendingResults
from mops.attempt.checkpoint.committer import Committed, Committer
from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.checkpoint.tracebacks import Tracebacks
from mops.attempt.drain import Batches
from mops.attempt.faulty_workers import AfterFault, FaultyWorkers, Step, steps_of
from mops.attempt.job_families import JobFamilies
from mops.attempt.lost_tasks import described, is_single, killed_report, lost_report, memory_report, quarantine_result
from mops.attempt.planning.batch_size import (
    MOST_GROUPS,
    PILOT_TASKS_PER_SLOT,
    BatchSize,
    BatchSizer,
    Resources,
    TaskUsage,
    room_for_results,
)
from mops.attempt.planning.forecast import Forecast
from mops.attempt.planning.partial_groups import PartialGroups, PartialResult
from mops.attempt.planning.plan import Plan
from mops.attempt.planning.task_size import TASKS_PER_SLOT, WINDOW_PER_EMBEDDED_SLOT, WINDOW_PER_SLOT
from mops.attempt.planning.window import Window, start_after
from mops.attempt.reporting.observer import Observer
from mops.attempt.reporting.progress import Progress, Snapshot
from mops.attempt.reporting.text_log import TextLogBuffer
from mops.attempt.task_threads import TaskThreads, ThreadFault
from mops.attempt.tasks_in_flight import Reconnected, TaskLost, TaskRaised, TasksInFlight
from mops.cluster.base import Cluster
from mops.cluster.capacity import ClusterCapacity
from mops.cluster.worker_losses import Pods, WorkerLoss
from mops.errors import ClusterError, JobFailed, MopsError, Terminated, UsageError
from mops.settings import Settings
from mops.storage import advisory
from mops.storage.ancestors import stored_families
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, keep_finished, keep_reference
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import State
from mops.storage.joblog.view import LogView
from mops.storage.live import read_live
from mops.storage.paths import JobPaths
from mops.study.column_families import Families
from mops.study.groups import Group, GroupPart, GroupTable
from mops.system.heap import resident_bytes
from mops.system.memory_limits import allowed_bytes, available_bytes
from mops.task import JobContext, Task, TaskRequest, TaskResult, failed_simulations
from mops.verdicts import Counts, Report

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
_TICK_SECONDS = 0.25
_STOP_SECONDS = 5.0
"""After the time that a stop gives: for a cluster that does not answer any more."""

_LOST_LIMIT = 100
"""Tasks lost in a row, without a result between, after which a cluster is given up: at least so many, and more than
twice what can be in flight. Those that a lost connection took with it say nothing of the cluster, and do not count."""

_ERROR_CHARACTERS = 300

_EMPTY_LIMIT = 5
"""How often work may come back without anything in a row before it is to blame itself."""


@dataclass
class _StopAsked:
    """An event: somebody asks this runner to stop; if ``to_go_on``, so that another one goes on."""

    grace_s: float
    to_go_on: bool


@dataclass
class _Whole:
    """An event: what an order of whole groups gave is in the open checkpoint."""

    number: int
    done: frozenset[int]
    reference: Families | None
    counts: Counts
    failed: Mapping[str, int]
    postponed: frozenset[int]
    usage: TaskUsage
    worker: str
    is_empty: bool


@dataclass
class _Piece:
    """An event: what an order gave that ran a piece of a group, or its targets.

    Parameters
    ----------
    failed
        Failed simulations by verdict.
    """

    number: int
    piece: PartialResult
    failed: Counter[str]
    usage: TaskUsage


@dataclass
class _Closed:
    """An event: a group that was run in pieces is in the open checkpoint."""

    group: int
    counts: Counts


class Runner:
    """Drives one attempt of one job.

    Parameters
    ----------
    cluster
        Runs the simulations.
    log
        Claimed for this attempt.
    on_progress
        Called in the runner's thread with a :class:`Snapshot`, about four times a second.
    pods
        Tells why the runner's pod before ended; None: nobody can.
    lanes
        The threads that carry tasks' fates, given where events go; None: threads of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        files: Files,
        record: JobRecord,
        groups: GroupTable,
        log: JobLog,
        context: JobContext,
        settings: Settings,
        text_log: TextLogBuffer,
        on_progress: Callable[[Snapshot], None] = lambda _: None,
        pods: Pods | None = None,
        lanes: Callable[[Callable[[object], None]], TaskThreads] = TaskThreads,
    ):
        self._cluster, self._files, self._record, self._groups = cluster, files, record, groups
        self._log, self._context, self._settings = log, context, settings
        self._text_log, self._on_progress = text_log, on_progress
        self._paths = JobPaths(record.job)
        self._attempt = log.view.attempt
        self._inherited = log.view
        self._todo = record.todo(log.view.committed)
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._families = JobFamilies(stored_families(files, record, log.view))
        self._reference = self._families.known
        # As much as may wait to be encoded (mops.attempt.checkpoint.committer).
        room_bytes, put = settings.checkpoint_bytes // 4, self._events.put
        self._tasks_in_flight = TasksInFlight(cluster, self._deliver, put, room_bytes, lanes(put))
        self._capacity = ClusterCapacity(cluster, settings, record.job, len(groups))
        self._window = self._new_window(pods)
        self._plan = self._new_plan()
        self._partial_groups = PartialGroups(groups.n_replicates, has_targets=bool(context.targets), spool=files.spool)
        self._tracebacks = Tracebacks()
        self._reconnecting = False
        self._n_lost = 0
        self._n_empty: Counter[Step] = Counter()
        self._faults = FaultyWorkers()
        self._progress_failed = False
        self._halved_after = 0  # an order's number
        self._to_blame: set[str] = set()  # keys of orders for which a smaller window is no help: alone, or suspected
        # How often workers died of it: by group, and replicate (None: the whole group, -1: its targets).
        self._blamed: Counter[Step] = Counter()
        self._progress = Progress(
            record.job,
            groups.n_simulations,
            record.taken_over_counts + log.view.counts,
            n_groups=len(groups),
            n_todo=len(self._todo),
        )
        self._progress.window = self._window.size  # also in the first sign of life, which may be the last
        self.backlog = PendingResults()
        """What is finished and not durable."""
        self._forecast = self._new_outlook()
        self._batches = Batches(self._window)
        self._trimmer = drain.Trimmer()
        self._batch_sizer = BatchSizer() if settings.batch_size == "auto" else None
        self._sizes: BatchSize | None = None
        self._stopping = self._to_go_on = False
        self._stop_by = math.inf
        self._observer = Observer(
            files, self._paths, self._attempt, settings.to_json(), self._snapshot, text_log.last_lines
        )

    def stop(self, grace_s: float = GRACE_SECONDS, *, to_go_on: bool = False) -> None:
        """Start nothing new; running simulations get ``grace_s`` seconds; then commit. From any thread or handler.

        Parameters
        ----------
        to_go_on
            The job is not cancelled: the attempt has no end, and the next runner goes on.
        """
        self._events.put(_StopAsked(grace_s, to_go_on))

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
        self._checkpoints = self._committer()
        self._log_begin()
        with ThreadPoolExecutor(1, "mops-drain") as self._drainer, contextlib.closing(self._tasks_in_flight):
            try:
                failure = self._drive()
                self._log_end(failure)
                self._checkpoints.finish()
                self._take_commits()
                self._check_drained(self._batches.rest())
                self._run_in_background(self._cluster.done)  # after the look at what its children hold
            except BaseException as error:
                self._cluster.stop(0.0)
                if isinstance(error, Exception) and not isinstance(error, MopsError):  # a defect of mops
                    self._checkpoints.finish()
                else:
                    self._checkpoints.abandon()
                raise
            return self._end(failure)

    @property
    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(settings.checkpoint_seconds, settings.checkpoint_bytes, settings.batch_size_or(MOST_GROUPS))

    def _committer(self) -> Committer:
        return Committer(
            self._files,
            self._paths,
            self._log,
            self._groups,
            self._limits,
            attempt=self._attempt,
            n_targets=len(self._context.targets),
            outputs=self._context.outputs,
            on_event=self._events.put,
            on_tick=self._tick_storage,
            take_text=self._text_log.take,
            backlog=self.backlog,
            families=self._families,
        )

    def _log_begin(self) -> None:
        """Say in the job's log who runs it, and what."""
        place, sets = (os.getpid(), socket.gethostname()), (len(self._todo), len(self._groups))
        logger.info(
            "%s: attempt %d by process %d on %s: %d of %d parameter sets are left, %d simulations run at once",
            *(self._record.job, self._attempt, *place, *sets, self._capacity.slots),
        )

    def _log_end(self, failure: MopsError | None) -> None:
        """Say in the job's log why nothing runs any more; it is written with the last checkpoint."""
        how = failure or ("stopped" if self._stopping else "every simulation has run")
        logger.info("%s: attempt %d ends: %s", self._record.job, self._attempt, how)

    def _drive(self) -> MopsError | None:
        """Run the pilot and the window; return why it cannot go on, if it cannot."""
        self._forecast.committed(self._inherited, self._reference)
        try:
            while not self._plan.over and time.monotonic() < self._stop_by:
                self._handle_next()
        except (JobFailed, UsageError, ClusterError) as failure:
            self._cluster.stop(0.0)
            return failure
        return None

    def _handle_next(self, wait_s: float = _TICK_SECONDS) -> None:
        """Send what is to be sent, and take an event, if one comes within ``wait_s`` seconds."""
        self._follow_cluster()
        if not self._reconnecting:
            self._send(self._plan.next_tasks(pilot=self._reference is None))
        self._handle(self._next_event(wait_s))

    def _new_window(self, pods: Pods | None) -> Window:
        """Return the window; half of that of an attempt before that ran out of memory."""
        before = self._attempt - 1
        live = read_live(self._files, self._paths, before) if before else None
        ended = all(claim.n != before for claim in self._log.view.unended)
        oom = pods.runner_out_of_memory(live.host) if pods and live and not ended else ""
        start = start_after(live, ended=ended, oom=bool(oom))
        if live is not None and start is not None and start < self._settings.batch_size_or(MOST_GROUPS):
            self._report(killed_report(live, before, start, oom))
        return Window(self._settings.batch_size_or(PILOT_TASKS_PER_SLOT * self._capacity.slots), start)

    def _new_plan(self) -> Plan:
        return Plan(
            self._todo,
            len(self._todo),
            self._groups.n_replicates,
            window=self._window,
            slots=self._capacity.slots,
            task_seconds=self._settings.task_seconds,
            # Where each group is to be committed as it finishes, none waits for another in its task.
            fuse=self._settings.checkpoint_seconds > 0,
            window_per_slot=self._window_per_slot,
        )

    @property
    def _window_per_slot(self) -> float:
        return WINDOW_PER_SLOT if self._context.slots is None else WINDOW_PER_EMBEDDED_SLOT

    def _new_outlook(self) -> Forecast:
        return Forecast(
            self._files,
            self._record.job,
            self._limits,
            self._inherited,
            n_groups=len(self._todo),
            n_simulations=self._progress.left,
        )

    def _follow_cluster(self) -> None:
        """Take its size; where the connection is lost, look for it in a thread: commits go on, a stop is heard."""
        if self._reconnecting:
            self._capacity.rest()
        elif self._cluster.alive:
            share, per_worker = self._capacity.look(self._plan.wanted_slots), self._per_worker
            self._plan.workers, self._plan.tasks = share.workers, share.tasks
            self._plan.slots = share.slots if per_worker is None else min(share.slots, per_worker * share.workers)
            for loss in self._cluster.departed():
                self._worker_lost(loss)
        else:
            n, job = len(self._plan.tasks_in_flight), self._record.job
            logger.warning("%s: the connection to the Dask scheduler is lost; %d tasks run again", job, n)
            self._reconnecting = True
            for task in self._tasks_in_flight.take_back(list(self._plan.tasks_in_flight.values())):
                self._plan.lost(task.number)
            self._tasks_in_flight.reconnect()

    def _send(self, tasks: list[Task]) -> None:
        for task in tasks:
            request, avoid = self._request_for(task), self._faults.avoid(task)
            self._to_blame.update(request.keys if task.alone or task.suspect else ())
            if request.replicates == ():
                self._tasks_in_flight.send_targets(task, request, self._partial_groups.parts(task.groups[0]), avoid)
            else:
                self._tasks_in_flight.send(task, request, avoid)

    def _request_for(self, task: Task) -> TaskRequest:
        settings = self._settings
        return TaskRequest(
            self._context,
            task.number,
            self._groups_of(task),
            self._families.known,
            # Twice what was planned: a task that turns out long comes back at a border.
            seconds=2 * settings.task_seconds,
            bytes=max(settings.checkpoint_bytes // (2 * self._plan.slots), 1),
            replicates=task.replicates,
            alone=task.alone,
            per_worker=self._per_worker,
            pool=self._cluster.pool,
        )

    def _groups_of(self, task: Task) -> tuple[Group | GroupPart, ...]:
        if task.replicates is None:
            return self._groups.groups(task.groups)
        return (self._groups.part(task.groups[0], task.replicates),)

    def _deliver(self, task: Task, result: TaskResult) -> _Whole | _Piece:
        """Bring whole groups into the open checkpoint. Runs in the fetching thread."""
        if self._reference is None and result.reference is not None:
            result = self._pilot_done(result)
        result = self._fitting(result)
        self._text_log.add(result.prints)
        self._progress.children = result.children or self._progress.children
        for report in result.reports:
            self._report(report)
        for note in result.notes:
            logger.info("%s: %s", self._record.job, note)
        failed, result.failures = failed_simulations(result), self._tracebacks.shared(result.failures)
        if task.replicates is not None:
            usage = _usage_of(result, len(result.replicates) / self._groups.n_replicates(task.groups[0]))
            return _Piece(task.number, self._partial_groups.keep(result), failed, usage)
        usage = _usage_of(result, len(result.done))
        counts = self._checkpoints.put(result)  # and its parts are the writer's
        came = (result.postponed, usage, result.worker, result.is_empty)
        return _Whole(task.number, result.done, result.reference, counts, failed, *came)

    def _close(self, group: int) -> _Closed:
        """Bring a group that was run in pieces into the open checkpoint. Runs in the fetching thread."""
        return _Closed(group, self._checkpoints.put(self._partial_groups.take(group)))

    def _pilot_done(self, result: TaskResult) -> TaskResult:
        """Make the first good simulation's schema the job's; another attempt may have been first."""
        assert result.reference is not None
        kept = keep_reference(self._files, self._paths, result.reference)
        check_outputs(self._context.outputs, kept)
        self._families.begin(kept)
        if kept == result.reference:
            return result
        # Judged by another schema than the job's: these groups run again under the job's own.
        nothing: dict[str, Any] = {"done": frozenset(), "replicates": frozenset()}
        return replace(result, parts=[], failures=[], losses=[], reference=kept, **nothing)

    def _fitting(self, result: TaskResult) -> TaskResult:
        """Leave out what no longer fits because another task has fixed a column's family: it runs again, and knows."""
        fitting, why = self._families.accept(result)
        if why:
            n = len(result.done) - len(fitting.done) or 1
            told = "another task has fixed the family of its types meanwhile"
            logger.info("%s: %d parameter sets run again: %s: %s", self._record.job, n, why, told)
        return fitting

    def _next_event(self, wait_s: float) -> object:
        """Return the next event, or None after ``wait_s`` seconds without one."""
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=wait_s)
        return None

    def _handle(self, event: object) -> None:
        match event:
            case _Whole():
                self._finished(event)
            case _Piece():
                self._piece_finished(event)
            case _Closed():
                self._plan.closed(event.group)
                self._faults.forget((event.group,))
                # Its simulations were counted as they came.
                self._progress.took(replace(event.counts, simulations_good=0, simulations_failed=0), {})
            case Committed():
                self._committed(event)
            case _StopAsked():
                self._stop(event)
            case BaseException():
                raise event
            case _:
                self._handle_of_cluster(event)
        self._show()

    def _handle_of_cluster(self, event: object) -> None:
        match event:
            case TaskLost():
                self._lost(event)
            case TaskRaised():
                self._raised(event)
            case Reconnected():
                logger.warning("%s: connected again, %d slots", self._record.job, self._cluster.slots)
                self._reconnecting = False
            case ThreadFault():
                raise event.error

    def _finished(self, event: _Whole) -> None:
        if event.is_empty and self._is_empty_again(self._plan.tasks_in_flight[event.number]):
            return
        self._result_came(self._plan.tasks_in_flight[event.number], event.worker, is_empty=event.is_empty)
        self._log_alone(self._plan.tasks_in_flight[event.number], event.usage.peak_bytes)
        self._faults.forget(event.done)
        self._plan.finished(event.number, event.done, event.usage.seconds, event.postponed)
        self._reference = self._reference or event.reference
        self._count(event.counts, event.failed)
        self._forecast.measured(event.usage.seconds, event.counts.simulations)
        self._measured(event.usage, trouble=bool(event.postponed))

    def _piece_finished(self, event: _Piece) -> None:
        task, result, failed = self._plan.tasks_in_flight[event.number], event.piece.result, event.failed
        if result.is_empty and self._is_empty_again(task):
            self._partial_groups.drop(event.piece)
            return
        self._result_came(task, result.worker, is_empty=result.is_empty)
        group = task.groups[0]
        self._reference = self._reference or result.reference
        self._count(Counts(len(result.replicates) - failed.total(), failed.total()), failed)
        self._forecast.measured(result.seconds, len(result.replicates))
        self._measured(event.usage, trouble=bool(result.postponed))
        self._log_alone(task, result.peak_bytes)
        targets_postponed = bool(result.postponed) and task.replicates == ()
        if targets_postponed:
            self._partial_groups.drop(event.piece)  # all targets run again, alone
            whole = False
        else:
            whole = self._partial_groups.add(group, event.piece)
        self._plan.piece_finished(event.number, result.replicates, result.seconds, result.postponed)
        if whole:
            self._plan.closing(group)
            self._tasks_in_flight.deliver_later(lambda: self._close(group))
        elif not targets_postponed and self._partial_groups.targets_due(group):
            if task.replicates:
                self._plan.targets_due(group)
            else:
                self._plan.targets_again(group, alone=task.alone)

    def _result_came(self, task: Task, worker: str, *, is_empty: bool) -> None:
        """Note that a task has come back: what it gave counts for its worker, and for what it ran."""
        if worker:  # none has run what was given up
            self._n_lost = 0
        if not is_empty:
            if self._n_empty:
                for step in steps_of(task):
                    self._n_empty.pop(step, None)
            if worker:
                self._faults.good(worker)

    def _is_empty_again(self, task: Task) -> bool:
        """Count a task that has come back without anything; blame it for that where it has again and again.

        That its pool was replaced, or its schema was another one, explains one. What comes back in part goes on, and so
        ends by itself.
        """
        if self._stopping:
            return False
        self._n_empty.update(steps_of(task))
        n = min(self._n_empty[step] for step in steps_of(task))
        if n < _EMPTY_LIMIT:
            logger.info("%s: %s came back without a result and runs again", self._record.job, described(task))
            return False
        for step in steps_of(task):
            del self._n_empty[step]
        self._lost(TaskLost(task, f"it came back without one {n} times", blamed=True, signal="no result"))
        return True

    def _count(self, counts: Counts, failed: Mapping[str, int]) -> None:
        """Count what has come back; end the job where more has failed than may.

        Raises
        ------
        JobFailed
            It is hopeless; what is finished is committed.
        """
        self._progress.took(counts, failed)
        n_failed, most = self._progress.finished.simulations_failed, self._settings.max_failures
        if n_failed > self._settings.failures_allowed(self._groups.n_simulations):
            raise JobFailed(
                f"{n_failed} simulations have failed, more than MODELOPS_JOB_MAX_FAILURES={most}",
                where=self._record.job,
                hint=f"what is finished is kept; why they failed: mops jobs status {self._record.job}",
            )

    def _measured(self, usage: TaskUsage, *, trouble: bool) -> None:
        """Learn what simulations take, where it is for mops to say how much runs at once.

        Parameters
        ----------
        trouble
            One of them took more than there is for each.
        """
        if self._batch_sizer is None or not usage.allowed_bytes:  # nothing ran: it was given up
            return
        self._batch_sizer.measured(usage)
        if self._batch_sizer.due or trouble:
            self._resize()

    @property
    def _per_worker(self) -> int | None:
        """Simulations at once on a worker: one until it is known what they take; None: as many as it has slots."""
        if self._batch_sizer is None:
            return None
        return self._sizes.per_worker if self._sizes else 1

    def _resize(self) -> None:
        """Reckon anew how much runs at once, if that is for mops to do, and say it where it has changed."""
        if self._batch_sizer is None:
            return
        workers = max(self._cluster.workers, 1)
        free = min(allowed_bytes() - resident_bytes(), available_bytes())
        results = room_for_results(self._context.held_bytes, workers, free)
        task_seconds = self._settings.task_seconds if self._settings.checkpoint_seconds > 0 else 0.0
        sizes = self._batch_sizer.sizes(
            Resources(self._capacity.slots, workers, results, task_seconds, self._window_per_slot)
        )
        if sizes is None or not sizes.differs(self._sizes):
            return
        self._sizes = sizes
        self._window.allow(sizes.groups)
        logger.info("%s: MODELOPS_JOB_BATCH_SIZE=auto: %s", self._record.job, sizes.said)

    def _log_alone(self, task: Task, peak_bytes: int) -> None:
        if task.alone:
            where, took = (self._record.job, task.groups[0]), peak_bytes >> 20
            logger.info("%s: group %d ran alone on its worker: its processes took %d MiB", *where, took)

    def _lost(self, event: TaskLost) -> None:
        """Have it run again; where a single simulation has taken down its workers again and again, it has failed."""
        self._n_lost += event.connected
        if self._n_lost > max(_LOST_LIMIT, 2 * TASKS_PER_SLOT * self._plan.slots):
            raise ClusterError(
                f"Dask lost {self._n_lost} tasks in a row, the last one: {event.why}",
                where=self._record.job,
                hint="look at the workers' logs; mops jobs resume goes on from what is committed",
            )
        task = event.task
        if not event.blamed:
            logger.info("%s: task %d is lost and runs again: %s", self._record.job, task.number, event.why)
        else:
            attempts = self._count_death(task)
            quarantined = task.alone and is_single(task, self._groups.n_replicates)
            self._report(lost_report(event, attempts, quarantined=quarantined))
            if quarantined:
                result = quarantine_result(
                    self._request_for(task), f"alone, {event.why}", event.cause, attempts, event.signal
                )
                self._tasks_in_flight.deliver_later(lambda: self._deliver(task, result))
                return
        self._plan.lost(task.number, blamed=event.blamed)

    def _count_death(self, task: Task) -> int:
        """Count that its workers died of it; return how often that was so of its first simulation, or its targets."""
        steps = list(steps_of(task))
        self._blamed.update(steps)
        first, whole = steps[0], (task.groups[0], None)
        return self._blamed[whole] + (self._blamed[first] if first != whole else 0)

    def _raised(self, event: TaskRaised) -> None:
        """Have a task that has raised run elsewhere, and avoid a worker that is faulty.

        Raises
        ------
        MopsError
            Nothing can run anywhere; what is finished is committed.
        """
        task, before = event.task, len(self._faults.avoided)
        then = self._faults.raised(task, event.worker, event.error, self._cluster.addresses)
        said = f"{type(event.error).__name__}: {' '.join(str(event.error).split())}"[:_ERROR_CHARACTERS]
        what = (described(task), event.worker or "no worker")
        logger.warning("%s: %s raised on %s, %s: %s", self._record.job, *what, then.value, said)
        if then is AfterFault.END:
            if isinstance(event.error, UsageError | ClusterError):
                raise event.error
            raise ClusterError(  # also a StorageError: it is the worker's, and the runner can commit
                f"no simulation can run on any worker; the last one, {event.worker or 'none'}, says: {said}",
                where=self._record.job,
                hint="look at the workers' disks, limits and logs; mops jobs resume goes on from what is committed",
            ) from event.error
        if len(self._faults.avoided) > before:
            self._cluster.avoid(frozenset(self._faults.avoided))
            message = "%s: worker %s is faulty, and avoided from now on; %d workers are left"
            logger.warning(message, self._record.job, event.worker, self._cluster.workers)
        if then is AfterFault.BLAME:
            self._lost(TaskLost(task, f"it raised {said}", blamed=True, signal=type(event.error).__name__))
        else:
            self._plan.lost(task.number)

    def _worker_lost(self, loss: WorkerLoss) -> None:
        """Take fewer parameter sets at a time where a worker ran out of memory; its tasks run again by themselves."""
        if loss.worker in self._faults.avoided:
            self._faults.gone(loss.worker)
            self._cluster.avoid(frozenset(self._faults.avoided))
        mine = [key for key in loss.keys if f"-{self._record.job}-{self._context.run}-" in key]
        n_tasks = len(mine)
        # What was sent before the window was halved says nothing of the window that it is now.
        telling = [key for key in set(mine) - self._to_blame if int(key.rpartition("-")[2]) > self._halved_after]
        if loss.cause.memory and telling:
            before, self._halved_after = self._window.size, self._plan.last_number
            self._report(memory_report(loss, n_tasks, before, self._window.halve()))
        elif n_tasks:
            why = f": {loss.cause.said}" if loss.cause.said else ""
            message = "%s: worker %s is gone%s; %d tasks run again"
            logger.info(message, self._record.job, loss.worker, why, n_tasks)

    def _report(self, report: Report) -> None:
        logger.warning("%s: %s", self._record.job, report)

    def _committed(self, event: Committed) -> None:
        self._progress.committed(event.counts, event.groups)
        self._forecast.committed(self._log.view, self._reference)
        self._check_drained(self._batches.add(event.groups, event.keys))

    def _check_drained(self, batch: tuple[int, list[str]] | None) -> None:
        if batch is not None:
            self._window.batch_done()
            self._resize()
            client, pool = self._cluster.client, self._cluster.pool
            self._run_in_background(drain.check, client, self._record.job, pool, *batch)
            self._run_in_background(self._trimmer.trim, client)

    def _run_in_background(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call something beside the job, in its turn; what goes wrong there is said, and harms nothing."""
        self._drainer.submit(call, *arguments).add_done_callback(_warn_of_fault)

    def _stop(self, asked: _StopAsked) -> None:
        self._stopping, self._to_go_on = True, asked.to_go_on
        self._stop_by = time.monotonic() + asked.grace_s + _STOP_SECONDS
        self._plan.stop()
        self._cluster.stop(asked.grace_s)

    def _take_commits(self) -> None:
        """Take what the checkpointer's end brought: the last commits, or the error that prevented them."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Committed | BaseException):
                    self._handle(event)

    def _end(self, failure: MopsError | None) -> State:
        """Append the attempt's end."""
        view = self._log.view
        if isinstance(failure, ClusterError):
            raise failure  # no end: whoever restarts this job goes on
        if failure is not None:
            self._log.end("failed", totals=view.counts)
            raise failure
        state = end_state(self._record, view)
        if self._to_go_on and state == "cancelled":
            raise Terminated(self._record.job, where=self._files.url)
        self._log.end(state, totals=view.counts)
        self._keep_finished()
        return state

    def _keep_finished(self) -> None:
        """Write the copy that makes lists quick; it decides nothing, so that without it the job is as complete."""
        end = self._log.view.end
        if end is None or not end.complete:
            return
        what = "the copy of the job's end, for quick listing,"
        advisory.Writer(self._files).write(what, lambda files: keep_finished(files, self._record, end))

    def _tick_storage(self, open_bytes: int, last: bool) -> None:
        """Write observations; learn of a cancel. Runs in the checkpointing thread."""
        if self._log.cancelled and not self._stopping:
            logger.info("%s: a cancel was asked for", self._record.job)
            self.stop()
        self._observer.tick(open_bytes, last=last)

    def _snapshot(self) -> Snapshot:
        """Return where the job stands. Runs in the checkpointing thread, which knows best what is durable."""
        return replace(self._progress.snapshot(), durable=self._record.taken_over_counts + self._log.view.counts)

    def _show(self) -> None:
        progress = self._progress
        progress.in_flight, progress.slots = self._plan.in_flight, self._plan.slots
        progress.window = self._window.size
        progress.sizing = self._sizes.said if self._sizes else ""
        progress.expected = self._forecast.estimate(progress.left, self._plan.slots)
        self._tell(self._progress.snapshot())

    def _tell(self, snapshot: Snapshot) -> None:
        """Call who follows the progress. An error there is told once, and harms no job; an interrupt is a stop."""
        try:
            self._on_progress(snapshot)
        except KeyboardInterrupt:
            if not self._stopping:
                self.stop()
        except Exception:
            if not self._progress_failed:
                message = "%s: on_progress raised an error; the job goes on, and the next ones are not told"
                logger.warning(message, self._record.job, exc_info=True)
            self._progress_failed = True


def _usage_of(result: TaskResult, n_groups: float) -> TaskUsage:
    where = (result.allowed_bytes, result.own_bytes)
    return TaskUsage(result.peak_bytes, result.nbytes, result.seconds, n_groups, *where)


def check_outputs(wanted: Iterable[str] | None, families: Families) -> None:
    """Look whether the model returns the outputs that the study keeps.

    Raises
    ------
    UsageError
        It does not: which it has.
    """
    unknown = [name for name in wanted or () if name not in families]
    if unknown:
        raise UsageError(
            f"the model has no output {', '.join(map(repr, unknown))}; it has: {', '.join(families)}",
            where="$.outputs",
            hint="name outputs that the model returns, or leave 'outputs' out to keep all",
        )


def end_state(record: JobRecord, view: LogView) -> State:
    """Return the state that an attempt ends with when nothing prevented it."""
    if record.todo(view.committed):
        return "cancelled"
    return "partial" if (record.taken_over_counts + view.counts).failed else "succeeded"


def _warn_of_fault(called: concurrent.futures.Future[object]) -> None:
    if (error := called.exception()) is not None:
        logger.warning("a look at what batches left, or giving it back, failed itself; the job goes on", exc_info=error)
