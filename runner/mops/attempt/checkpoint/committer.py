"""The thread that commits: it writes parts first, then one record in the job's log.

This thread alone uses the log (:class:`mops.storage.joblog.log.JobLog`). It encodes results as they come, closes
checkpoints, and meanwhile looks for a newer attempt or a cancel. docs/internals/storage.md explains the records.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mops.attempt.checkpoint.open_checkpoint import LEAST_SECONDS, NAMED_GROUPS, OpenCheckpoint, StoredFile
from mops.attempt.checkpoint.pending_results import PendingResults
from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.job_families import JobFamilies
from mops.attempt.reporting.observer import Observer
from mops.attempt.reporting.text_log import TextLogBuffer
from mops.attempt.task_threads import ThreadFault
from mops.errors import InternalError, StorageError
from mops.parquet.output_file import StoredTypes
from mops.storage import advisory
from mops.storage.joblog.records import Part
from mops.task import PartFile, TaskResult, counts_of_result
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0

TICK_SECONDS = 0.5
"""How often the observer is called, which decides what is due."""

ABANDON_SECONDS = 5.0
"""How long an abandoned thread has to end. A storage that does not answer may hold it for minutes."""

_QUEUES = 4
"""The queue may hold this fraction of a checkpoint, because the thread needs only its next result there."""


@dataclass
class Committed:
    """An event: the groups of the tasks with these keys are durable."""

    keys: list[str]
    groups: int
    counts: Counts


class CancelRequested:
    """An event: the log has a cancel."""


@dataclass
class _Queue:
    """Results on their way to the thread, bounded in bytes."""

    limit_bytes: int
    items: deque[tuple[TaskResult, Counts]] = field(default_factory=deque)
    bytes: int = 0
    closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, result: TaskResult, counts: Counts) -> None:
        with self.changed:
            # One result may always enter, however large.
            self.changed.wait_for(lambda: self.closed or not self.bytes or self.bytes < self.limit_bytes)
            self.items.append((result, counts))
            self.bytes += result.nbytes
            self.changed.notify_all()

    def take(self, timeout_s: float) -> tuple[TaskResult, Counts] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.closed, timeout=max(timeout_s, 0.0))
            return self.items.popleft() if self.items else None

    def release(self, n_bytes: int) -> None:
        """Make room for a result's bytes, which are encoded."""
        with self.changed:
            self.bytes -= n_bytes
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Committer:
    """The thread that commits, from :meth:`start` to :meth:`finish` or :meth:`abandon`.

    Parameters
    ----------
    families
        The families of the job's columns. A commit stores those that it fixes.
    pending
        Counts what is finished and what is stored.
    text_log
        The job's text log, which is stored with each commit.
    observer
        Called in this thread every few seconds, and at the end, to write signs of life and samples.
    put
        Takes the events :class:`Committed` and :class:`CancelRequested`, and the fault that ended the thread.
    """

    def __init__(
        self,
        job: ClaimedJob,
        families: JobFamilies,
        pending: PendingResults,
        text_log: TextLogBuffer,
        observer: Observer,
        put: Callable[[object], None],
    ):
        self._job, self._families, self._pending, self._text_log = job, families, pending, text_log
        self._observer, self._put = observer, put
        self._limits = job.checkpoint_limits
        self._advisory = advisory.Writer(job.files)
        self._queue = _Queue(self._limits.bytes // _QUEUES)
        self._file_numbers = itertools.count(1)
        self._abandoned = self._cancel_seen = False
        self._has_good_commit = job.inherited.counts.simulations_good > 0
        self._types = StoredTypes(families.of)
        self._open = self._new_checkpoint()
        self._opened_at = self._closed_at = time.monotonic()
        self._polled_at = self._closed_at - POLL_SECONDS
        self._ticked_at = self._closed_at - TICK_SECONDS  # the first sign of life is due at once
        self._thread = threading.Thread(target=self._run, name="mops-checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, result: TaskResult) -> Counts:
        """Take a result, whose buffers the thread owns from now on, and count it.

        Waits while too many bytes wait to be encoded.
        """
        counts = counts_of_result(result, self._job.n_to_run, len(self._job.context.targets))
        if result.done:
            self._pending.add(result.nbytes)
        self._queue.put(result, counts)
        return counts

    def finish(self) -> None:
        """Commit the open checkpoint and end the thread."""
        self._queue.close()
        self._thread.join()

    def abandon(self) -> None:
        """End the thread without another commit, because the runner lost its job or cannot store anything.

        A thread that waits for the storage continues: its record counts only if no other attempt has begun.
        """
        self._abandoned = True
        self._queue.close()
        self._thread.join(ABANDON_SECONDS)

    def _run(self) -> None:
        try:
            while self._step():
                pass
            if len(self._open) and not self._abandoned:
                self._commit()
            self._store_text()
            if not self._abandoned:
                self._observer.tick(self._open.bytes, last=True)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self._queue.close()
            self._put(ThreadFault(error, "commit"))

    def _step(self) -> bool:
        taken = self._queue.take(self._wait_s())
        if self._abandoned or (taken is None and self._queue.closed):
            return False
        if taken is not None:
            self._add(*taken)
            del taken  # frees its buffers before the next result comes
        now = time.monotonic()
        # The first good group is committed at once, because its files tell the size of the others.
        is_first_good = not self._has_good_commit and self._open.counts.simulations_good > 0
        if is_first_good or self._limits.due(self._open, now - self._opened_at, now - self._closed_at):
            self._commit()
        elif self._open.bytes_held >= self._limits.bytes:  # the checkpoint must not close yet
            self._store_into(self._open, self._open.take_outputs())
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            self._job.log.poll()  # raises if a newer attempt owns the job
            if self._job.log.cancelled and not self._cancel_seen:
                self._cancel_seen = True
                self._put(CancelRequested())
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self._observer.tick(self._open.bytes)
        return True

    @property
    def next_commit_s(self) -> float | None:
        """Seconds until the open checkpoint closes, at the latest; None: it is empty. From any thread."""
        if not len(self._open):
            return None
        least_s = min(LEAST_SECONDS, self._limits.seconds)
        due = max(self._opened_at + self._limits.seconds, self._closed_at + least_s)
        return max(due - time.monotonic(), 0.0)

    def _wait_s(self) -> float:
        """Return how long to wait for the next result."""
        next_look = min(self._polled_at + POLL_SECONDS, self._ticked_at + TICK_SECONDS) - time.monotonic()
        next_commit = self.next_commit_s
        return next_look if next_commit is None else min(next_look, next_commit)

    def _add(self, result: TaskResult, counts: Counts) -> None:
        self._check_new(result.done)
        if not len(self._open):
            self._opened_at = time.monotonic()
        n_bytes = result.nbytes
        self._check_stored(result.files)
        self._open.add(result, counts)
        self._store_into(self._open, self._open.take_encoded())
        self._queue.release(n_bytes)

    def _check_stored(self, files: Iterable[PartFile]) -> None:
        """Check that the parts that a worker has stored are in this storage, because a worker may have another one.

        Raises
        ------
        StorageError
            One is not.
        """
        for file in files:
            if file.content is not None:
                continue
            with contextlib.suppress(FileNotFoundError):
                if self._job.files.size(file.path) == file.bytes:
                    self._pending.add_written(file.bytes)
                    continue
            raise StorageError(
                "a worker stored a part, but the runner does not find it in its own storage",
                where=f"{self._job.files.url}/{file.path}",
                hint="mount the same storage on the workers and the runner, or set MODELOPS_JOB_PERSIST=runner",
            )

    def _check_new(self, done: frozenset[int]) -> None:
        """Check that no group comes a second time, whether in this checkpoint or after a commit of any attempt.

        Parts with duplicate rows are valid Parquet, so no later check would find them.

        Raises
        ------
        InternalError
            A group has come before.
        """
        committed = self._job.log.view.committed
        if again := self._open.holds(done) or [group for group in sorted(done) if group in committed]:
            raise InternalError(
                f"parameter sets came twice: groups {', '.join(map(str, again[:NAMED_GROUPS]))}",
                where=self._job.paths.record,
                hint=f"the committed results are correct; report this, then run: mops jobs resume {self._job.name}",
            )

    def _commit(self) -> None:
        """Close the open checkpoint: store every part, then append the record."""
        closing, self._open = self._open, self._new_checkpoint()
        self._closed_at = time.monotonic()
        self._has_good_commit |= closing.counts.simulations_good > 0
        self._store_into(closing, closing.take_files())
        self._store_text()
        families = self._families.unstored(closing.families)
        self._job.log.commit(closing.groups, closing.parts, closing.counts, families)
        self._families.store(families)
        self._pending.remove_oldest(closing.n_results)
        logger.debug("%s: committed %d groups in %d parts", self._job.name, len(closing), len(closing.parts))
        self._put(Committed(closing.keys, len(closing), closing.counts))

    def _new_checkpoint(self) -> OpenCheckpoint:
        return OpenCheckpoint(self._job.groups, self._job.context.outputs, self._job.files.spool, self._types)

    def _store_text(self) -> None:
        if text := self._text_log.take():
            path = self._job.paths.text(self._job.attempt, next(self._file_numbers))
            self._advisory.write("the text log", lambda files: files.put(path, text.encode(errors="replace")))

    def _store_into(self, checkpoint: OpenCheckpoint, files: Iterable[StoredFile]) -> None:
        """Store files as parts of a checkpoint."""
        for kind, output, file in files:
            path = self._job.paths.part(kind, output, self._job.attempt, next(self._file_numbers))
            self._job.files.create(path, file.content)
            self._pending.add_written(file.bytes)
            checkpoint.parts.append(Part(path, file.rows, file.bytes, file.digest))
