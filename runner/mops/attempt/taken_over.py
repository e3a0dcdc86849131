"""Reads the simulations that a derived job takes over of the groups that it runs again (docs/internals/storage.md).

Their rows stay where they are: in the parts of the parent and its ancestors. Targets need them as well as the rows of
the replicates that the job runs itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.storage.ancestors import ResultSource, ancestors, families_of, parts
from mops.storage.compaction.reading import part_missing, read_current
from mops.storage.dataset import dataset_of
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.params_file import load_groups
from mops.storage.paths import JobPaths
from mops.study.column_families import Columns, Families
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ranges import Ranges
from mops.task import ResultBuffer, Segment

_CHUNK_BYTES = 8 << 20
"""About how much of the parts is read at once. As Arrow tables, rows take a few times more."""

_MOST_GROUPS = 1024
_CHUNKS_KEPT = 3

T = TypeVar("T")


class _GroupRows(NamedTuple):
    """A group's rows of one output: the model's columns, and the number of rows of each replicate."""

    group: int
    values: pa.Table
    rows: list[int]


@dataclass(frozen=True)
class _Rows:
    """Rows of one output: the model's columns, sorted by group and replicate."""

    groups: npt.NDArray[np.int32]
    replicates: npt.NDArray[np.int32]
    values: pa.Table

    def of(self, group: int, n_replicates: int) -> _GroupRows:
        first, last = np.searchsorted(self.groups, (group, group + 1)).tolist()
        rows = np.bincount(self.replicates[first:last], minlength=n_replicates).tolist()
        return _GroupRows(group, self.values.slice(first, last - first), rows)


class TakenOver:
    """The stored simulations of groups that run again: the first replicates of each, all of them good.

    Parameters
    ----------
    record
        A job. It has such groups only if it is derived from another.
    """

    def __init__(self, files: Files, record: JobRecord):
        self._files, self._record = files, record
        self._groups, self._table = Ranges(), None
        if record.parent is not None and record.parent.simulated:
            self._groups, self._table = record.parent.simulated, load_groups(files, record.parent.job)
        self._chunks: OrderedDict[int, dict[str, _Rows]] = OrderedDict()
        self._size = 0

    def n(self, group: int) -> int:
        """Return how many of a group's replicates are stored."""
        return self._table.n_replicates(group) if self._table is not None and group in self._groups else 0

    def results(self, groups: Sequence[int]) -> list[ResultBuffer]:
        """Return the stored results of some groups. From one thread at a time.

        Raises
        ------
        CorruptRecord
            A part of an ancestor is missing or damaged.
        StorageError
            The storage is out of reach.
        """
        outputs: dict[str, list[_GroupRows]] = {}
        for group in groups:
            if n_replicates := self.n(group):
                for output, rows in self._chunk_of(group).items():
                    outputs.setdefault(output, []).append(rows.of(group, n_replicates))
        return [_buffer(output, found) for output, found in outputs.items()]

    def _chunk_of(self, group: int) -> dict[str, _Rows]:
        """Return the rows of the outputs for some consecutive groups: tasks take groups about in order."""
        self._size = self._size or self._read(self._chunk_size)
        first = group - group % self._size
        if first not in self._chunks:
            self._chunks[first] = self._read(lambda sources: self._load(sources, first))
            if len(self._chunks) > _CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(first)
        return self._chunks[first]

    def _chunk_size(self, sources: list[ResultSource]) -> int:
        found = (rows for output in self._families(sources) for rows in parts(sources, "outputs", output))
        n_bytes = sum(rows.part.bytes for rows in found)
        return int(min(max(_CHUNK_BYTES * len(self._groups) / max(n_bytes, 1), 1), _MOST_GROUPS))

    def _load(self, sources: list[ResultSource], first: int) -> dict[str, _Rows]:
        families = self._families(sources)
        return {output: self._load_output(sources, output, families[output], first) for output in families}

    def _load_output(self, sources: list[ResultSource], output: str, families: Columns, first: int) -> _Rows:
        rows = parts(sources, "outputs", output)
        found = dataset_of(self._files, self._record.job, rows, pa.schema(IDENTITY_FIELDS), families)
        in_chunk = (pc.field("group") >= first) & (pc.field("group") < first + self._size)
        table = found.to_table(filter=in_chunk)
        order = [("group", "ascending"), ("replicate", "ascending")]
        table = table.take(pc.sort_indices(table, order))  # a stable order: rows of a simulation keep theirs
        identity = [field.name for field in IDENTITY_FIELDS]
        return _Rows(table["group"].to_numpy(), table["replicate"].to_numpy(), table.drop_columns(identity))

    def _families(self, sources: list[ResultSource]) -> Families:
        views = (source.log.view for source in sources)
        return families_of(self._files, JobPaths(self._record.job), views) or {}

    def _read(self, use: Callable[[list[ResultSource]], T]) -> T:
        def sources_now() -> list[ResultSource]:
            return ancestors(self._files, self._record)

        try:
            return read_current(sources_now(), sources_now, use)
        except FileNotFoundError as missing:
            raise part_missing(self._record.job, str(missing)) from missing


def _buffer(output: str, groups: Sequence[_GroupRows]) -> ResultBuffer:
    """Return rows of some groups as a task's result has them."""
    table = pa.concat_tables([group.values for group in groups])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    buffer = sink.getvalue()
    simulations = [(group.group, replicate) for group in groups for replicate in range(len(group.rows))]
    rows = [n for group in groups for n in group.rows]
    return ResultBuffer(buffer, [Segment(output, 0, buffer.size, simulations, rows)])
