"""The open checkpoint: the groups that are finished but not durable, and when it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from mops.child.buffers import read_segment
from mops.parquet.encoder import TEXTS_BYTES, Encoded, PartEncoder
from mops.parquet.output_file import OutputFile, StoredTypes
from mops.parquet.schemas import with_dictionaries
from mops.storage.backends.spool import Spool
from mops.storage.joblog.records import Part
from mops.study.column_families import Families, join_families
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.task import FAILURES, LOSSES, Failure, Loss, PartFile, Segment, TaskResult
from mops.verdicts import Counts

LEAST_SECONDS = 1.0
"""The least time between two commits, unless MODELOPS_JOB_CHECKPOINT_SECONDS is 0."""

_ROWS_AT_ONCE = 5_000
"""How many losses or failures wait to be encoded together; each takes at most 3 KiB."""

NAMED_GROUPS = 5

_Row = TypeVar("_Row", Loss, Failure)
StoredFile: TypeAlias = "tuple[str, str | None, Encoded[Any]]"
"""Kind of the table, output, and file."""


class OpenCheckpoint:
    """The groups that are finished but not durable. Their results are encoded as they come.

    Parameters
    ----------
    groups
        The job's groups, which identify rows.
    outputs
        The outputs that the study keeps; None: all.
    spool
        Returns an empty file, so that encoded results take no memory.
    types
        The types of stored columns in this attempt.
    """

    def __init__(
        self, groups: GroupTable, outputs: tuple[str, ...] | None, spool: Callable[[], Spool], types: StoredTypes
    ):
        self._groups, self._outputs, self._spool, self._types = groups, outputs, spool, types
        self._open: dict[str, OutputFile[Spool]] = {}
        self._encoded: list[PartFile] = []
        self.families: Families = {}
        self._losses: _Rows[Loss] = _Rows("losses", LOSSES, groups, spool)
        self._failures: _Rows[Failure] = _Rows("failures", FAILURES, groups, spool)
        self._done: list[int] = []
        self._settled: set[int] = set()
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
        return sorted(self._settled.intersection(groups))

    def add(self, result: TaskResult, counts: Counts) -> None:
        """Add the finished groups of a result. Its buffers are removed from it, and freed one by one."""
        self.bytes += result.row_bytes
        while result.files:
            self._take_file(result.files.pop(0))
        self.bytes_held += result.row_bytes
        while result.parts:
            part = result.parts.pop(0)
            for segment in part.segments:
                self._write(part.buffer, segment, result.done)
        self._done += sorted(result.done)
        self._settled |= result.done
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

    def _take_file(self, file: PartFile) -> None:
        self.families = join_families(self.families, {file.output: file.families})
        if file.content is None:
            self.parts.append(Part(file.path, file.rows, file.bytes, file.digest))
        else:
            self._encoded.append(file)

    def take_encoded(self) -> Iterator[StoredFile]:
        """Yield the files that child processes have encoded, and forget them."""
        while self._encoded:
            file = self._encoded.pop()
            yield "outputs", file.output, Encoded(file.content, file.rows, file.bytes, file.digest)

    def take_outputs(self) -> Iterator[StoredFile]:
        """Yield the files of the outputs as (kind, output, file), and forget them."""
        while self._open:
            output, file = self._open.popitem()
            yield "outputs", output, file.finish()
        self.bytes_held = 0

    def take_files(self) -> Iterator[StoredFile]:
        """Yield all files as (kind, output, file), and forget them. A kind is outputs, losses or failures."""
        yield from self.take_outputs()
        for rows in (self._losses, self._failures):
            if file := rows.take():
                yield rows.kind, None, file


class _Rows(Generic[_Row]):
    """Losses or failures on their way into a file. They are encoded a few thousand at a time, to save memory.

    Parameters
    ----------
    kind
        ``losses`` or ``failures``.
    schema
        The columns: param_id, and the fields of a row.
    """

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
    """Remove the rows of groups that are not finished."""
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
        if not len(checkpoint) or (since_last_s < LEAST_SECONDS and self.seconds > 0):
            return False
        return age_s >= self.seconds or checkpoint.bytes >= self.bytes or len(checkpoint) >= self.groups
