"""Rows of stored simulations, sorted by group and replicate, and as the results of a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import CorruptRecord, StorageError
from mops.storage.ancestors import PartRows
from mops.storage.dataset import verify_hint
from mops.storage.files import Files
from mops.study.column_families import Columns
from mops.study.groups import IDENTITY_FIELDS
from mops.task import ResultBuffer, Segment

CHUNK_BYTES = 32 << 20
"""About how many bytes of rows are read at once, as Arrow tables."""

TASK_BYTES = 16 << 20
"""About how many bytes of rows go with a task: a child process holds them all."""

MOST_GROUPS = 1024
CHUNKS_KEPT = 2
_VALUE_BYTES = 8


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


def groups_in(n_bytes: int, of_group: float) -> int:
    """Return how many groups of this size take so many bytes: at least one, at most :data:`MOST_GROUPS`."""
    return int(max(min(n_bytes / max(of_group, 1.0), MOST_GROUPS), 1))


def as_result(output: str, groups: Sequence[GroupRows]) -> ResultBuffer:
    """Return rows of some groups as a task's result has them."""
    table = pa.concat_tables([group.values for group in groups])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    buffer = sink.getvalue()
    simulations = [(group.group, replicate) for group in groups for replicate in group.replicates]
    rows = [n for group in groups for n in group.rows]
    return ResultBuffer(buffer, [Segment(output, 0, buffer.size, simulations, rows)])


@contextmanager
def explained(files: Files, job: str) -> Iterator[None]:
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
