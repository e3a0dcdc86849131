"""The main loop of a runner: it sends the tasks that the plan chooses, and handles events until nothing is left to run.

The loop waits only for events. Other threads fetch results, commit them, and check for leaks. docs/internals/journey.md
follows a group through it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from mops.attempt.claimed_job import GRACE_SECONDS, ClaimedJob
from mops.attempt.commit import CancelRequested, Committed, Committer
from mops.attempt.concurrency import Concurrency
from mops.attempt.display import slow_text
from mops.attempt.drain import DrainThread
from mops.attempt.partial_groups import PartialGroups, PartialResult
from mops.attempt.plan import Plan
from mops.attempt.progress import Observer, ProgressCallback, ProgressMeter, ResultsSoFar, earlier_best
from mops.attempt.recovery import TaskRecovery, quarantine_result
from mops.attempt.results import GroupFinished, ResultReceiver, TaskFinished
from mops.attempt.sizing import TaskSizer
from mops.attempt.tasks import Reconnected, Released, TaskLost, TaskRaised, TasksInFlight
from mops.attempt.text_log import TextLogBuffer
from mops.attempt.threads import Events, TaskThreads, ThreadFault
from mops.attempt.timing import RecentTasks, SlowSteps, TimeLeft
from mops.cluster.base import Cluster
from mops.cluster.shares import ClusterCapacity, Share, of_pool
from mops.cluster.worker_losses import Pods
from mops.errors import ClusterError, JobFailed, MopsError, UsageError
from mops.storage.joblog.records import State
from mops.storage.progress_record import Progress
from mops.study.ranges import Ranges
from mops.system.user_folders import user_name
from mops.task import ResultBuffer, Task, TaskRequest
from mops.units import bytes_text

logger = logging.getLogger(__name__)

_EVENT_SECONDS = 0.25
# How long after the grace period of a stop the loop waits for tasks, in case the cluster no longer answers.
_STOP_SECONDS = 5.0
# How long the last commit waits for fetches, and then for deliveries. A hanging delivery must not prevent it.
_DELIVERY_SECONDS = 5.0


@dataclass(frozen=True)
class StopRequested:
    """An event: a request to stop the runner."""

    grace_s: float
    by: int | None = None  # the signal after which the next runner continues the job; None: the job is cancelled


class MainLoop:
    """Runs one attempt of a job."""

    def __init__(
        self,
        cluster: Cluster,
        job: ClaimedJob,
        text_log: TextLogBuffer,
        on_progress: Callable[[Progress], None] = lambda _: None,  # called by the loop, about four times a second
        pods: Pods | None = None,  # knows why the previous attempt's pod ended; None: the runner is not a pod
        threads: Callable[[Events], TaskThreads] = TaskThreads,
    ):
        self._cluster, self._job, settings = cluster, job, job.settings
        self._events: Events = queue.SimpleQueue()
        so_far = ResultsSoFar(job.param_id, earlier_best(job))
        self._progress = ProgressMeter(job, so_far)
        self._on_progress = ProgressCallback(job.name, on_progress)
        observer = Observer(job, self._progress, text_log)
        self.committer = Committer(job, text_log, observer, self._events)
        self._partial_groups = PartialGroups(
            job.replicates_to_run, has_targets=bool(job.context.targets), spool=job.files.spool
        )
        receiver = ResultReceiver(job, self._partial_groups, text_log, self.committer, so_far)
        room_bytes = settings.checkpoint_bytes // 4  # as much as the queue of the committer
        self._tasks_in_flight = TasksInFlight(cluster, receiver, self._events, threads(self._events), room_bytes)
        # In a pod, the user is that of the image, and no person.
        owner = job.record.owner or ("" if pods else user_name())
        self._capacity = ClusterCapacity(cluster, settings, job.name, owner)
        self._concurrency = Concurrency(job, cluster, self._capacity, pods)
        self._progress.set(window=self._concurrency.window.size)  # for the first sign of life, which may be the last
        # If checkpoints take 0 s, each group is committed as it finishes, so that no group waits in a task for others.
        fuse, per_slot = settings.checkpoint_seconds > 0, self._concurrency.window_per_slot
        sizer = TaskSizer(settings.task_seconds, fuse=fuse, window_per_slot=per_slot)
        window, share = self._concurrency.window, Share(self._capacity.slots, workers=1)
        self._plan = Plan(
            job.todo,
            job.replicates_to_run,
            window=window,
            sizer=sizer,
            share=share,
            task_share=job.stored.task_share,
        )
        self._recovery = TaskRecovery(job, cluster, self._plan)
        self._drain = DrainThread(cluster, job.name, window)
        self._recent, self._n_reused_left = RecentTasks(), job.stored.n_copied(job.todo)
        self._slow, self._time_left = SlowSteps(self._recent), TimeLeft(self._recent, self._n_to_run)
        self._is_reconnecting = False
        self._stops: list[StopRequested] = []
        self._stop_by = math.inf

    def stop(self, grace_s: float = GRACE_SECONDS, *, by: int | None = None) -> None:
        """Send nothing more, give simulations ``grace_s`` seconds, then commit. From any thread or signal handler."""
        self._events.put(StopRequested(grace_s, by))

    def look(self) -> Progress:
        """Return where the job stands. From any thread."""
        return self._progress.look()

    def run(self) -> State:
        """Run until every group is committed, or a stop; return the state in which the job's log ends, or raise."""
        self.committer.start()
        # The drain closes first: it ends calls to the cluster for which the threads of tasks may wait.
        with contextlib.closing(self._tasks_in_flight), contextlib.closing(self._drain):
            try:
                failure = self._until_failure(self._loop)
                how = "stopped" if self._stops else "every simulation has run"
                if failure is not None:
                    how = f"{type(failure).__name__}: {failure}"
                logger.info("%s: attempt %d ends: %s", self._job.name, self._job.attempt, how)
                self._tasks_in_flight.finish_deliveries(_DELIVERY_SECONDS)
                self.committer.finish()
                late_failure = self._until_failure(self._take_last_events)
                failure = failure or late_failure  # the first one decides how the job ends
                self._drain.finish()
            except BaseException as error:
                self._cluster.stop(0.0)
                if isinstance(error, Exception) and not isinstance(error, MopsError):  # a defect of mops
                    self.committer.finish()
                else:
                    self.committer.abandon()
                raise
            return self._job.end_attempt(failure, handed_over_by=self._handed_over_by)

    def _loop(self) -> None:
        while not self._plan.finished and time.monotonic() < self._stop_by:
            self._step()

    def _step(self, wait_s: float = _EVENT_SECONDS) -> None:
        """Send the next tasks; then handle the events that come within ``wait_s`` seconds, all that are there then."""
        self._follow_cluster()
        if not self._is_reconnecting:
            for task in self._plan.next_tasks():
                request = self._request_for(task)
                self._concurrency.task_sent(task, request)
                load = self._input_of(task, request) if request.has_input else None
                self._tasks_in_flight.send(task, request, self._recovery.to_avoid(task), load)
        event = self._next_event(wait_s)
        while event is not None:
            self._handle(event)
            event = self._next_event(0.0)
        self._watch_long_steps()
        self._publish_progress()

    def _until_failure(self, function: Callable[[], None]) -> MopsError | None:
        """Return the error after which nothing more can run, if the function raises one."""
        try:
            function()
        except (JobFailed, UsageError, ClusterError) as failure:
            self._cluster.stop(0.0)
            return failure
        return None

    def _follow_cluster(self) -> None:
        """Update the share of the cluster; after a broken connection take the tasks back and reconnect in a thread."""
        if self._is_reconnecting:
            self._capacity.reset_timeout()
        elif self._cluster.is_connected:
            plan = self._plan
            useful = self._concurrency.useful_slots(self._n_left_to_run, plan.groups_left, plan.sizer.seconds_per_group)
            plan.share = self._concurrency.limit(
                self._capacity.share(plan.wanted_slots, useful, alone=plan.is_alone_phase)
            )
            for loss in self._cluster.worker_losses():
                self._concurrency.worker_lost(loss, self._plan.last_number)
                for blamed in self._recovery.worker_lost(loss):
                    if self._tasks_in_flight.withdraw(blamed.task):
                        self._lost(blamed)
        else:
            tasks = list(self._plan.tasks_in_flight.values())
            message = "%s: lost the connection to the Dask scheduler; tasks to run again: %d"
            logger.warning(message, self._job.name, len(tasks))
            self._is_reconnecting = True
            for task in self._tasks_in_flight.take_back(tasks):
                self._plan.task_lost(task.number)
            self._tasks_in_flight.reconnect()

    def _input_of(self, task: Task, request: TaskRequest) -> Callable[[], list[ResultBuffer]]:
        """Return a function for the sending thread that returns the stored results that a task needs."""
        stored = self._job.stored
        wanted = {group: list(some) for group, some in request.reused.items()}
        if not task.replicates and self._job.context.targets:
            for group in task.groups:
                wanted[group] = [*range(stored.n_in_place(group)), *wanted.get(group, ())]
        partial = self._partial_groups.results(task.groups[0]) if task.replicates == () else []
        return lambda: stored.results(wanted) + partial

    def _request_for(self, task: Task) -> TaskRequest:
        slots, groups, parts = self._plan.share.slots, self._job.groups, self._concurrency.part_writing
        taken_over = {group: n for group in task.groups if (n := self._job.stored.n_in_place(group))}
        return TaskRequest(
            self._job.context,
            task.number,
            groups.groups(task.groups) if task.replicates is None else (groups.part(task.groups[0], task.replicates),),
            self._job.families.known,
            seconds=self._plan.sizer.limit_s(slots),
            bytes=parts.task_bytes(slots),
            replicates=task.replicates,
            alone=task.alone,
            per_worker=self._concurrency.per_worker,
            pool_id=self._cluster.pool_id,
            encode=task.replicates is None and not task.alone and parts.in_tasks(slots),
            attempt=self._job.attempt if parts.by_workers(slots) else None,
            taken_over=taken_over if task.replicates is None else {},
            reused=self._job.stored.copied_by(task),
        )

    @property
    def _n_left_to_run(self) -> int:
        """The number of simulations that have not ended, without those that other jobs have run."""
        return self._progress.now.left - self._n_reused_left

    def _n_to_run(self, task: Task) -> int:
        """Return how many simulations of a task must run."""
        return self._plan.n_simulations(task) - sum(map(len, self._job.stored.copied_by(task).values()))

    def _n_reused(self, task: Task, event: TaskFinished) -> int:
        """Return how many of the simulations that a task brought were taken from other jobs."""
        copied = self._job.stored.copied_by(task)
        if event.partial is not None:
            return sum(len(event.partial.result.replicates.intersection(some)) for some in copied.values())
        return sum(len(some) for group, some in copied.items() if group in event.done)

    def _next_event(self, wait_s: float) -> object:
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=wait_s)
        return None

    def _handle(self, event: object) -> None:
        match event:
            case TaskFinished() | GroupFinished() | TaskLost() | TaskRaised() | Released():
                self._handle_task(event)
            case Committed():
                self._progress.committed(event.counts, event.groups)
                if n_batches := self._drain.committed(event.groups, event.keys):
                    self._concurrency.batches_committed(n_batches)
            case Reconnected():
                logger.warning("%s: connected again; slots: %d", self._job.name, self._cluster.slots)
                self._is_reconnecting = False
            case StopRequested():
                self._stop(event)
            case CancelRequested():
                logger.info("%s: received a request to cancel the job", self._job.name)
                self._stop(StopRequested(GRACE_SECONDS))
            case ThreadFault():
                if not (self._stops and event.thread == "connect"):
                    raise event.error
                logger.info("%s: the cluster stays out of reach (%s)", self._job.name, event.error)
                self._stop_by = time.monotonic()  # nothing more comes

    def _handle_task(self, event: TaskFinished | GroupFinished | TaskLost | TaskRaised | Released) -> None:
        match event:
            case TaskFinished():
                self._task_finished(event)
            case GroupFinished():
                self._plan.group_finished(event.group)
                self._progress.add(event.counts, {})
            case TaskLost():
                self._lost(event)
            case TaskRaised():
                self._recovery.raised(event)
            case Released():
                self._plan.release(event.number, event.released)

    def _task_finished(self, event: TaskFinished) -> None:
        task = self._plan.tasks_in_flight[event.number]
        if event.children:
            self._progress.set(children=event.children)
        if event.is_empty and not self._stops and (loss := self._recovery.came_back_empty(task)) is not None:
            self._lost(loss)
            if event.partial is not None:
                self._partial_groups.drop(event.partial)
            return
        self._recovery.came_back(task, event.worker, is_empty=event.is_empty)
        if task.alone and event.worker and not event.is_empty:
            message = "%s: group %d ran alone on its worker and used %s"
            logger.info(message, self._job.name, task.groups[0], bytes_text(event.usage.peak_bytes))
        if event.partial is None:
            self._plan.task_finished(event.number, event.done, event.usage.seconds, event.run_alone_later)
        self._progress.add(event.counts, event.failed)
        n_reused = self._n_reused(task, event)
        self._n_reused_left -= n_reused
        n_failed = event.counts.simulations_failed
        self._recent.add(event.usage.seconds, event.counts.simulations - n_reused, n_failed, n_reused)
        self._concurrency.task_finished(event.usage, exceeded_memory=bool(event.run_alone_later))
        if event.partial is not None:
            self._split_task_finished(task, event, event.partial)

    def _split_task_finished(self, task: Task, event: TaskFinished, partial: PartialResult) -> None:
        """Add a result to its group. Deliver the group if it is whole; run its targets if all replicates are there."""
        group, result = task.groups[0], partial.result
        targets_run_alone = task.replicates == () and bool(event.run_alone_later)
        if targets_run_alone:
            self._partial_groups.drop(partial)  # all targets run again, alone
        is_whole = not targets_run_alone and self._partial_groups.add(group, partial)
        self._plan.split_task_finished(event.number, result.replicates, result.seconds, event.run_alone_later)
        if is_whole:
            self._plan.group_delivering(group)
            self._tasks_in_flight.deliver_group(group)
        elif not targets_run_alone and self._partial_groups.targets_due(group):
            if task.replicates:
                self._plan.targets_due(group)
            else:
                self._plan.targets_unfinished(group, alone=task.alone)

    def _lost(self, loss: TaskLost) -> None:
        """Send a lost task again; or deliver a result in which its simulation has failed, so that it is quarantined."""
        if n_times := self._recovery.lost(loss):
            result = quarantine_result(self._request_for(loss.task), loss, n_times)
            self._tasks_in_flight.deliver_failed(loss.task, result)

    def _stop(self, request: StopRequested) -> None:
        # A request to cancel overrides requests to hand over, and a later request can only shorten the time.
        now = time.monotonic()
        grace_s = max(min(request.grace_s, self._stop_by - _STOP_SECONDS - now), 0.0)
        self._stops.append(request)
        self._stop_by = now + grace_s + _STOP_SECONDS
        self._plan.stop()
        self._cluster.stop(grace_s)

    @property
    def _handed_over_by(self) -> int | None:
        """The signal that stopped the runner for the next one; None: nothing did, or a request cancelled the job."""
        signals = [request.by for request in self._stops]
        return signals[0] if signals and None not in signals else None

    def _take_last_events(self) -> None:
        """Handle the events after the loop: the last commits, and errors of the threads."""
        while (event := self._next_event(0.0)) is not None:
            if isinstance(event, ThreadFault) and event.thread == "connect":
                continue  # the attempt no longer needs the connection
            if isinstance(event, Committed | ThreadFault):
                self._handle(event)
        self._publish_progress()

    def _watch_long_steps(self) -> None:
        """Log what runs much longer than the rest, and give what waits behind it to other tasks."""
        now = time.time()
        if self._stops or not self._slow.is_due(now):  # after a stop, the last list stays: it says what was killed
            return
        running = self._cluster.long_steps()
        advice = "" if self._job.settings.sim_timeout else "; to kill such simulations, set MODELOPS_JOB_SIM_TIMEOUT"
        for slow in self._slow.look(now, running):
            logger.warning("%s: slow: %s%s", self._job.name, slow_text(slow), advice)
        for step in running:  # each look lists again what the task of a long step has released
            task = self._plan.tasks_in_flight.get(step.task)
            if task is not None and (released := frozenset(Ranges.joined(step.released)).intersection(task.units)):
                self._tasks_in_flight.release(task, released)

    def _waits_for(self) -> str:
        """Return what must come before anything can run; empty: nothing."""
        if not self._cluster.is_connected:
            return "the Dask scheduler"
        return "" if self._cluster.slots else f"workers{of_pool(self._capacity.pool)}"

    def _publish_progress(self) -> None:
        slots, n_left, tasks = self._plan.slots, self._n_left_to_run, self._plan.tasks_in_flight
        self._time_left.look(time.monotonic(), slots, n_left, tasks, len(self._slow.found))
        waits_for = self._waits_for()
        if waits_for != self._progress.now.waits_for:
            self._progress.set(waits_for=waits_for, waits_since=time.time() if waits_for else 0.0)
        self._progress.set(
            in_flight=self._plan.groups_in_flight,
            slots=self._plan.share.slots,
            window=self._concurrency.window.size,
            sizing=self._concurrency.explanation,
            next_commit_s=self.committer.next_commit_s,
            slow=self._slow.found,
            seconds_left=None if waits_for else self._time_left.seconds,
        )
        try:
            self._on_progress(self._progress.look())
        except KeyboardInterrupt:
            if not self._stops:  # else the first request decides whether to hand over
                self.stop()
