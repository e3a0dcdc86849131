"""The simulations that a job need not run, because other jobs have their rows (internals/storage.md)."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.reuse_plan import PlannedRows, ReusePlan
from mops.errors import CorruptRecord, StorageError
from mops.parquet.schemas import unified
from mops.storage.dataset import dataset_of, read_current, verify_hint
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, ReuseSource, Source
from mops.storage.joblog.log import read_whole
from mops.storage.sources import FirstReplicates, PartRows, SourceLog, families_of, part_rows, source_logs
from mops.study.casts import converted_table
from mops.study.column_families import Columns, join_families
from mops.study.groups import IDENTITY_FIELDS, Recent
from mops.study.ranges import Ranges
from mops.task import ResultBuffer, Segment, Task

logger = logging.getLogger(__name__)

CHUNK_BYTES = 32 << 20  # about how many bytes of rows are read at once, as Arrow tables
TASK_BYTES = 16 << 20  # about how many bytes of rows go with a task: a child process holds them all
_CHUNKS_KEPT = 2
_VALUE_BYTES = 8
_REPLICATE_BITS = 32
_MOST_CHUNK_ROWS = 1 << 16


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
class _Output:
    """One output: its parts in each place, the types of all their rows, and the families of the model's columns."""

    parts: list[list[PartRows]]
    schema: pa.Schema
    families: Columns


class StoredSimulations:
    """The simulations that a job need not run. Their rows go with tasks, and a child process uses them.

    In place are the first replicates of a group of a derived job: their rows stay in the parts of its sources, and
    only targets need them. Copied are the simulations of a reuse: their rows become rows of the job's own parts. The
    plan of both says where each simulation is; for those in place, it has the same numbers there.
    """

    def __init__(self, files: Files, record: JobRecord, sources: list[SourceLog], *, has_targets: bool):
        self._files, self._record = files, record
        self._first = FirstReplicates(files, record)
        self._read_in_place = record.simulated if has_targets else Ranges()
        self._chunks: Recent[dict[str, SortedRows]] = Recent(_CHUNKS_KEPT)
        self._plan: ReusePlan | None = None
        self._outputs: dict[str, _Output] = {}
        self._simulation_bytes = 0.0  # about how many an average simulation has as Arrow tables
        found = [(source, _log_of(files, source)) for source in record.reuse]
        for gone in (source for source, log in found if log is None):
            message = "%s: job %s was deleted or replaced, so its simulations are not reused: %d"
            logger.warning(message, record.job, gone.job, gone.simulations)
        self._copied_from = [source for source, log in found if log is not None]
        self._in_place = len(self._copied_from)  # the number of this place, the last one
        if self._copied_from:
            self._plan = ReusePlan(files, record.paths.reused, [source.job for source in self._copied_from])
        if self._copied_from or self._read_in_place:
            logs = [log for _, log in found if log is not None], sources
            with _explained(files, record.job):
                self._outputs = read_current(logs, self._logs_now, self._opened)
        self._chunk_rows = int(min(max(CHUNK_BYTES / max(self._simulation_bytes, 1.0), 1), _MOST_CHUNK_ROWS))
        self._chunk_groups = max(self._chunk_rows * record.n_groups // record.n_simulations, 1)

    def n_in_place(self, group: int) -> int:
        """Return how many of a group's first replicates are stored in place. From any thread."""
        return self._first.n(group)

    def copied_by(self, task: Task) -> dict[int, tuple[int, ...]]:
        """Return the replicates of each group that a task takes from other jobs. From any thread."""
        if self._plan is None or task.replicates == ():
            return {}
        copied = {group: self._plan.replicates(group) for group in task.groups}
        if task.replicates is not None:
            asked = frozenset(task.replicates)
            copied = {group: [i for i in some if i in asked] for group, some in copied.items()}
        return {group: tuple(some) for group, some in copied.items() if some}

    def n_copied(self, groups: Ranges) -> int:
        """Return how many simulations of some groups are copied."""
        return sum(self._plan.n_stored(*some) for some in groups.intervals) if self._plan is not None else 0

    def task_share(self, group: int) -> float:
        """Return which share of the stored rows that a task may carry a group has: a child process holds them all."""
        if not self._simulation_bytes:
            return 0.0
        n = self._first.n(group) if group in self._read_in_place else 0
        if self._plan is not None:
            n += self._plan.n_stored(group, group + 1)
        return n * self._simulation_bytes / TASK_BYTES

    def results(self, wanted: Mapping[int, Sequence[int]]) -> list[ResultBuffer]:
        """Return the stored results of some groups: of replicates in ascending order. From one thread at a time."""
        outputs: dict[str, list[GroupRows]] = {}
        for group, replicates in wanted.items():
            for chunk, some in self._chunks_with(group, replicates):
                load = functools.partial(self._load, *chunk)
                for output, sorted_rows in self._chunks.get(chunk, load).items():
                    outputs.setdefault(output, []).append(sorted_rows.of(group, some))
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

    def _chunks_with(self, group: int, replicates: Sequence[int]) -> Iterator[tuple[tuple[bool, int], Sequence[int]]]:
        """Yield the chunks that have some replicates of a group, as for :meth:`_planned`, and which ones each has."""
        n_in_place = bisect_left(replicates, self._first.n(group))
        if n_in_place:
            yield (True, group - group % self._chunk_groups), replicates[:n_in_place]
        if self._plan is not None and (copied := replicates[n_in_place:]):
            numbers, starts = np.unique(self._plan.positions(group, copied) // self._chunk_rows, return_index=True)
            stops = [*starts[1:].tolist(), len(copied)]
            for number, begin, end in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
                yield (False, number * self._chunk_rows), copied[begin:end]

    def _planned(self, is_in_place: bool, first: int) -> PlannedRows:
        """Return the plan of a chunk: of consecutive groups in place, or of consecutive rows of the table."""
        # Tasks take groups about in order. A long group is in several chunks of the table.
        if not is_in_place:
            assert self._plan is not None
            return self._plan.at(first, first + self._chunk_rows)
        groups = list(self._read_in_place & Ranges(((first, first + self._chunk_groups),)))
        counts = [self._first.n(group) for group in groups]
        numbers = np.repeat(np.array(groups, np.int32), counts)
        replicates = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
        return PlannedRows(numbers, replicates, np.full_like(numbers, self._in_place), numbers, replicates)

    def _load(self, is_in_place: bool, first: int) -> dict[str, SortedRows]:
        """Read a chunk; if `clean` has removed some of the parts, from those that replace them."""
        planned = self._planned(is_in_place, first)

        def load(outputs: dict[str, _Output]) -> dict[str, SortedRows]:
            self._outputs = outputs
            used = np.unique(planned.sources[planned.sources >= 0]).tolist()
            some = {place: planned.where(planned.sources == place) for place in used}
            found = {}
            for name, output in outputs.items():
                tables = [table for place, rows in some.items() for table in self._rows_of(output, place, rows)]
                found[name] = SortedRows.of_table(pa.concat_tables([output.schema.empty_table(), *tables]))
            return found

        with _explained(self._files, self._record.job):
            return read_current(self._outputs, lambda: self._opened(self._logs_now()), load)

    def _rows_of(self, output: _Output, place: int, planned: PlannedRows) -> Iterator[pa.Table]:
        """Yield the planned rows of one place, with the group and the replicate that they have in this job."""
        groups = np.unique(planned.source_groups)
        chunk = Ranges.of(groups.tolist())
        rows = [some for some in output.parts[place] if some.groups.overlaps(chunk)]
        dataset = dataset_of(self._files, self._record.job, rows, output.schema, output.families)
        in_range = (pc.field("group") >= int(groups[0])) & (pc.field("group") <= int(groups[-1]))
        wanted = in_range & pc.field("group").isin(pa.array(groups, pa.int32()))
        wanted &= pc.field("replicate").isin(pa.array(np.unique(planned.source_replicates), pa.int32()))
        order = np.argsort(_keys(planned.source_groups, planned.source_replicates))
        # In another job, groups may have another order, so that a chunk touches many parts, whose other rows must not
        # all be in memory. In place, nearly every row of the few parts is wanted, and reading side by side is faster.
        readahead = {} if place == self._in_place else {"batch_readahead": 1, "fragment_readahead": 1}
        for batch in dataset.to_batches(filter=wanted, **readahead):
            yield _renumbered(pa.table(batch), planned, order, output.schema)

    def _logs_now(self) -> tuple[list[SourceLog], list[SourceLog]]:
        """Read the logs again: of the sources of a reuse, and of those in place."""
        logs = []
        for source in self._copied_from:
            if (log := _log_of(self._files, source)) is None:
                raise StorageError(
                    f"job {source.job!r}, whose simulations job {self._record.job!r} reuses, was deleted or replaced "
                    "meanwhile",
                    where=self._files.url,
                    hint=f"run these simulations: mops jobs resume {self._record.job}",
                )
            logs.append(log)
        return logs, source_logs(self._files, self._record)

    def _opened(self, logs: tuple[list[SourceLog], list[SourceLog]]) -> dict[str, _Output]:
        """Return where the outputs are, and measure the bytes of a simulation: of the place in which it has most."""
        files, record, (copied_from, sources) = self._files, self._record, logs
        places = [[log] for log in copied_from]
        of_logs = [families_of(files, log.source.paths, [log.log.view]) for log in copied_from]
        simulations = [log.log.view.counts.simulations_good for log in copied_from]
        if self._read_in_place:
            places.append(sources)
            of_logs.append(families_of(files, record.paths, [source.log.view for source in sources]))
            simulations.append(record.taken_over_counts.simulations_good)
        n_bytes, found = [0] * len(places), {}
        for name, columns in join_families(*(one or {} for one in of_logs)).items():
            rows = [part_rows(logs, "outputs", name) for logs in places]
            empty = pa.schema([*IDENTITY_FIELDS, *(pa.field(column, pa.null()) for column in columns)])
            schemas = [dataset_of(files, record.job, some, empty, columns).schema for some in rows]
            schema = unified([empty, *schemas], f"output {name!r}", columns)  # one for all places
            found[name] = _Output(rows, schema, columns)
            for place, some in enumerate(rows):
                by_rows = sum(one.part.rows for one in some) * len(schema) * _VALUE_BYTES
                n_bytes[place] += max(by_rows, sum(one.part.bytes for one in some))
        of_simulation = [size / max(n, 1) for size, n in zip(n_bytes, simulations, strict=True)]
        self._simulation_bytes = max([*of_simulation, 1.0])
        return found


def _log_of(files: Files, source: ReuseSource) -> SourceLog | None:
    """Return a source of a reuse with its log; None: it was deleted."""
    log = read_whole(files, source.paths)
    return SourceLog(Source(source.job, source.id, Ranges(), log.view.committed), log) if log.view.complete else None


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
