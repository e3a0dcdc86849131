"""The parameters of a job's sets as columns."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.storage.files import Files
from mops.storage.params_file import GROUP_FIELDS, free_names
from mops.storage.paths import JobPaths

CHUNK_ROWS = 10_000
_OF_GROUP = {field.name for field in GROUP_FIELDS}


class Parameters:
    """The parameters of a job's sets; the file is opened once, and only the columns are read that are needed."""

    # Row i of params.parquet is group i.

    def __init__(self, files: Files, paths: JobPaths):
        self._filesystem, self._path = files.arrow(paths.params)
        self._read: dict[str, pa.ChunkedArray] = {}

    @functools.cached_property
    def _file(self) -> pq.ParquetFile:
        with self._readable():
            return pq.ParquetFile(self._path, filesystem=self._filesystem)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as bad:
            # What Arrow says of damaged pages has no number.
            if isinstance(bad, OSError) and bad.errno is not None and not isinstance(bad, FileNotFoundError):
                raise
            raise CorruptRecord(f"the table of parameter sets cannot be read: {bad}", where=self._path) from bad

    def fields(self, taken: Collection[str]) -> dict[str, pa.Field]:
        """Return the column of each parameter in a table with other columns, by its name in ``params.parquet``."""
        stored = [field for field in self._file.schema_arrow if field.name not in _OF_GROUP]
        names = free_names([field.name for field in stored], taken)
        return {field.name: field.with_name(names[field.name]) for field in stored}

    def ids(self) -> pa.Array:
        """Return the param_id of each group."""
        return self.columns(["param_id"])["param_id"].combine_chunks()

    def whole(self) -> pa.Table:
        """Return all of ``params.parquet``."""
        return self.columns(self._file.schema_arrow.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return columns of ``params.parquet``."""
        if missing := [name for name in names if name not in self._read]:
            with self._readable():
                table = self._file.read(columns=missing)
            self._read |= {name: table[name] for name in missing}
        schema = pa.schema([self._file.schema_arrow.field(name) for name in names])
        return pa.table([self._read[name] for name in names], schema=schema)

    def next_to(self, taken: Collection[str]) -> pa.Table:
        """Return the columns of the parameters, with the names that they have next to other columns."""
        fields = self.fields(taken)
        return self.columns(list(fields)).rename_columns([field.name for field in fields.values()])

    def joined(self, table: pa.Table) -> pa.Table:
        """Return a table with a column for each parameter of the set of its ``group``."""
        theirs = self.next_to(table.column_names)
        for name in theirs.column_names:
            table = table.append_column(theirs.schema.field(name), theirs[name].take(table["group"]))
        return table

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """Yield the column ``group`` and a column for each parameter, some sets at a time."""
        names = ["group", *self.fields(())]
        if self._read.keys() >= set(names):
            yield from self.columns(names).to_batches(CHUNK_ROWS)
            return
        with self._readable():
            for batch in self._file.iter_batches(CHUNK_ROWS, columns=names):
                yield batch.select(names)

    def texts(self, groups: Sequence[int]) -> list[str]:
        """Return the parameters of some sets as canonical JSON; it reads only the pieces of the file with these."""
        with self._readable():
            metadata = self._file.metadata
            bounds = [0, *accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
            piece_of = {group: int(np.searchsorted(bounds, group, "right")) - 1 for group in groups}
            pieces = {i: self._file.read_row_group(i, columns=["params"])["params"] for i in set(piece_of.values())}
        return [pieces[piece_of[group]][group - bounds[piece_of[group]]].as_py() for group in groups]
