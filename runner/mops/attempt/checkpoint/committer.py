"""Makes finished groups durable, beside computing: parts first, then one record in the job's log.

One thread owns the log (:class:`mops.storage.joblog.log.JobLog` is used from one thread), encodes outcomes as they come,
closes checkpoints, and meanwhile looks for a newer attempt or a cancel. What the record means is
docs/storage.md's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from mops.attempt.checkpoint.backlog import Backlog
from mops.attempt.job_families import JobFamilies
from mops.child.buffers import read_segment
from mops.errors import InternalError
from mops.storage import advisory
from mops.storage.backends.spool import Spool
from mops.storage.files import Files
from mops.storage.joblog.log import Counts, JobLog, Part
from mops.storage.output_file import OutputFile, StoredTypes
from mops.storage.parquet import FAILURES, LOSSES, Encoded, PartEncoder, with_dictionaries
from mops.storage.paths import JobPaths
from mops.study.column_families import Families, join_families
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.task import Failure, Loss, Outcome, Segment

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
LEAST_SECONDS = 1.0
"""Checkpoints close at most this often, unless each group is to be committed as it finishes."""

_ROWS_AT_ONCE = 5_000
"""Losses or failures that wait to be encoded; 3 KiB each at most."""

_DICTIONARY_BYTES = 16 << 20
"""More than the whole tracebacks of an attempt take (:mod:`mops.attempt.checkpoint.tracebacks`)."""

_NAMED = 5

ABANDON_SECONDS = 5.0
"""An abandoned thread has so long to end: a storage that does not answer may hold it for minutes."""

_QUEUES = 4
"""What waits to be encoded may be this part of what a checkpoint may hold: the writer needs its next outcome only."""

_Row = TypeVar("_Row", Loss, Failure)


class OpenCheckpoint:
    """What is finished and not yet durable, encoded as it comes.

    Parameters
    ----------
    groups
        The job's groups, for identities.
    outputs
        The outputs that the study keeps; None: all.
    spool
        Returns an empty place for a file: what is encoded is not held in memory.
    types
        Says in which types columns are stored; the attempt's.
    """

    def __init__(
        self, groups: GroupTable, outputs: tuple[str, ...] | None, spool: Callable[[], Spool], types: StoredTypes
    ):
        self._groups, self._outputs, self._spool, self._types = groups, outputs, spool, types
        self._open: dict[str, OutputFile] = {}
        self.families: Families = {}
        self._losses: _Rows[Loss] = _Rows("losses", LOSSES, groups, spool)
        self._failures: _Rows[Failure] = _Rows("failures", FAILURES, groups, spool)
        self._done: list[int] = []
        self._settled: set[int] = set()
        self.keys: list[str] = []
        self.parts: list[Part] = []
        self.counts = Counts()
        self.n_outcomes = 0  # with finished groups
        self.bytes = self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._done)

    @property
    def ranges(self) -> Ranges:
        """The groups."""
        return Ranges.of(self._done)

    def holds(self, groups: Iterable[int]) -> list[int]:
        """Return those of these groups that are in it already."""
        return sorted(self._settled.intersection(groups))

    def add(self, outcome: Outcome, counts: Counts) -> None:
        """Take an outcome; only groups that are done count. Its parts are taken out of it, and freed one by one."""
        n_bytes = outcome.nbytes
        self.bytes += n_bytes
        self.bytes_held += n_bytes
        while outcome.parts:
            part = outcome.parts.pop(0)
            for segment in part.segments:
                self._write(part.buffer, segment, outcome.done)
        self._done += sorted(outcome.done)
        self._settled |= outcome.done
        self.n_outcomes += bool(outcome.done)
        self._losses.add(outcome.losses)
        self._failures.add(outcome.failures)
        self.keys += outcome.keys
        self.counts += counts

    def _write(self, buffer: pa.Buffer, segment: Segment, done: frozenset[int]) -> None:
        if self._outputs is not None and segment.output not in self._outputs:
            return
        table = _rows_of(buffer, segment)
        simulations, rows = segment.simulations, segment.rows
        if not all(group in done for group, _ in simulations):
            table, simulations, rows = _only(done, table, simulations, rows)
        self.families = join_families(self.families, {segment.output: segment.families})
        table = self._types.stored(segment.output, table)
        if segment.output not in self._open:
            self._open[segment.output] = OutputFile(self._spool)
        self._open[segment.output].write(self._groups.identify(table, simulations, rows))

    def take_outputs(self) -> Iterator[tuple[str, str | None, Encoded]]:
        """Yield what is encoded of the outputs as (kind, output, file), and hold it no more."""
        while self._open:
            output, file = self._open.popitem()
            yield "outputs", output, file.finish()
        self.bytes_held = 0

    def take_files(self) -> Iterator[tuple[str, str | None, Encoded]]:
        """Yield every file as (kind, output, file), and hold none any more; kind is outputs, losses or failures."""
        yield from self.take_outputs()
        for rows in (self._losses, self._failures):
            if file := rows.take():
                yield rows.kind, None, file


class _Rows(Generic[_Row]):
    """Losses or failures on their way into a file: some thousand wait to be encoded, the others take no memory.

    Parameters
    ----------
    kind
        What they are: ``losses`` or ``failures``.
    schema
        The rows' columns, and param_id before them.
    """

    def __init__(self, kind: str, schema: pa.Schema, groups: GroupTable, spool: Callable[[], Spool]):
        self.kind, self._schema, self._groups, self._spool = kind, schema, groups, spool
        self._rows: list[_Row] = []
        self._encoder: PartEncoder | None = None

    def add(self, rows: list[_Row]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._encode()

    def take(self) -> Encoded | None:
        """Return the file, and hold it no more; None: there are no rows."""
        if self._rows:
            self._encode()
        encoder, self._encoder = self._encoder, None
        return encoder.finish() if encoder else None

    def _encode(self) -> None:
        values = list(zip(*self._rows, strict=True))  # those of the schema, in its order, but for param_id
        schema = with_dictionaries(self._schema, ("traceback",))
        columns = [self._groups.param_ids(values[0])]
        columns += [_column(field, of_rows) for field, of_rows in zip(list(schema)[1:], values, strict=True)]
        table = pa.table(columns, schema=schema)
        self._encoder = self._encoder or PartEncoder(table.schema, self._spool(), _DICTIONARY_BYTES)
        self._encoder.write(table)
        self._rows = []


def _column(field: pa.Field, values: Sequence[object]) -> pa.Array:
    if not pa.types.is_dictionary(field.type):
        return pa.array(values, field.type)
    numbers: dict[object, int] = {}  # each value is encoded once, however many rows have it
    indices = [numbers.setdefault(value, len(numbers)) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(list(numbers), pa.string()))


def _rows_of(buffer: pa.Buffer, segment: Segment) -> pa.Table:
    """Return a segment's rows; a copy of few, which would keep their whole part until they fill a row group."""
    where = {"offset": segment.offset, "length": segment.length}
    if 2 * segment.length < buffer.size:
        buffer, where["offset"] = pa.py_buffer(buffer.slice(segment.offset, segment.length).to_pybytes()), 0
    return read_segment(buffer, where)


def _only(
    done: frozenset[int], table: pa.Table, simulations: list[tuple[int, int]], rows: list[int]
) -> tuple[pa.Table, list[tuple[int, int]], list[int]]:
    """Drop the rows of groups that are not done."""
    kept, start, pieces = [], 0, [table.slice(0, 0)]
    for simulation, n in zip(simulations, rows, strict=True):
        if simulation[0] in done:
            kept.append((simulation, n))
            pieces.append(table.slice(start, n))
        start += n
    return pa.concat_tables(pieces), [simulation for simulation, _ in kept], [n for _, n in kept]


def counted(outcome: Outcome, groups: GroupTable, n_targets: int) -> Counts:
    """Count an outcome's simulations and targets; each target of a group without losses has failed."""
    failed = [failure for failure in outcome.failures if failure.target is None]
    without = {failure.group for failure in failed}
    failed_targets = sum(failure.target not in (None, "*") for failure in outcome.failures)
    n_simulations = sum(groups.n_replicates(group) for group in outcome.done)
    n_without = n_targets * len(without)
    n_scored = n_targets * len(outcome.done) - n_without - failed_targets
    verdicts = Counter(failure.reason for failure in outcome.failures if failure.target != "*")
    return Counts(n_simulations - len(failed), len(failed), n_scored, n_without + failed_targets, dict(verdicts))


def failed_simulations(outcome: Outcome) -> Counter[str]:
    """Count an outcome's failed simulations by verdict."""
    return Counter(failure.reason for failure in outcome.failures if failure.replicate is not None)


@dataclass
class Committed:
    """An event: the groups of the tasks with these keys are durable."""

    keys: list[str]
    groups: int
    counts: Counts


@dataclass
class Limits:
    """When a checkpoint closes, and how much may wait to be encoded (bytes)."""

    seconds: float
    bytes: int
    groups: int

    def due(self, checkpoint: OpenCheckpoint, age_s: float, since_last_s: float) -> bool:
        """Decide whether the open checkpoint is to be closed now."""
        if not len(checkpoint) or (since_last_s < LEAST_SECONDS and self.seconds > 0):
            return False
        return age_s >= self.seconds or checkpoint.bytes >= self.bytes or len(checkpoint) >= self.groups


@dataclass
class _Queue:
    """Outcomes on their way to the writer, bounded in bytes."""

    limit_bytes: int
    items: deque[tuple[Outcome, Counts]] = field(default_factory=deque)
    bytes: int = 0
    closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, outcome: Outcome, counts: Counts) -> None:
        with self.changed:
            # One may always enter, however large.
            self.changed.wait_for(lambda: self.closed or not self.bytes or self.bytes < self.limit_bytes)
            self.items.append((outcome, counts))
            self.bytes += outcome.nbytes
            self.changed.notify_all()

    def take(self, timeout_s: float) -> tuple[Outcome, Counts] | None:
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


class Checkpointer:
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
        backlog: Backlog,
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

    def put(self, outcome: Outcome) -> Counts:
        """Take an outcome, whose parts are the writer's from now on, and count it.

        Waits while too many bytes wait to be encoded.
        """
        counts = counted(outcome, self._groups, self._n_targets)
        if outcome.done:
            self._backlog.came(outcome.nbytes)
        self._queue.put(outcome, counts)
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
                f"parameter sets came twice: groups {', '.join(map(str, again[:_NAMED]))}",
                where=self._paths.record,
                hint="what is committed is right: mops jobs resume goes on from there; please report this",
            )

    def _add(self, outcome: Outcome, counts: Counts) -> None:
        self._check_new(outcome.done)
        if not len(self._open):
            self._opened = time.monotonic()
        nbytes = outcome.nbytes
        self._open.add(outcome, counts)
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
