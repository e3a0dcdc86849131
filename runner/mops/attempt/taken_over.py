"""Reads the simulations that a derived job takes over of the groups that it runs again (docs/internals/storage.md).

Their rows stay where they are: in the parts of the parent and its ancestors. Targets need them as well as the rows of
the replicates that the job runs itself.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import CorruptRecord, StorageError
from mops.storage.ancestors import PartRows, ResultSource, ancestors, families_of, parts
from mops.storage.compaction.reading import part_missing, read_current
from mops.storage.dataset import dataset_of
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.params_file import load_groups
from mops.storage.paths import JobPaths
from mops.study.groups import IDENTITY_FIELDS
from mops.study.ranges import Ranges
from mops.task import ResultBuffer, Segment

_CHUNK_BYTES = 32 << 20
"""About how many bytes of rows are read at once, as Arrow tables."""

_TASK_BYTES = 16 << 20
"""About how many bytes of rows go with a task: a child process holds them all."""

_MOST_GROUPS = 1024
_CHUNKS_KEPT = 2
_VALUE_BYTES = 8

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


@dataclass(frozen=True)
class _Output:
    """One output: the parts with its rows, and the types of all of them."""

    parts: list[PartRows]
    schema: pa.Schema

    @property
    def n_bytes(self) -> int:
        """About how many bytes its rows are as Arrow tables."""
        by_rows = sum(rows.part.rows for rows in self.parts) * len(self.schema) * _VALUE_BYTES
        return int(max(by_rows, sum(rows.part.bytes for rows in self.parts)))


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
        self._sources: list[ResultSource] = []
        self._outputs: dict[str, _Output] = {}
        self._chunks: OrderedDict[int, dict[str, _Rows]] = OrderedDict()

    def n(self, group: int) -> int:
        """Return how many of a group's replicates are stored."""
        return self._table.n_replicates(group) if self._table is not None and group in self._groups else 0

    @property
    def most_groups(self) -> int:
        """The most groups of a task, because a child process holds all their stored rows."""
        return self._groups_in(_TASK_BYTES)

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

    def _groups_in(self, n_bytes: int) -> int:
        """Return about how many groups have so many bytes of stored rows."""
        if self._table is None:
            return _MOST_GROUPS
        stored = self._read(lambda: sum(output.n_bytes for output in self._outputs.values()))
        return max(min(n_bytes * len(self._table) // max(stored, 1), _MOST_GROUPS), 1)

    def _chunk_of(self, group: int) -> dict[str, _Rows]:
        """Return the rows of the outputs for some consecutive groups: tasks take groups about in order."""
        size = self._chunk_groups
        first = group - group % size
        if first not in self._chunks:
            self._chunks[first] = self._read(lambda: self._load(first, first + size))
            if len(self._chunks) > _CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(first)
        return self._chunks[first]

    @functools.cached_property
    def _chunk_groups(self) -> int:
        return self._groups_in(_CHUNK_BYTES)

    def _load(self, first: int, stop: int) -> dict[str, _Rows]:
        return {name: self._load_output(output, first, stop) for name, output in self._outputs.items()}

    def _load_output(self, output: _Output, first: int, stop: int) -> _Rows:
        chunk = Ranges(((first, stop),))
        rows = [some for some in output.parts if some.groups.overlaps(chunk)]
        in_chunk = (pc.field("group") >= first) & (pc.field("group") < stop)
        table = dataset_of(self._files, self._record.job, rows, output.schema).to_table(filter=in_chunk)
        table = table.select(output.schema.names).cast(output.schema)
        order = [("group", "ascending"), ("replicate", "ascending")]
        table = table.take(pc.sort_indices(table, order))  # a stable order: rows of a simulation keep theirs
        identity = [field.name for field in IDENTITY_FIELDS]
        return _Rows(table["group"].to_numpy(), table["replicate"].to_numpy(), table.drop_columns(identity))

    def _read(self, use: Callable[[], T]) -> T:
        """Call a function that reads the outputs; again if a compaction has replaced their parts."""

        def use_sources(sources: list[ResultSource]) -> T:
            if sources is not self._sources:
                self._outputs, self._sources = self._opened(sources), sources
            return use()

        def sources_now() -> list[ResultSource]:
            return ancestors(self._files, self._record)

        try:
            return read_current(self._sources or sources_now(), sources_now, use_sources)
        except FileNotFoundError as missing:
            raise part_missing(self._record.job, str(missing)) from missing
        except pa.ArrowInvalid as bad:
            what = f"a stored part that job {self._record.job!r} takes over is damaged: {bad}"
            hint = f"list all damaged parts, to restore them from a backup: mops jobs verify {self._record.job}"
            raise CorruptRecord(what, where=self._files.url, hint=hint) from bad
        except OSError as fault:
            what = f"the storage does not give the rows that job {self._record.job!r} takes over: {fault}"
            hint = f"continue the job when the storage is back: mops jobs resume {self._record.job}"
            raise StorageError(what, where=self._files.url, hint=hint) from fault

    def _opened(self, sources: list[ResultSource]) -> dict[str, _Output]:
        job = self._record.job
        families = families_of(self._files, JobPaths(job), (source.log.view for source in sources)) or {}
        found = {}
        for name, columns in families.items():
            rows = parts(sources, "outputs", name)
            found[name] = _Output(rows, dataset_of(self._files, job, rows, pa.schema(IDENTITY_FIELDS), columns).schema)
        return found


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
