"""One part for an output and a checkpoint, whatever types of one family its rows come in.

The types of a file's columns are widened as rows come (:class:`StoredTypes`). A file that was begun with narrower types
is read back and goes into the wider one when the checkpoint closes, or when there are many such files
(:class:`OutputFile`), a row group at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from mops.storage.backends.spool import Spool
from mops.storage.parquet import Encoded, PartEncoder
from mops.study.column_families import NULL, Family
from mops.study.column_types import converted, storage_type, type_said, used_type

MOST_NARROWER = 8
"""Files with narrower types that wait to be read back; each holds a descriptor."""

_NO_COLUMNS: Mapping[str, Family] = {}


class StoredTypes:
    """The types in which an attempt stores its outputs' columns: each is as wide as the values so far need.

    They stay from part to part: soon all parts of an output have the same.

    Parameters
    ----------
    families
        Returns what is known now of an output's columns.
    """

    def __init__(self, families: Callable[[str], Mapping[str, Family]] = lambda _: _NO_COLUMNS):
        self._families = families
        self._types: dict[str, dict[str, pa.DataType]] = {}

    def stored(self, output: str, table: pa.Table) -> pa.Table:
        """Return a table as it is stored: with the types that now hold its values and all before it."""
        known, families, types = self._types.get(output, {}), self._families(output), {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            family = families.get(name, NULL)
            kind = storage_type([known.get(name, pa.null()), used_type(column)], family)
            types[name] = type_said(family) if pa.types.is_null(kind) else kind
        self._types[output] = types
        if list(types.values()) == table.schema.types:
            return table
        columns = [converted(column, kind) for column, kind in zip(table.columns, types.values(), strict=True)]
        return pa.table(columns, names=table.column_names)


class OutputFile:
    """Encodes the rows of one output as one file; their types may become wider from table to table.

    Parameters
    ----------
    spool
        Returns an empty place for a file.
    """

    def __init__(self, spool: Callable[[], Spool]):
        self._spool = spool
        self._encoder: PartEncoder | None = None
        self._schema: pa.Schema | None = None
        self._narrower: list[Encoded] = []

    def write(self, table: pa.Table) -> None:
        """Take rows, with their identity, in types at least as wide as those before."""
        if self._encoder is None or table.schema != self._schema:
            if self._encoder is not None:
                self._narrower.append(self._encoder.finish())
            self._schema = table.schema
            self._encoder = PartEncoder(table.schema, self._spool())
            if len(self._narrower) > MOST_NARROWER:
                self._fold(self._encoder, table.schema)
        self._encoder.write(table)

    def finish(self) -> Encoded:
        """Return the file: all rows, in the widest types."""
        assert self._encoder is not None
        assert self._schema is not None
        self._fold(self._encoder, self._schema)
        return self._encoder.finish()

    def _fold(self, encoder: PartEncoder, schema: pa.Schema) -> None:
        """Read the narrower files back into the present one."""
        while self._narrower:
            narrow = pq.ParquetFile(self._narrower.pop(0).content.opened(), read_dictionary=["param_id"])
            for number in range(narrow.num_row_groups):
                table = narrow.read_row_group(number, use_threads=False)
                columns = [converted(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
                encoder.write(pa.table(columns, schema=schema))
