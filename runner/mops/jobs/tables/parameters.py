"""The parameters of a job's sets as columns."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.storage.files import Files
from mops.storage.params_file import GROUP_FIELDS, free_names
from mops.storage.paths import JobPaths


class Parameters:
    """The parameters of a job's sets; only the columns are read that are needed."""

    # Row i of params.parquet is group i.

    def __init__(self, files: Files, paths: JobPaths):
        filesystem, path = files.arrow(paths.params)
        self._filesystem, self._path = filesystem, path

    @functools.cached_property
    def _stored(self) -> pa.Schema:
        with self._readable():
            return pq.read_schema(self._path, filesystem=self._filesystem)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, pa.ArrowException) as bad:
            raise CorruptRecord(f"the table of parameter sets cannot be read: {bad}", where=self._path) from bad

    def fields(self, taken: Collection[str]) -> dict[str, pa.Field]:
        """Return the column of each parameter in a table with other columns, by its name in ``params.parquet``."""
        groups = {field.name for field in GROUP_FIELDS}
        stored = [field for field in self._stored if field.name not in groups]
        names = free_names([field.name for field in stored], taken)
        return {field.name: field.with_name(names[field.name]) for field in stored}

    def ids(self) -> pa.Array:
        """Return the param_id of each group."""
        return self.columns(["param_id"])["param_id"].combine_chunks()

    def whole(self) -> pa.Table:
        """Return all of ``params.parquet``."""
        return self.columns(self._stored.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return columns of ``params.parquet``."""
        with self._readable():
            return pq.read_table(self._path, filesystem=self._filesystem, columns=list(names)).select(list(names))

    def joined(self, table: pa.Table) -> pa.Table:
        """Return a table with a column for each parameter of the set of its ``group``."""
        fields = self.fields(table.column_names)
        theirs = self.columns(list(fields)).take(table["group"])
        for field, column in zip(fields.values(), theirs.columns, strict=True):
            table = table.append_column(field, column)
        return table
