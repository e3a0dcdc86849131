"""The table of a reuse: which simulation of a job is stored in which other job (internals/storage.md, "Reuse")."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.parquet.encoder import Encoded, Sink
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.study.groups import Recent

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
    def __init__(self, files: Files, path: str, jobs: Sequence[str]):
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
