"""Makes finished groups durable: a thread encodes and stores their rows, and commits them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.progress import Observer
from mops.attempt.sizing import MOST_GROUPS
from mops.attempt.text_log import TextLogBuffer
from mops.attempt.threads import Events, ThreadFault
from mops.child.buffers import read_segment
from mops.errors import InternalError, StorageError
from mops.parquet.encoder import TEXTS_BYTES, Encoded, PartEncoder
from mops.parquet.output_file import OutputFile, StoredTypes
from mops.parquet.schemas import with_dictionaries
from mops.storage import advisory
from mops.storage.backends.base import Spool
from mops.storage.joblog.records import Part
from mops.study.column_families import Families, join_families
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.task import FAILURES, LOSSES, Failure, Loss, PartFile, Segment, TaskResult, counts_of_result
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

LEAST_COMMIT_SECONDS = 1.0  # the least time between two commits, unless MODELOPS_JOB_CHECKPOINT_SECONDS is 0
LOG_POLL_SECONDS = 3.0  # how often the log is read for a cancel or a newer claim
TICK_SECONDS = 0.5  # how often the observer is called, which decides what is due
# How long an abandoned thread has to end. A storage that does not answer may hold it for minutes.
ABANDON_SECONDS = 5.0
NAMED_GROUPS = 5
_ROWS_AT_ONCE = 5_000  # how many losses or failures wait to be encoded together; each takes at most 3 KiB
_QUEUES = 4  # the queue may hold this fraction of a checkpoint, because the thread needs only its next result there

_Row = TypeVar("_Row", Loss, Failure)
_StoredFile: TypeAlias = "tuple[str, str | None, Encoded[Any]]"  # kind of the table, output, and file


class OpenCheckpoint:
    """The groups that are finished but not durable. Their results are encoded as they come."""

    def __init__(
        self,
        groups: GroupTable,
        outputs: tuple[str, ...] | None,  # that the study keeps; None: all
        spool: Callable[[], Spool],  # returns an empty file, so that encoded results take no memory
        types: StoredTypes,
    ):
        self._groups, self._outputs, self._spool, self._types = groups, outputs, spool, types
        self._open: dict[str, OutputFile[Spool]] = {}
        self._encoded: list[PartFile] = []
        self.families: Families = {}
        self._losses: _WaitingRows[Loss] = _WaitingRows("losses", LOSSES, groups, spool)
        self._failures: _WaitingRows[Failure] = _WaitingRows("failures", FAILURES, groups, spool)
        self._done: set[int] = set()
        self.keys: list[str] = []
        self.parts: list[Part] = []
        self.counts = Counts()
        self.n_results = 0  # with finished groups
        self.bytes = self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._done)

    @property
    def groups(self) -> Ranges:
        """The finished groups."""
        return Ranges.of(self._done)

    def holds(self, groups: Iterable[int]) -> list[int]:
        """Return which of these groups are in the checkpoint."""
        return sorted(self._done.intersection(groups))

    def add(self, result: TaskResult, counts: Counts) -> None:
        """Add the finished groups of a result. Its buffers are removed from it, and freed one by one."""
        self.bytes += result.row_bytes
        while result.files:
            file = result.files.pop(0)
            self.families = join_families(self.families, {file.output: file.families})
            if file.content is None:  # a worker has stored it
                self.parts.append(Part(file.path, file.rows, file.bytes, file.digest))
            else:
                self._encoded.append(file)
        self.bytes_held += result.row_bytes
        while result.buffers:
            taken = result.buffers.pop(0)
            for segment in taken.segments:
                self._write(taken.buffer, segment, result.done)
        self._done |= result.done
        self.n_results += bool(result.done)
        self._losses.add(result.losses)
        self._failures.add(result.failures)
        self.keys += result.keys
        self.counts += counts

    def _write(self, buffer: pa.Buffer, segment: Segment, done: frozenset[int]) -> None:
        if self._outputs is not None and segment.output not in self._outputs:
            return
        where = {"offset": segment.offset, "length": segment.length}
        if 2 * segment.length < buffer.size:
            # A copy of the few rows, because they would keep their whole buffer in memory.
            buffer, where["offset"] = pa.py_buffer(buffer.slice(segment.offset, segment.length).to_pybytes()), 0
        table = read_segment(buffer, where)
        simulations, rows = segment.simulations, segment.rows
        if not all(group in done for group, _ in simulations):
            table, simulations, rows = _only(done, table, simulations, rows)
        self.families = join_families(self.families, {segment.output: segment.families})
        table = self._types.stored(segment.output, table)
        if segment.output not in self._open:
            self._open[segment.output] = OutputFile(self._spool)
        self._open[segment.output].write(self._groups.identify(table, simulations, rows))

    def take_encoded(self) -> Iterator[_StoredFile]:
        """Yield the files that child processes have encoded, and forget them."""
        while self._encoded:
            file = self._encoded.pop()
            yield "outputs", file.output, Encoded(file.content, file.rows, file.bytes, file.digest)

    def take_outputs(self) -> Iterator[_StoredFile]:
        """Yield the files of the outputs as (kind, output, file), and forget them."""
        while self._open:
            output, file = self._open.popitem()
            yield "outputs", output, file.finish()
        self.bytes_held = 0

    def take_files(self) -> Iterator[_StoredFile]:
        """Yield all files as (kind, output, file), and forget them. A kind is outputs, losses or failures."""
        yield from self.take_outputs()
        for rows in (self._losses, self._failures):
            if file := rows.take():
                yield rows.kind, None, file


class _WaitingRows(Generic[_Row]):
    """Losses or failures on their way into a file. They are encoded a few thousand at a time, to save memory."""

    def __init__(self, kind: str, schema: pa.Schema, groups: GroupTable, spool: Callable[[], Spool]):
        self.kind, self._schema, self._groups, self._spool = kind, schema, groups, spool
        self._rows: list[_Row] = []
        self._encoder: PartEncoder[Spool] | None = None

    def add(self, rows: list[_Row]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._encode()

    def take(self) -> Encoded[Spool] | None:
        """Return the file, and forget it; None without rows."""
        if self._rows:
            self._encode()
        encoder, self._encoder = self._encoder, None
        return encoder.finish() if encoder else None

    def _encode(self) -> None:
        values = list(zip(*self._rows, strict=True))  # the columns of the schema after param_id, in its order
        schema = with_dictionaries(self._schema, ("traceback",))
        columns = [self._groups.param_ids(values[0])]
        columns += [_column(field, of_rows) for field, of_rows in zip(list(schema)[1:], values, strict=True)]
        table = pa.table(columns, schema=schema)
        self._encoder = self._encoder or PartEncoder(table.schema, self._spool(), TEXTS_BYTES)
        self._encoder.write(table)
        self._rows = []


def _column(field: pa.Field, values: Sequence[object]) -> pa.Array:
    if not pa.types.is_dictionary(field.type):
        return pa.array(values, field.type)
    numbers: dict[object, int] = {}  # each value is encoded once for all its rows
    indices = [numbers.setdefault(value, len(numbers)) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(list(numbers), pa.string()))


def _only(
    done: frozenset[int], table: pa.Table, simulations: list[tuple[int, int]], rows: list[int]
) -> tuple[pa.Table, list[tuple[int, int]], list[int]]:
    kept, start, tables = [], 0, [table.slice(0, 0)]
    for simulation, n in zip(simulations, rows, strict=True):
        if simulation[0] in done:
            kept.append((simulation, n))
            tables.append(table.slice(start, n))
        start += n
    return pa.concat_tables(tables), [simulation for simulation, _ in kept], [n for _, n in kept]


@dataclass
class Limits:
    """When a checkpoint closes: after so many seconds, bytes of results, or groups."""

    seconds: float
    bytes: int
    groups: int

    def due(self, checkpoint: OpenCheckpoint, age_s: float, since_last_s: float) -> bool:
        """Tell whether to close the open checkpoint now."""
        if not len(checkpoint) or (since_last_s < LEAST_COMMIT_SECONDS and self.seconds > 0):
            return False
        return age_s >= self.seconds or checkpoint.bytes >= self.bytes or len(checkpoint) >= self.groups


@dataclass
class Committed:
    """An event: the groups of the tasks with these keys are durable."""

    keys: list[str]
    groups: int
    counts: Counts


class CancelRequested:
    """An event: the log has a cancel."""


class PendingResults:
    """The results that are finished and not durable: those that wait for the thread, and those that it has taken."""

    def __init__(self, limit_bytes: int, clock: Callable[[], float] = time.monotonic):
        self._limit_bytes, self._clock = limit_bytes, clock  # of those that wait for the thread
        self._waiting: deque[tuple[TaskResult, Counts]] = deque()
        self._waiting_bytes = 0
        self._pending: deque[tuple[float, int]] = deque()  # when they came, and bytes; oldest first
        self._changed = threading.Condition()
        self.closed = False
        self.bytes = 0

    def add(self, result: TaskResult, counts: Counts) -> None:
        """Add a result; wait while too many bytes wait. One result may always enter, however large."""
        with self._changed:
            if result.done:
                self._pending.append((self._clock(), result.nbytes))
                self.bytes += result.nbytes
            wait, most = self._changed.wait_for, self._limit_bytes
            wait(lambda: self.closed or not self._waiting_bytes or self._waiting_bytes < most)
            self._waiting.append((result, counts))
            self._waiting_bytes += result.nbytes
            self._changed.notify_all()

    def take(self, timeout_s: float) -> tuple[TaskResult, Counts] | None:
        """Return the next result for the thread; None: none came in time, or none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.closed, timeout=max(timeout_s, 0.0))
            return self._waiting.popleft() if self._waiting else None

    def taken(self, n_bytes: int) -> None:
        """Let others enter in place of a taken result, whose bytes are freed."""
        with self._changed:
            self._waiting_bytes -= n_bytes
            self._changed.notify_all()

    def durable(self, n_results: int) -> None:
        """Forget the oldest results with finished groups."""
        with self._changed:
            for _ in range(n_results):
                self.bytes -= self._pending.popleft()[1]

    def close(self) -> None:
        """Take no more; a thread that waits returns."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    @property
    def lag_s(self) -> float:
        """The age of the oldest result that is not durable, in seconds; 0 if all are."""
        with self._changed:
            return self._clock() - self._pending[0][0] if self._pending else 0.0


class Committer:
    """The thread that commits, from :meth:`start` to :meth:`finish` or :meth:`abandon`."""

    def __init__(
        self,
        job: ClaimedJob,
        text_log: TextLogBuffer,
        observer: Observer,
        events: Events,
    ):
        self._job, self._text_log, self._observer, self._events = job, text_log, observer, events
        settings = job.settings
        most_groups = settings.batch_size_or(MOST_GROUPS)
        self._limits = Limits(settings.checkpoint_seconds, settings.checkpoint_bytes, most_groups)
        self._advisory = advisory.Writer(job.files)
        self.pending = PendingResults(self._limits.bytes // _QUEUES)
        self.written_bytes = 0  # of parts that are stored, whether or not a record names them yet
        self._file_numbers = itertools.count(1)
        self._abandoned = self._cancel_seen = False
        self._has_good_commit = job.inherited.counts.simulations_good > 0
        self._types = StoredTypes(job.families.of)
        self._open = self._new_checkpoint()
        self._opened_at = self._closed_at = time.monotonic()
        self._polled_at = self._closed_at - LOG_POLL_SECONDS
        self._ticked_at = self._closed_at - TICK_SECONDS  # the first sign of life is due at once
        self._thread = threading.Thread(target=self._run, name="mops-checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, result: TaskResult) -> Counts:
        """Take a result, whose buffers the thread owns from now on, and count it. Wait while too many bytes wait."""
        counts = counts_of_result(result, self._job.n_to_run, len(self._job.context.targets))
        self.pending.add(result, counts)
        return counts

    def finish(self) -> None:
        """Commit the open checkpoint and end the thread."""
        self.pending.close()
        self._thread.join()

    def abandon(self) -> None:
        """End the thread without another commit, because the runner lost its job or cannot store anything."""
        self._abandoned = True
        self.pending.close()
        self._thread.join(ABANDON_SECONDS)  # later, a record of the thread counts only if no other attempt has begun

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
            self.pending.close()
            self._events.put(ThreadFault(error, "commit"))

    def _step(self) -> bool:
        wait_s = min(self._polled_at + LOG_POLL_SECONDS, self._ticked_at + TICK_SECONDS) - time.monotonic()
        if (next_commit_s := self.next_commit_s) is not None:
            wait_s = min(wait_s, next_commit_s)
        taken = self.pending.take(wait_s)
        if self._abandoned or (taken is None and self.pending.closed):
            return False
        if taken is not None:
            self._add(*taken)
            del taken  # frees its buffers before the next result comes
        now = time.monotonic()
        # The first good group is committed at once, so that people can look at its rows.
        is_first_good = not self._has_good_commit and self._open.counts.simulations_good > 0
        if is_first_good or self._limits.due(self._open, now - self._opened_at, now - self._closed_at):
            self._commit()
        elif self._open.bytes_held >= self._limits.bytes:  # the checkpoint must not close yet
            self._store_into(self._open, self._open.take_outputs())
        if now - self._polled_at >= LOG_POLL_SECONDS:
            self._polled_at = now
            self._job.log.poll()  # raises if a newer attempt owns the job
            if self._job.log.cancelled and not self._cancel_seen:
                self._cancel_seen = True
                self._events.put(CancelRequested())
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self._observer.tick(self._open.bytes)
        return True

    @property
    def next_commit_s(self) -> float | None:
        """Seconds until the open checkpoint closes, at the latest; None: it is empty. From any thread."""
        if not len(self._open):
            return None
        least_s = min(LEAST_COMMIT_SECONDS, self._limits.seconds)
        due = max(self._opened_at + self._limits.seconds, self._closed_at + least_s)
        return max(due - time.monotonic(), 0.0)

    def _add(self, result: TaskResult, counts: Counts) -> None:
        self._check_new(result.done)
        if not len(self._open):
            self._opened_at = time.monotonic()
        n_bytes = result.nbytes
        self._check_stored(result.files)
        self._open.add(result, counts)
        self._store_into(self._open, self._open.take_encoded())
        self.pending.taken(n_bytes)

    def _check_stored(self, files: Iterable[PartFile]) -> None:
        """Check that the parts that a worker has stored are in this storage, because a worker may have another one."""
        for file in files:
            if file.content is not None:
                continue
            with contextlib.suppress(FileNotFoundError):
                if self._job.files.size(file.path) == file.bytes:
                    self.written_bytes += file.bytes
                    continue
            raise StorageError(
                "a worker stored a part, but the runner does not find it in its own storage",
                where=f"{self._job.files.url}/{file.path}",
                hint="mount the same storage on the workers and the runner, or set MODELOPS_JOB_PERSIST=runner",
            )

    def _check_new(self, done: frozenset[int]) -> None:
        """Check that no group comes a second time, whether in this checkpoint or after a commit of any attempt."""
        # Parts with duplicate rows are valid Parquet, so no later check would find them.
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
        families = self._job.families.unstored(closing.families)
        self._job.log.commit(closing.groups, closing.parts, closing.counts, families)
        self._job.families.store(families)
        self.pending.durable(closing.n_results)
        logger.debug("%s: committed %d groups in %d parts", self._job.name, len(closing), len(closing.parts))
        self._events.put(Committed(closing.keys, len(closing), closing.counts))

    def _new_checkpoint(self) -> OpenCheckpoint:
        return OpenCheckpoint(self._job.groups, self._job.context.outputs, self._job.files.spool, self._types)

    def _store_text(self) -> None:
        if text := self._text_log.take():
            path = self._job.paths.text(self._job.attempt, next(self._file_numbers))
            self._advisory.write("the text log", lambda files: files.put(path, text.encode(errors="replace")))

    def _store_into(self, checkpoint: OpenCheckpoint, files: Iterable[_StoredFile]) -> None:
        for kind, output, file in files:
            path = self._job.paths.part(kind, output, self._job.attempt, next(self._file_numbers))
            self._job.files.create(path, file.content)
            self.written_bytes += file.bytes
            checkpoint.parts.append(Part(path, file.rows, file.bytes, file.digest))
