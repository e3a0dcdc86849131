"""Writes and reads ``params.parquet``: the parameter sets of a job."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.parquet.encoder import Encoded, Sink
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.study.groups import GroupChunk, GroupTable

GROUP_FIELDS = [
    pa.field("param_id", pa.string(), nullable=False),
    pa.field("group", pa.int32(), nullable=False),
    pa.field("seeds", pa.list_(pa.uint64()), nullable=False),
    pa.field("params", pa.string(), nullable=False),
]

_TYPES = {"bool": pa.bool_(), "int": pa.int64(), "large": pa.int64(), "float": pa.float64(), "str": pa.string()}


class NewGroups(Protocol):
    """Groups that are not stored yet."""

    kinds: dict[str, set[str]]  # of each parameter's values

    def pieces(self) -> Iterator[GroupChunk]:
        """Yield the groups in order."""


def encode_groups(groups: NewGroups, spool: Spool) -> Encoded[Spool]:
    """Write ``params.parquet``: ids, seeds and parameters as JSON, and typed columns for people's queries."""
    sink = Sink(spool)
    names = free_names(list(groups.kinds), {field.name for field in GROUP_FIELDS})
    columns = [pa.field(names[name], _type_of(kinds)) for name, kinds in groups.kinds.items()]
    # zstd halves the hexadecimal digits of an id. snappy does not shrink them.
    with pq.ParquetWriter(
        pa.PythonFile(sink, "w"),
        pa.schema([*GROUP_FIELDS, *columns]),
        compression="zstd",
        use_dictionary=[field.name for field in columns],
        write_statistics=["group"],
    ) as writer:
        rows = 0
        for piece in groups.pieces():  # all groups would not fit in memory
            numbers = pa.array(range(piece.start, piece.start + len(piece)), pa.int32())
            seeds = pa.ListArray.from_arrays(pa.array(piece.offsets, pa.int32()), pa.array(piece.seeds))
            sets = json.loads(f"[{','.join(piece.params.to_pylist())}]") if groups.kinds else []
            typed = [_column([values.get(name) for values in sets], kinds) for name, kinds in groups.kinds.items()]
            writer.write_table(pa.table([piece.ids, numbers, seeds, piece.params, *typed], schema=writer.schema))
            rows += len(piece)
    return sink.encoded(rows)


def free_names(names: Sequence[str], taken: Collection[str], prefix: str = "param.") -> Mapping[str, str]:
    """Return names that differ from each other and from others: ``param.NAME`` if another one has the name.

    Names that differ only in upper and lower case are equal, as SQL engines and some file systems take them.
    """
    known, own = {name.casefold() for name in taken}, {name.casefold() for name in names}
    found: dict[str, str] = {}
    for name in names:
        free = name
        while free.casefold() in known or (free != name and free.casefold() in own):
            free = f"{prefix}{free}"
        known.add(free.casefold())
        found[name] = free
    return found


def _type_of(kinds: set[str]) -> pa.DataType:
    # A column of several kinds or of too large values is JSON text.
    if kinds == {"int", "float"}:
        return pa.float64()
    if kinds == {"int", "large"}:
        return pa.int64()
    (kind, *others) = kinds
    return pa.string() if others else _TYPES.get(kind, pa.string())


def _column(values: list[Any], kinds: set[str]) -> pa.Array:
    kind = _type_of(kinds)
    if kind == pa.float64():  # pyarrow refuses integers that no float holds exactly
        return pa.array([None if value is None else float(value) for value in values], kind)
    if kind == pa.string() and kinds != {"str"}:
        values = [None if value is None else json.dumps(value) for value in values]
    return pa.array(values, kind)


class _StoredGroups:
    def __init__(self, source: pa.NativeFile, where: str):
        self._where = where
        with self._readable():
            self._file = pq.ParquetFile(source)
            metadata = self._file.metadata
            row_groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            leaf = self._file.schema_arrow.names.index("seeds")
            self.bounds = [0, *accumulate(row_group.num_rows for row_group in row_groups)]
            # No list is empty or null, so the number of values is the number of elements.
            self.n_simulations = sum(row_group.column(leaf).num_values for row_group in row_groups)

    def load(self, number: int) -> GroupChunk:
        with self._readable():  # a piece is a row group
            table = self._file.read_row_group(number, columns=["param_id", "seeds", "params"], use_threads=False)
            seeds = table["seeds"].combine_chunks()
            return GroupChunk(
                self.bounds[number],
                table["param_id"].combine_chunks(),
                table["params"].combine_chunks(),
                seeds.values.to_numpy(),
                seeds.offsets.to_numpy().astype(np.int64),
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, ValueError) as bad:
            raise CorruptRecord(f"the table of groups cannot be read: {bad}", where=self._where) from bad


def read_groups(source: pa.NativeFile, where: str) -> GroupTable:
    """Read ``params.parquet``. The table reads its pieces when it needs them.

    CorruptRecord: the file is not what :func:`encode_groups` wrote. Later reads of the table raise it too.
    """
    stored = _StoredGroups(source, where)
    return GroupTable(stored.bounds, stored.load, stored.n_simulations)


def parameter_columns(files: Files, paths: JobPaths) -> list[str]:
    """Return the columns of the parameters of a job, in the order of its study."""
    with files.reader(paths.params) as source:
        names: list[str] = pq.ParquetFile(source).schema_arrow.names
        return names[len(GROUP_FIELDS) :]


def load_groups(files: Files, paths: JobPaths) -> GroupTable:
    """Return a job's groups, as :func:`read_groups`."""
    return read_groups(files.reader(paths.params), f"{files.url}/{paths.params}")
