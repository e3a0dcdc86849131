"""The runner: performs what the plan decides, until every group of a job is committed.

The loop only waits for events and sends tasks. Fetching results, committing them and the drain check have threads
of their own; deciding is :mod:`mops.driver.plan`'s, durability :mod:`mops.driver.checkpoint`'s.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from distributed import Client, Future

from mops.driver import drain
from mops.driver.checkpoint import Checkpointer, Committed, Limits
from mops.driver.joblog import JobLogBuffer
from mops.driver.plan import Batches, Plan, Submit
from mops.driver.progress import Progress, Snapshot
from mops.errors import ClusterError, JobFailed, MopsError, UsageError
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.jobs import JobRecord, Live, keep_reference, read_reference, write_live
from mops.storage.log import Counts, JobLog, LogView, State
from mops.storage.paths import JobPaths
from mops.study.groups import GroupTable
from mops.worker.order import Context, Order, Outcome, key_of
from mops.worker.tables import Kinds
from mops.worker.task import run_groups, stop_pool

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
LIVE_SECONDS = 10.0
_TICK_SECONDS = 0.25


class _StopAsked:
    """An event: somebody asks this runner to stop."""

    def __init__(self, grace_s: float):
        self.grace_s = grace_s


@dataclass
class _Fetched:
    """An event: an order's outcome is in the open checkpoint and its future is released."""

    number: int
    done: frozenset[int]
    seconds: float
    reference: Kinds | None
    counts: Counts


@dataclass
class _Failed:
    """An event: a task raised, so that nothing can run."""

    error: BaseException


class Runner:
    """Drives one attempt of one job.

    Parameters
    ----------
    client
        Connected to the cluster that runs the simulations.
    log
        Claimed for this attempt.
    on_progress
        Called in the runner's thread with a :class:`Snapshot`, about four times a second.
    """

    def __init__(
        self,
        client: Client,
        files: Files,
        record: JobRecord,
        groups: GroupTable,
        log: JobLog,
        context: Context,
        settings: Settings,
        text_log: JobLogBuffer,
        on_progress: Callable[[Snapshot], None] = lambda _: None,
    ):
        self._client, self._files, self._record, self._groups = client, files, record, groups
        self._log, self._context, self._settings = log, context, settings
        self._text_log, self._on_progress = text_log, on_progress
        self._paths = JobPaths(record.job)
        self._attempt = log.view.attempt
        self._inherited = log.view
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._reference = read_reference(files, self._paths)
        self._futures: dict[int, Future[Outcome]] = {}
        self._progress = Progress(record.job, groups.n_simulations, log.view.counts)
        self._batches = Batches(settings.batch_size)
        self._stopping = False
        self._live_at = 0.0

    def stop(self, grace_s: float = GRACE_SECONDS) -> None:
        """Start nothing new; running simulations get ``grace_s`` seconds; then commit. From any thread or handler."""
        self._events.put(_StopAsked(grace_s))

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
        JobFailed, UsageError
            Nothing can run; the log says ``failed``.
        """
        with ThreadPoolExecutor(1, "mops-fetch") as fetcher, ThreadPoolExecutor(1, "mops-drain") as drainer:
            self._fetcher, self._drainer = fetcher, drainer
            checkpointer = self._checkpointer()
            self._checkpoints = checkpointer
            try:
                failure = self._drive()
                checkpointer.finish()
                self._take_commits()
                self._check_drained(self._batches.rest())
            except BaseException:
                stop_pool(self._record.job, 0.0)
                checkpointer.abandon()
                raise
            return self._end(failure)

    def _checkpointer(self) -> Checkpointer:
        settings = self._settings
        return Checkpointer(
            self._files,
            self._paths,
            self._log,
            self._groups,
            Limits(settings.checkpoint_seconds, settings.checkpoint_bytes, settings.batch_size),
            attempt=self._attempt,
            n_targets=len(self._context.targets),
            outputs=self._context.outputs,
            on_event=self._events.put,
            on_tick=self._tick_storage,
            take_text=self._text_log.take,
        )

    def _drive(self) -> MopsError | None:
        """Run the pilot and the window; return why the job cannot run, if it cannot."""
        todo = self._inherited.committed.complement(len(self._groups))
        plan = Plan(
            todo,
            len(todo),
            batch_size=self._settings.batch_size,
            slots=self._context.slots,
            # Where each group is to be committed as it finishes, none waits for another in its task.
            task_seconds=self._settings.task_seconds if self._settings.checkpoint_seconds > 0 else 0.0,
        )
        self._plan = plan
        try:
            while not plan.over:
                self._send(plan.fill(pilot=self._reference is None))
                self._take(self._next_event())
        except (JobFailed, UsageError) as failure:
            stop_pool(self._record.job, 0.0)
            return failure
        return None

    def _send(self, orders: list[Submit]) -> None:
        for submit in orders:
            order = self._order(submit)
            future = self._client.submit(run_groups, order, key=order.key, pure=False)
            self._futures[submit.number] = future
            future.add_done_callback(lambda done, number=submit.number: self._came_back(number, done))

    def _order(self, submit: Submit) -> Order:
        settings = self._settings
        return Order(
            self._context,
            submit.number,
            tuple(self._groups.group(index) for index in submit.groups),
            self._reference,
            # Twice what was planned: a task that turns out long comes back at a group's border.
            seconds=2 * settings.task_seconds,
            bytes=max(settings.checkpoint_bytes // (2 * self._context.slots), 1),
        )

    def _came_back(self, number: int, future: Future[Outcome]) -> None:
        """Have an outcome fetched. Runs in Dask's thread for callbacks."""
        with contextlib.suppress(RuntimeError):  # the fetching thread has ended with this attempt: nobody waits for it
            self._fetcher.submit(self._fetch, number, future)

    def _fetch(self, number: int, future: Future[Outcome]) -> None:
        """Bring an outcome into the open checkpoint, then release its future. Runs in the fetching thread."""
        try:
            if future.status != "finished":
                self._events.put(_Failed(_reason(future)))
                return
            outcome: Outcome = future.result()
            if self._reference is None and outcome.reference is not None:
                outcome = self._pilot_done(outcome)
            self._text_log.add(outcome.prints)
            counts = self._checkpoints.put(outcome)
            event = _Fetched(number, outcome.done, outcome.seconds, outcome.reference, counts)
            del outcome
            future.release()
            # A release takes two turns of the client's loop to be sent, a submit one: without this turn the next
            # tasks reach the scheduler first, and more than the window is there.
            self._client.sync(asyncio.sleep, 0)
            self._events.put(event)
        except Exception as error:  # noqa: BLE001 - carried to the loop, which raises it
            self._events.put(_Failed(error))

    def _pilot_done(self, outcome: Outcome) -> Outcome:
        """Make the first good simulation's schema the job's; another attempt may have been first."""
        assert outcome.reference is not None
        kept = keep_reference(self._files, self._paths, outcome.reference)
        unknown = [name for name in self._context.outputs or () if name not in kept]
        if unknown:
            raise UsageError(
                f"the model has no output {', '.join(map(repr, unknown))}; it has: {', '.join(kept)}",
                where="$.outputs",
                hint="name outputs that the model returns, or leave 'outputs' out to keep all",
            )
        if kept == outcome.reference:
            return outcome
        # Judged by another schema than the job's: these groups run again under the job's own.
        return replace(outcome, done=frozenset(), parts=[], failures=[], losses=[], reference=kept)

    def _next_event(self) -> object:
        while True:
            try:
                return self._events.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                self._show()

    def _take(self, event: object) -> None:
        match event:
            case _Fetched():
                self._futures.pop(event.number, None)
                self._reference = self._reference or event.reference
                self._plan.finished(event.number, event.done, event.seconds)
                self._progress.took(event.counts)
            case Committed():
                self._committed(event)
            case _StopAsked():
                self._stop(event.grace_s)
            case _Failed():
                raise event.error
            case BaseException():
                raise event
        self._show()

    def _committed(self, event: Committed) -> None:
        self._progress.committed(event.counts)
        keys = [key_of(self._record.job, number) for number in event.orders]
        self._check_drained(self._batches.add(event.groups, keys))

    def _check_drained(self, batch: tuple[int, list[str]] | None) -> None:
        if batch is not None:
            checked = self._drainer.submit(drain.check, self._client, self._record.job, *batch)
            checked.add_done_callback(_warn_of_fault)

    def _stop(self, grace_s: float) -> None:
        self._stopping = True
        self._plan.stop()
        stop_pool(self._record.job, grace_s)

    def _take_commits(self) -> None:
        """Take what the checkpointer's end brought: the last commits, or the error that prevented them."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Committed | BaseException):
                    self._take(event)

    def _end(self, failure: MopsError | None) -> State:
        """Append the attempt's end."""
        view = self._log.view
        if failure is not None:
            self._log.end("failed", totals=view.counts)
            raise failure
        state = end_state(view, len(self._groups))
        self._log.end(state, totals=view.counts)
        return state

    def _tick_storage(self) -> None:
        """Write the live record; learn of a cancel. Runs in the checkpointing thread."""
        if self._log.cancelled and not self._stopping:
            self.stop()
        if time.monotonic() - self._live_at >= LIVE_SECONDS:
            self._live_at = time.monotonic()
            write_live(self._files, self._paths, self._attempt, self._live())

    def _live(self) -> Live:
        shown = self._progress.snapshot()
        return Live(
            at=time.time(),
            host=os.uname().nodename,
            pid=os.getpid(),
            counts=self._progress.finished,
            rate=shown.rate,
            memory_bytes=shown.memory_bytes,
            settings=self._settings.to_json(),
        )

    def _show(self) -> None:
        self._on_progress(self._progress.snapshot())


def end_state(view: LogView, n_groups: int) -> State:
    """Return the state that an attempt ends with when nothing prevented it."""
    if len(view.committed) < n_groups:
        return "cancelled"
    return "partial" if view.counts.failed else "succeeded"


def _warn_of_fault(checked: concurrent.futures.Future[bool]) -> None:
    if (error := checked.exception()) is not None:
        logger.warning("the drain check itself failed", exc_info=error)


def _reason(future: Future[Outcome]) -> BaseException:
    # exception() and not result(): a raised error's frames would pin every future (FACTS, Dask).
    error: BaseException | None = future.exception() if future.status == "error" else None
    return error or ClusterError(
        f"Dask lost a task ({future.status})",
        where=str(future.key),
        hint="mops jobs resume goes on from what is committed",
    )
