"""Rows of stored simulations that a job takes over from its parent, or reuses of other jobs (internals/storage.md)."""

from __future__ import annotations

import functools
import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mops.errors import CorruptRecord, JobError, StorageError
from mops.parquet.encoder import Encoded, Sink
from mops.parquet.schemas import unified
from mops.storage.ancestors import PartRows, ResultSource, ancestors, families_of, parts, stored_families
from mops.storage.backends.base import Spool
from mops.storage.dataset import dataset_of, read_current, verify_hint
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, ReuseSource, load_job
from mops.storage.joblog.parts import read_whole
from mops.storage.params_file import load_groups
from mops.study.casts import converted_table
from mops.study.column_families import Columns, Families, join_families
from mops.study.groups import IDENTITY_FIELDS, Recent
from mops.study.ranges import Ranges
from mops.task import ResultBuffer, Segment

logger = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20  # about how many bytes of rows are read at once, as Arrow tables
TASK_BYTES = 16 << 20  # about how many bytes of rows go with a task: a child process holds them all
MOST_GROUPS = 1024
_CHUNKS_KEPT = 2
_VALUE_BYTES = 8
_REPLICATE_BITS = 32
_MOST_CHUNK_ROWS = 1 << 16

_T = TypeVar("_T")


class GroupRows(NamedTuple):
    """A group's rows of one output: the model's columns, and the number of rows of each of some replicates."""

    group: int
    replicates: Sequence[int]
    values: pa.Table
    rows: list[int]


@dataclass(frozen=True)
class SortedRows:
    """Rows of one output: the model's columns, sorted by group and replicate."""

    groups: npt.NDArray[np.int32]
    replicates: npt.NDArray[np.int32]
    values: pa.Table

    @classmethod
    def of_table(cls, table: pa.Table) -> SortedRows:
        """Sort a table with identity columns. Rows of a simulation keep their order."""
        order = [("group", "ascending"), ("replicate", "ascending")]
        table = table.take(pc.sort_indices(table, order))  # Arrow's sort is stable
        identity = [field.name for field in IDENTITY_FIELDS]
        return cls(table["group"].to_numpy(), table["replicate"].to_numpy(), table.drop_columns(identity))

    def of(self, group: int, replicates: Sequence[int]) -> GroupRows:
        """Return the rows of some replicates of a group, given in ascending order."""
        first, last = np.searchsorted(self.groups, (group, group + 1)).tolist()
        there, values = self.replicates[first:last], self.values.slice(first, last - first)
        counts = np.bincount(there, minlength=max(replicates, default=0) + 1)
        rows = counts[list(replicates)].tolist()
        if sum(rows) < len(there):
            values = values.filter(pa.array(np.isin(there, list(replicates))))
        return GroupRows(group, replicates, values, rows)


@dataclass(frozen=True)
class StoredOutput:
    """One output: the parts with its rows, the types of all of them, and the families of the model's columns."""

    parts: list[PartRows]
    schema: pa.Schema
    families: Columns

    @property
    def n_bytes(self) -> int:
        """About how many bytes its rows are as Arrow tables."""
        by_rows = sum(rows.part.rows for rows in self.parts) * len(self.schema) * _VALUE_BYTES
        return int(max(by_rows, sum(rows.part.bytes for rows in self.parts)))


PLAN = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("replicate", pa.int32(), nullable=False),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("source_group", pa.int32(), nullable=False),
        pa.field("source_replicate", pa.int32(), nullable=False),
    ]
)

_ROWS_AT_ONCE = 1 << 16
_KEPT = 4
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PlannedRows:
    """Some simulations of a job, and where they are stored; ``sources`` are positions in a list of jobs, or -1."""

    groups: Numbers
    replicates: Numbers
    sources: Numbers
    source_groups: Numbers
    source_replicates: Numbers

    def where(self, mask: npt.NDArray[np.bool_]) -> PlannedRows:
        """Return some of the rows."""
        return PlannedRows(*(column[mask] for column in vars(self).values()))

    def of(self, first: int, stop: int) -> PlannedRows:
        """Return the rows of the groups from ``first`` up to ``stop``, without the latter."""
        return self.slice(*np.searchsorted(self.groups, (first, stop)).tolist())

    def slice(self, first: int, stop: int) -> PlannedRows:
        """Return the rows with these numbers; numbers below 0 have no row."""
        return PlannedRows(*(column[max(first, 0) : max(stop, 0)] for column in vars(self).values()))

    @classmethod
    def joined(cls, some: Sequence[PlannedRows]) -> PlannedRows:
        """Return the rows of all of these."""
        columns = zip(*(vars(one).values() for one in some), strict=True)
        return cls(*map(np.concatenate, columns)) if some else cls(*(np.zeros(0, np.int32) for _ in range(5)))


def encode_plan(tables: Iterable[pa.Table], spool: Spool) -> Encoded[Spool]:
    """Write the plan, from tables of :data:`PLAN` in order."""
    sink = Sink(spool)
    rows = 0
    with pq.ParquetWriter(pa.PythonFile(sink, "w"), PLAN, compression="zstd", write_statistics=["group"]) as writer:
        for table in (one for one in tables if one.num_rows):  # an empty row group has no statistics
            writer.write_table(table.unify_dictionaries(), row_group_size=_ROWS_AT_ONCE)
            rows += table.num_rows
    return sink.encoded(rows)


class ReusePlan:
    """The plan of a job: which simulations are stored where. Thread-safe."""

    # ``jobs`` are the sources that are still there. Rows of other sources have the source -1.
    def __init__(self, files: Files, record: JobRecord, jobs: Sequence[str]):
        assert record.reuse is not None
        path = record.paths.reused
        self._where, self._jobs = f"{files.url}/{path}", pa.array(jobs, pa.string())
        self._kept: Recent[PlannedRows] = Recent(_KEPT)
        self._lock = threading.Lock()
        try:
            self._file = pq.ParquetFile(files.reader(path))
            metadata = self._file.metadata
            some = {i: metadata.row_group(i) for i in range(metadata.num_row_groups)}
            some = {i: one for i, one in some.items() if one.num_rows}
            self._numbers, self._starts = list(some), [0, *accumulate(one.num_rows for one in some.values())]
            groups = [one.column(0).statistics for one in some.values()]
            self._first, self._last = [one.min for one in groups], [one.max for one in groups]
        except (pa.ArrowException, OSError, AttributeError) as bad:
            raise self._corrupt(bad) from bad

    def replicates(self, group: int) -> list[int]:
        """Return the replicates of a group that are stored."""
        rows = PlannedRows.joined(list(self._of(group, group + 1)))
        return [int(replicate) for replicate in rows.replicates[rows.sources >= 0]]

    def n_stored(self, first: int, stop: int) -> int:
        """Return how many simulations are stored of the groups from ``first`` up to ``stop``, without the latter."""
        return sum(int((rows.sources >= 0).sum()) for rows in self._of(first, stop))

    def positions(self, group: int, replicates: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of some replicates of a group, which are stored, in ascending order."""
        found = []
        for number in self._with(group, group + 1):
            rows = self._load(number)
            begin, end = np.searchsorted(rows.groups, (group, group + 1)).tolist()
            here = np.flatnonzero(np.isin(rows.replicates[begin:end], replicates))
            found.append(self._starts[number] + begin + here)
        return np.concatenate(found)

    def at(self, first: int, stop: int) -> PlannedRows:
        """Return the rows with the numbers from ``first`` up to ``stop``, without the latter."""
        begin, end = bisect_right(self._starts, first) - 1, bisect_left(self._starts, stop)
        some = range(begin, min(end, len(self._numbers)))
        parts = [self._load(n).slice(first - self._starts[n], stop - self._starts[n]) for n in some]
        return PlannedRows.joined(parts)

    def _of(self, first: int, stop: int) -> Iterator[PlannedRows]:
        return (self._load(number).of(first, stop) for number in self._with(first, stop))

    def _with(self, first: int, stop: int) -> range:
        """Return the row groups that may have rows of these groups."""
        return range(int(np.searchsorted(self._last, first)), int(np.searchsorted(self._first, stop)))

    def _load(self, number: int) -> PlannedRows:
        with self._lock:
            return self._kept.get(number, lambda: self._read(number))

    def _read(self, number: int) -> PlannedRows:
        try:
            table = self._file.read_row_group(self._numbers[number], use_threads=False)
            names = table["source"].combine_chunks().dictionary_decode()
            sources = pc.fill_null(pc.index_in(names, self._jobs), -1)
            columns = [sources if name == "source" else table[name] for name in PLAN.names]
            return PlannedRows(*(column.to_numpy() for column in columns))
        except (pa.ArrowException, OSError, KeyError) as bad:
            raise self._corrupt(bad) from bad

    def _corrupt(self, bad: Exception) -> CorruptRecord:
        return CorruptRecord(f"the table of reused simulations cannot be read: {bad}", where=self._where)


class _StoredRows(ABC):
    """The outputs of some jobs, read again if `clean` has removed some of their parts. From one thread at a time."""

    def __init__(self, files: Files, job: str):
        self._files, self._job = files, job
        self._sources: list[ResultSource] = []
        self._outputs: dict[str, list[StoredOutput]] = {}  # each as every source has it
        self._chunks: Recent[dict[str, SortedRows]] = Recent(_CHUNKS_KEPT)

    @abstractmethod
    def _sources_now(self) -> list[ResultSource]: ...

    @abstractmethod
    def _opened(self, sources: list[ResultSource]) -> dict[str, list[StoredOutput]]: ...

    def _read(self, use: Callable[[], _T]) -> _T:
        """Call a function that reads the outputs."""

        def use_sources(sources: list[ResultSource]) -> _T:
            if sources is not self._sources:
                self._outputs, self._sources = self._opened(sources), sources
            return use()

        with _explained(self._files, self._job):
            return read_current(self._sources or self._sources_now(), self._sources_now, use_sources)


def _as_results(found: Iterable[tuple[dict[str, SortedRows], int, Sequence[int]]]) -> list[ResultBuffer]:
    """Return the rows of some replicates of some groups, each with the chunk that has them, as a task's results."""
    outputs: dict[str, list[GroupRows]] = {}
    for chunk, group, replicates in found:
        for output, sorted_rows in chunk.items():
            outputs.setdefault(output, []).append(sorted_rows.of(group, replicates))
    results = []
    for output, groups in outputs.items():
        table = pa.concat_tables([of_group.values for of_group in groups])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        buffer = sink.getvalue()
        simulations = [(of_group.group, replicate) for of_group in groups for replicate in of_group.replicates]
        rows = [n for of_group in groups for n in of_group.rows]
        results.append(ResultBuffer(buffer, [Segment(output, 0, buffer.size, simulations, rows)]))
    return results


@contextmanager
def _explained(files: Files, job: str) -> Iterator[None]:
    """Turn the errors of reading parts that a job takes over into errors of mops."""
    try:
        yield
    except pa.ArrowInvalid as bad:
        what = f"a stored part that job {job!r} takes over is damaged: {bad}"
        raise CorruptRecord(what, where=files.url, hint=verify_hint(job)) from bad
    except OSError as fault:
        what = f"the storage does not give the rows that job {job!r} takes over: {fault}"
        hint = f"continue the job when the storage is back: mops jobs resume {job}"
        raise StorageError(what, where=files.url, hint=hint) from fault


class TakenOver(_StoredRows):
    """The stored simulations of groups that run again: the first replicates of each, all of them good."""

    # A job has such groups only if it is derived from another. ``has_targets``: targets need the rows.
    def __init__(self, files: Files, record: JobRecord, *, has_targets: bool):
        super().__init__(files, record.job)
        self._record, self._has_targets = record, has_targets
        self._groups, self._table = Ranges(), None
        if record.parent is not None and record.parent.simulated:
            self._groups, self._table = record.parent.simulated, load_groups(files, record.parent.paths)

    def n(self, group: int) -> int:
        """Return how many of a group's replicates are stored."""
        return self._table.n_replicates(group) if self._table is not None and group in self._groups else 0

    @property
    def most_groups(self) -> int:
        """The most groups of a task, because a child process holds all their stored rows."""
        return self._groups_in(TASK_BYTES) if self._has_targets else MOST_GROUPS

    def results(self, groups: Sequence[int]) -> list[ResultBuffer]:
        """Return the stored results of some groups. From one thread at a time."""
        return _as_results((self._chunk_of(group), group, range(n)) for group in groups if (n := self.n(group)))

    def _groups_in(self, n_bytes: int) -> int:
        """Return about how many groups have so many bytes of stored rows."""
        if self._table is None:
            return MOST_GROUPS
        stored = self._read(lambda: sum(output.n_bytes for (output,) in self._outputs.values()))
        return int(max(min(n_bytes / max(stored / len(self._table), 1.0), MOST_GROUPS), 1))

    @functools.cached_property
    def _chunk_groups(self) -> int:
        return self._groups_in(CHUNK_BYTES)

    def _chunk_of(self, group: int) -> dict[str, SortedRows]:
        """Return the rows of the outputs for some consecutive groups: tasks take groups about in order."""
        first = group - group % self._chunk_groups
        return self._chunks.get(first, lambda: self._read(lambda: self._load(first, first + self._chunk_groups)))

    def _load(self, first: int, stop: int) -> dict[str, SortedRows]:
        chunk, found = Ranges(((first, stop),)), {}
        in_chunk = (pc.field("group") >= first) & (pc.field("group") < stop)
        for name, (output,) in self._outputs.items():
            rows = [some for some in output.parts if some.groups.overlaps(chunk)]
            dataset = dataset_of(self._files, self._job, rows, output.schema, output.families)
            table = dataset.to_table(filter=in_chunk)
            found[name] = SortedRows.of_table(converted_table(table, output.schema))
        return found

    def _sources_now(self) -> list[ResultSource]:
        return ancestors(self._files, self._record)

    def _opened(self, sources: list[ResultSource]) -> dict[str, list[StoredOutput]]:
        families = families_of(self._files, self._record.paths, (source.log.view for source in sources)) or {}
        found = {}
        for name, columns in families.items():
            rows = parts(sources, "outputs", name)
            schema = dataset_of(self._files, self._job, rows, pa.schema(IDENTITY_FIELDS), columns).schema
            found[name] = [StoredOutput(rows, schema, columns)]
        return found


class ReusedSimulations(_StoredRows):
    """The simulations of a job that are taken from other jobs, if its submit asked for that."""

    def __init__(self, files: Files, record: JobRecord):
        super().__init__(files, record.job)
        self._plan: ReusePlan | None = None
        asked = record.reuse.sources if record.reuse is not None else ()
        self._jobs = [source for source in asked if _log_of(files, source) is not None]
        for gone in (source for source in asked if source not in self._jobs):
            message = "%s: job %s was deleted or replaced, so its simulations are not reused: %d"
            logger.warning(message, record.job, gone.job, gone.simulations)
        if self._jobs:
            self._plan = ReusePlan(files, record, [source.job for source in self._jobs])
            self._families = {source.job: _families(files, source) for source in self._jobs}
            self._simulation_bytes = max(self._read(self._bytes_of_simulation), 1.0)
            self._chunk_rows = int(min(max(CHUNK_BYTES / self._simulation_bytes, 1), _MOST_CHUNK_ROWS))

    def replicates(self, group: int) -> list[int]:
        """Return the replicates of a group that need not run, in ascending order. From any thread."""
        return self._plan.replicates(group) if self._plan is not None else []

    def n_in(self, groups: Ranges) -> int:
        """Return how many simulations of some groups need not run."""
        return sum(self._plan.n_stored(*some) for some in groups.intervals) if self._plan is not None else 0

    def task_share(self, group: int) -> float:
        """Return which share of the stored rows that a task may carry a group has: a child process holds them all."""
        if self._plan is None:
            return 0.0
        return self._plan.n_stored(group, group + 1) * self._simulation_bytes / TASK_BYTES

    def results(self, wanted: Mapping[int, Sequence[int]]) -> list[ResultBuffer]:
        """Return the stored results of some replicates of some groups. From one thread at a time."""
        if (plan := self._plan) is None:
            return []
        found = []
        for group, replicates in wanted.items():
            # The replicates are in ascending order. A long group is in several chunks.
            numbers, first = np.unique(plan.positions(group, replicates) // self._chunk_rows, return_index=True)
            stops = [*first[1:].tolist(), len(replicates)]
            for number, begin, end in zip(numbers.tolist(), first.tolist(), stops, strict=True):
                found.append((number, group, replicates[begin:end]))
        return _as_results((self._chunk(plan, number), group, some) for number, group, some in found)

    def _bytes_of_simulation(self) -> float:
        """Return about how many bytes a simulation has as Arrow tables, in the source in which it has most."""
        goods = [max(source.log.view.counts.simulations_good, 1) for source in self._sources]
        return max(sum(of[n].n_bytes for of in self._outputs.values()) / good for n, good in enumerate(goods))

    def _chunk(self, plan: ReusePlan, number: int) -> dict[str, SortedRows]:
        """Return the rows of the outputs for consecutive rows of the plan: tasks take groups about in order."""
        first, stop = number * self._chunk_rows, (number + 1) * self._chunk_rows
        return self._chunks.get(number, lambda: self._load(plan.at(first, stop)))

    def _load(self, planned: PlannedRows) -> dict[str, SortedRows]:
        used = np.unique(planned.sources[planned.sources >= 0]).tolist()
        some = {number: planned.where(planned.sources == number) for number in used}

        def load_output(outputs: list[StoredOutput]) -> SortedRows:
            tables = [table for number, rows in some.items() for table in self._rows_of(outputs[number], rows)]
            return SortedRows.of_table(pa.concat_tables([outputs[0].schema.empty_table(), *tables]))

        return self._read(lambda: {name: load_output(outputs) for name, outputs in self._outputs.items()})

    def _rows_of(self, output: StoredOutput, planned: PlannedRows) -> Iterator[pa.Table]:
        """Yield the planned rows of one source, with the group and the replicate that they have in this job."""
        groups = np.unique(planned.source_groups)
        chunk = Ranges.of(groups.tolist())
        rows = [some for some in output.parts if some.groups.overlaps(chunk)]
        dataset = dataset_of(self._files, self._job, rows, output.schema, output.families)
        wanted = pc.field("group").isin(pa.array(groups, pa.int32()))
        wanted &= pc.field("replicate").isin(pa.array(np.unique(planned.source_replicates), pa.int32()))
        order = np.argsort(_keys(planned.source_groups, planned.source_replicates))
        # Only a few batches of the source's other rows are in memory at a time.
        for batch in dataset.to_batches(filter=wanted, batch_readahead=1, fragment_readahead=1):
            yield _renumbered(pa.table(batch), planned, order, output.schema)

    def _sources_now(self) -> list[ResultSource]:
        found = []
        for source in self._jobs:
            if (log := _log_of(self._files, source)) is None:
                raise StorageError(
                    f"job {source.job!r}, whose simulations job {self._job!r} reuses, was deleted or replaced "
                    "meanwhile",
                    where=self._files.url,
                    hint=f"run these simulations: mops jobs resume {self._job}",
                )
            found.append(log)
        return found

    def _opened(self, sources: list[ResultSource]) -> dict[str, list[StoredOutput]]:
        families = join_families(*(self._families[source.job] for source in sources))
        found = {}
        for name, columns in families.items():
            parts = [list(source.rows("outputs", name)) for source in sources]
            empty = pa.schema([*IDENTITY_FIELDS, *(pa.field(column, pa.null()) for column in columns)])
            schemas = [dataset_of(self._files, self._job, rows, empty, columns).schema for rows in parts]
            schema = unified([empty, *schemas], f"output {name!r}", columns)  # one for all sources
            found[name] = [StoredOutput(rows, schema, columns) for rows in parts]
        return found


def _renumbered(table: pa.Table, planned: PlannedRows, order: np.ndarray, schema: pa.Schema) -> pa.Table:
    """Return the planned rows of some rows of a source; ``order`` sorts the plan by the source's simulations."""
    keys = _keys(planned.source_groups, planned.source_replicates)
    found = _keys(table["group"].to_numpy(), table["replicate"].to_numpy())
    at = order[np.minimum(np.searchsorted(keys, found, sorter=order), len(keys) - 1)]
    is_wanted = keys[at] == found
    table, at = table.filter(pa.array(is_wanted)), at[is_wanted]
    own = {"group": pa.array(planned.groups[at]), "replicate": pa.array(planned.replicates[at])}
    columns = [own.get(name, table[name] if name in table.schema.names else None) for name in schema.names]
    nulls = pa.nulls(len(at))
    table = pa.table([nulls if column is None else column for column in columns], names=schema.names)
    return converted_table(table, schema)


def _keys(groups: np.ndarray, replicates: np.ndarray) -> np.ndarray:
    """Return one number for each simulation."""
    return (groups.astype(np.int64) << _REPLICATE_BITS) | replicates.astype(np.int64)


def _log_of(files: Files, source: ReuseSource) -> ResultSource | None:
    """Return the source with its log; None: it was deleted."""
    log = read_whole(files, source.paths)
    return ResultSource(source.job, log) if log.view.complete else None


def _families(files: Files, source: ReuseSource) -> Families:
    try:
        record = load_job(files, source.job)
    except JobError:  # deleted since: the next read of its log says so
        return {}
    if record.id != source.id:
        return {}
    return stored_families(files, record, read_whole(files, source.paths).view) or {}
