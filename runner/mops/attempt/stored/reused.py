"""Reads the simulations that a job reuses of other jobs (docs/internals/storage.md, "Reuse").

They come with the tasks, and a child process takes them instead of calling the model. So the job's own parts hold their
rows, and nothing else in the runner treats them differently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.stored.reuse_plan import PlannedRows, ReusePlan
from mops.attempt.stored.rows import (
    CHUNK_BYTES,
    CHUNKS_KEPT,
    TASK_BYTES,
    GroupRows,
    SortedRows,
    StoredOutput,
    as_result,
    explained,
)
from mops.errors import JobError, StorageError
from mops.parquet.schemas import unified
from mops.storage.ancestors import ResultSource, stored_families
from mops.storage.dataset import dataset_of, read_current
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, ReuseSource, load_job
from mops.storage.joblog.parts import read_whole
from mops.study.casts import converted_table
from mops.study.column_families import Families, join_families
from mops.study.groups import IDENTITY_FIELDS, Recent
from mops.study.ranges import Ranges
from mops.task import ResultBuffer

logger = logging.getLogger(__name__)

T = TypeVar("T")
_REPLICATE_BITS = 32
_MOST_CHUNK_ROWS = 1 << 16


class ReusedSimulations:
    """The simulations of a job that are taken from other jobs.

    Parameters
    ----------
    record
        A job. It has such simulations only if its submit asked for them.
    """

    def __init__(self, files: Files, record: JobRecord):
        self._open: _Opened | None = None
        if record.reuse is not None:
            there = [source for source in record.reuse.sources if _log_of(files, source) is not None]
            for gone in (source for source in record.reuse.sources if source not in there):
                message = "%s: job %s was deleted or replaced, so its simulations are not reused: %d"
                logger.warning(message, record.job, gone.job, gone.simulations)
            if there:
                self._open = _Opened(files, record, there)

    def replicates(self, group: int) -> list[int]:
        """Return the replicates of a group that need not run, in ascending order. From any thread."""
        return self._open.plan.replicates(group) if self._open is not None else []

    def n_in(self, groups: Ranges) -> int:
        """Return how many simulations of some groups need not run."""
        return sum(self._open.plan.n_stored(*some) for some in groups.intervals) if self._open is not None else 0

    def task_share(self, group: int) -> float:
        """Return which share of the stored rows that a task may carry a group has: a child process holds them all."""
        return self._open.task_share(group) if self._open is not None else 0.0

    def results(self, wanted: Mapping[int, Sequence[int]]) -> list[ResultBuffer]:
        """Return the stored results of some replicates of some groups. From one thread at a time.

        Raises
        ------
        CorruptRecord
            A part of a source is missing or damaged.
        StorageError
            The storage is out of reach, or someone has deleted a source since the attempt began.
        """
        return self._open.results(wanted) if self._open is not None else []


class _Opened:
    """The sources of a job that are there, and the plan of what to take from which."""

    def __init__(self, files: Files, record: JobRecord, sources: Sequence[ReuseSource]):
        self._files, self._job, self._sources = files, record.job, sources
        self.plan = ReusePlan(files, record, [source.job for source in sources])
        self._families = {source.job: _families(files, source) for source in sources}
        self._logs: list[ResultSource] = []
        self._outputs: dict[str, list[StoredOutput]] = {}
        self._chunks: Recent[dict[str, SortedRows]] = Recent(CHUNKS_KEPT)
        self._simulation_bytes = max(self._read(self._bytes_of_simulation), 1.0)
        self._chunk_rows = int(min(max(CHUNK_BYTES / self._simulation_bytes, 1), _MOST_CHUNK_ROWS))

    def results(self, wanted: Mapping[int, Sequence[int]]) -> list[ResultBuffer]:
        outputs: dict[str, list[GroupRows]] = {}
        for group, replicates in wanted.items():
            for number, some in self._by_chunk(group, replicates).items():
                for output, rows in self._chunk(number).items():
                    outputs.setdefault(output, []).append(rows.of(group, some))
        return [as_result(output, found) for output, found in outputs.items()]

    def task_share(self, group: int) -> float:
        return self.plan.n_stored(group, group + 1) * self._simulation_bytes / TASK_BYTES

    def _bytes_of_simulation(self) -> float:
        """Return about how many bytes a simulation has as Arrow tables, in the source in which it has most."""
        return max(self._bytes_in(number, log) for number, log in enumerate(self._logs))

    def _bytes_in(self, number: int, log: ResultSource) -> float:
        stored = sum(outputs[number].n_bytes for outputs in self._outputs.values())
        return stored / max(log.log.view.counts.simulations_good, 1)

    def _by_chunk(self, group: int, replicates: Sequence[int]) -> dict[int, Sequence[int]]:
        """Return the replicates of a group, in ascending order, in each chunk. A long group is in several chunks."""
        chunks = self.plan.positions(group, replicates) // self._chunk_rows
        numbers, first = np.unique(chunks, return_index=True)
        stops = [*first[1:].tolist(), len(chunks)]
        return {
            number: replicates[begin:end] for number, begin, end in zip(numbers.tolist(), first, stops, strict=True)
        }

    def _chunk(self, number: int) -> dict[str, SortedRows]:
        """Return the rows of the outputs for consecutive rows of the plan: tasks take groups about in order."""
        first, stop = number * self._chunk_rows, (number + 1) * self._chunk_rows
        return self._chunks.get(number, lambda: self._load(self.plan.at(first, stop)))

    def _load(self, planned: PlannedRows) -> dict[str, SortedRows]:
        used = np.unique(planned.sources[planned.sources >= 0]).tolist()
        some = {number: planned.where(planned.sources == number) for number in used}
        return self._read(lambda: {output: self._load_output(output, some) for output in self._outputs})

    def _load_output(self, name: str, planned: Mapping[int, PlannedRows]) -> SortedRows:
        outputs = self._outputs[name]
        tables = [table for number, rows in planned.items() for table in self._rows_of(outputs[number], rows)]
        return SortedRows.of_table(pa.concat_tables([outputs[0].schema.empty_table(), *tables]))

    def _rows_of(self, output: StoredOutput, planned: PlannedRows) -> Iterator[pa.Table]:
        """Yield the planned rows of one source, with the group and the replicate that they have in this job.

        Only a few batches of the source's other rows are in memory at a time.
        """
        groups = np.unique(planned.source_groups)
        chunk = Ranges.of(groups.tolist())
        rows = [some for some in output.parts if some.groups.overlaps(chunk)]
        dataset = dataset_of(self._files, self._job, rows, output.schema, output.families)
        wanted = pc.field("group").isin(pa.array(groups, pa.int32()))
        wanted &= pc.field("replicate").isin(pa.array(np.unique(planned.source_replicates), pa.int32()))
        order = np.argsort(_keys(planned.source_groups, planned.source_replicates))
        for batch in dataset.to_batches(filter=wanted, batch_readahead=1, fragment_readahead=1):
            yield _renumbered(pa.table(batch), planned, order, output.schema)

    def _read(self, use: Callable[[], T]) -> T:
        """Call a function that reads the outputs; again if `clean` has removed some of their parts."""

        def use_logs(logs: list[ResultSource]) -> T:
            if logs is not self._logs:
                self._outputs, self._logs = self._opened(logs), logs
            return use()

        with explained(self._files, self._job):
            return read_current(self._logs or self._logs_now(), self._logs_now, use_logs)

    def _logs_now(self) -> list[ResultSource]:
        logs = [(source, _log_of(self._files, source)) for source in self._sources]
        for source in (source for source, log in logs if log is None):
            raise self._gone(source)
        return [log for _, log in logs if log is not None]

    def _opened(self, logs: Sequence[ResultSource]) -> dict[str, list[StoredOutput]]:
        """Return each output as every source has it, all with one schema."""
        families = join_families(*(self._families[log.job] for log in logs))
        found = {}
        for name, columns in families.items():
            parts = [list(log.rows("outputs", name)) for log in logs]
            empty = pa.schema([*IDENTITY_FIELDS, *(pa.field(column, pa.null()) for column in columns)])
            schemas = [dataset_of(self._files, self._job, rows, empty, columns).schema for rows in parts]
            schema = unified([empty, *schemas], f"output {name!r}", columns)
            found[name] = [StoredOutput(rows, schema, columns) for rows in parts]
        return found

    def _gone(self, source: ReuseSource) -> StorageError:
        return StorageError(
            f"job {source.job!r}, whose simulations job {self._job!r} reuses, was deleted or replaced meanwhile",
            where=self._files.url,
            hint=f"run these simulations: mops jobs resume {self._job}",
        )


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
