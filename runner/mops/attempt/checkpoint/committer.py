"""The thread that commits: writes parts first, then one record in the job's log.

One thread owns the log (:class:`mops.storage.joblog.log.JobLog` is used from one thread), encodes results as they
come, closes checkpoints, and meanwhile looks for a newer attempt or a cancel. What the record means is
docs/internals/storage.md's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mops.attempt.checkpoint.open_checkpoint import LEAST_SECONDS, NAMED_GROUPS, Limits, OpenCheckpoint
from mops.attempt.checkpoint.pending_results import PendingResults
from mops.attempt.job_families import JobFamilies
from mops.errors import InternalError
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part
from mops.storage.output_file import StoredTypes
from mops.storage.parquet import Encoded
from mops.storage.paths import JobPaths
from mops.study.groups import GroupTable
from mops.task import TaskResult, counts_of_result
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0


ABANDON_SECONDS = 5.0
"""An abandoned thread has so long to end: a storage that does not answer may hold it for minutes."""

_QUEUES = 4
"""What waits to be encoded may be this part of what a checkpoint may hold: the writer needs its next result only."""


@dataclass
class Committed:
    """An event: the groups of the tasks with these keys are durable."""

    keys: list[str]
    groups: int
    counts: Counts


@dataclass
class _Queue:
    """Results on their way to the writer, bounded in bytes."""

    limit_bytes: int
    items: deque[tuple[TaskResult, Counts]] = field(default_factory=deque)
    bytes: int = 0
    closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, result: TaskResult, counts: Counts) -> None:
        with self.changed:
            # One may always enter, however large.
            self.changed.wait_for(lambda: self.closed or not self.bytes or self.bytes < self.limit_bytes)
            self.items.append((result, counts))
            self.bytes += result.nbytes
            self.changed.notify_all()

    def take(self, timeout_s: float) -> tuple[TaskResult, Counts] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.closed, timeout=max(timeout_s, 0.0))
            return self.items.popleft() if self.items else None

    def encoded(self, nbytes: int) -> None:
        with self.changed:
            self.bytes -= nbytes
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Committer:
    """The thread that commits.

    Parameters
    ----------
    log
        The job's log, claimed. This thread uses it alone until :meth:`finish` returns.
    on_event
        Called in this thread with :class:`Committed`, or with the error that ended it.
    on_tick
        Called in this thread every few seconds, and at the end, for what else is to be written; with the bytes in the
        open checkpoint, and whether it is the end.
    take_text
        Returns the job's log since the last call.
    backlog
        Told what is finished and not durable yet, and what is stored.
    families
        What is known of the job's columns; told what of it is stored.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        log: JobLog,
        groups: GroupTable,
        limits: Limits,
        *,
        attempt: int,
        n_targets: int,
        outputs: tuple[str, ...] | None,
        on_event: Callable[[Committed | Exception], None],
        on_tick: Callable[[int, bool], None],
        take_text: Callable[[], str],
        backlog: PendingResults,
        families: JobFamilies,
    ):
        self._files, self._paths, self._log, self._groups = files, paths, log, groups
        self._advisory = advisory.Writer(files)
        self._limits, self._attempt, self._n_targets, self._outputs = limits, attempt, n_targets, outputs
        self._on_event, self._on_tick, self._take_text = on_event, on_tick, take_text
        self._queue, self._backlog = _Queue(limits.bytes // _QUEUES), backlog
        self._counter = 0
        self._abandoned = False
        self._tells = log.view.counts.simulations_good > 0
        self._families, self._types = families, StoredTypes(families.of)
        self._open = self._new_open()
        self._opened = self._closed = time.monotonic()
        self._polled = self._closed - POLL_SECONDS  # the first sign of life is due at once
        self._thread = threading.Thread(target=self._run, name="mops-checkpoints", daemon=True)
        self._thread.start()

    def put(self, result: TaskResult) -> Counts:
        """Take a result, whose parts are the writer's from now on, and count it.

        Waits while too many bytes wait to be encoded.
        """
        counts = counts_of_result(result, self._groups, self._n_targets)
        if result.done:
            self._backlog.came(result.nbytes)
        self._queue.put(result, counts)
        return counts

    def finish(self) -> None:
        """Commit what is there and end the thread; what ended it before comes as an event."""
        self._queue.close()
        self._thread.join()

    def abandon(self) -> None:
        """End the thread and commit nothing more: for a runner that no longer owns its job, or cannot store.

        One that waits for a storage is not waited for: what it writes yet counts only if no other attempt has begun.
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
                self._on_tick(self._open.bytes, True)
        except Exception as error:  # noqa: BLE001 - carried to the runner, which raises it
            self._queue.close()
            self._on_event(error)

    def _step(self) -> bool:
        taken = self._queue.take(self._wait_s())
        if self._abandoned or (taken is None and self._queue.closed):
            return False
        if taken is not None:
            self._add(*taken)
            del taken  # its buffers are not to live until the next one comes
        now = time.monotonic()
        if self._first or self._limits.due(self._open, now - self._opened, now - self._closed):
            self._commit()
        elif self._open.bytes_held >= self._limits.bytes:  # and it may not close yet
            self._store_into(self._open, self._open.take_outputs())
        if now - self._polled >= POLL_SECONDS:
            self._polled = now
            self._log.poll()
            self._on_tick(self._open.bytes, False)
        return True

    @property
    def _first(self) -> bool:
        """Whether the first good group of the job is there: its files tell what the others will take."""
        return not self._tells and self._open.counts.simulations_good > 0

    def _wait_s(self) -> float:
        now = time.monotonic()
        next_poll = self._polled + POLL_SECONDS - now
        if not len(self._open):
            return next_poll
        due = max(self._opened + self._limits.seconds, self._closed + min(LEAST_SECONDS, self._limits.seconds))
        return min(next_poll, due - now)

    def _check_new(self, done: frozenset[int]) -> None:
        """Look whether each group comes for the first time.

        Rows that are twice in a part, or in two, are valid Parquet: nobody would see them again. So a group enters a
        checkpoint once, and none that an earlier commit holds, whoever made it.

        Raises
        ------
        InternalError
            One has come before.
        """
        committed = self._log.view.committed
        if again := self._open.holds(done) or [group for group in sorted(done) if group in committed]:
            raise InternalError(
                f"parameter sets came twice: groups {', '.join(map(str, again[:NAMED_GROUPS]))}",
                where=self._paths.record,
                hint="what is committed is right: mops jobs resume goes on from there; please report this",
            )

    def _add(self, result: TaskResult, counts: Counts) -> None:
        self._check_new(result.done)
        if not len(self._open):
            self._opened = time.monotonic()
        nbytes = result.nbytes
        self._open.add(result, counts)
        self._queue.encoded(nbytes)

    def _commit(self) -> None:
        """Close the open checkpoint: every part durable, then the record."""
        closing, self._open = self._open, self._new_open()
        self._closed = time.monotonic()
        self._tells |= closing.counts.simulations_good > 0
        self._store_into(closing, closing.take_files())
        self._store_text()
        families = self._families.unstored(closing.families)
        self._log.commit(closing.ranges, closing.parts, closing.counts, families)
        self._families.store(families)
        self._backlog.durable(closing.n_outcomes)
        logger.debug("committed %d groups in %d parts", len(closing), len(closing.parts))
        self._on_event(Committed(closing.keys, len(closing), closing.counts))

    def _new_open(self) -> OpenCheckpoint:
        return OpenCheckpoint(self._groups, self._outputs, self._files.spool, self._types)

    def _store_text(self) -> None:
        if text := self._take_text():
            path = self._paths.text(self._attempt, self._next())
            self._advisory.write("the text log", lambda files: files.put(path, text.encode(errors="replace")))

    def _store_into(self, checkpoint: OpenCheckpoint, files: Iterable[tuple[str, str | None, Encoded]]) -> None:
        """Make files durable, as parts of a checkpoint."""
        for kind, output, file in files:
            path = self._paths.part(kind, output, self._attempt, self._next())
            self._files.put(path, file.content)
            self._backlog.wrote(file.bytes)
            checkpoint.parts.append(Part(path, file.rows, file.bytes, file.digest))

    def _next(self) -> int:
        self._counter += 1
        return self._counter
