"""Writes one part for an output and a checkpoint, from rows in any types of one family.

Types of columns become wider as rows come. Child processes import this: the standard library and pyarrow only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic

import pyarrow as pa
import pyarrow.parquet as pq

from mops.parquet.encoder import ContentT, Encoded, PartEncoder
from mops.parquet.schemas import storage_schema
from mops.study.casts import converted_table
from mops.study.column_families import Family

MOST_NARROWER = 8  # files that may wait to be copied; each holds a file descriptor


class StoredTypes:
    """The types in which an attempt stores its outputs' columns: each is as wide as the values so far need.

    The types carry over from part to part, so soon all parts of an output have the same types.
    """

    def __init__(self, families: Callable[[str], Mapping[str, Family]] = lambda _: {}):
        self._families = families  # of an output's columns; they hold the values of each table that comes
        self._schemas: dict[str, pa.Schema] = {}

    def stored(self, output: str, table: pa.Table) -> pa.Table:
        """Return a table for storage, in types that hold its values and all earlier ones."""
        known = [self._schemas[output]] if output in self._schemas else []
        schema = storage_schema([*known, table.schema], self._families(output))
        self._schemas[output] = schema
        return table if schema == table.schema else converted_table(table, schema)


class OutputFile(Generic[ContentT]):
    """Encodes the rows of one output as one file. Their types may become wider from table to table.

    Each wider table starts a new file. All earlier ones are copied into one of the widest types, in their order and a
    row group at a time: at the end, or when there are many.
    """

    def __init__(self, content: Callable[[], ContentT]):
        self._content = content  # returns an empty one
        self._encoder: PartEncoder[ContentT] | None = None
        self._narrower: list[Encoded[ContentT]] = []

    def write(self, table: pa.Table) -> None:
        """Add rows with their identity, in types at least as wide as the earlier rows'."""
        encoder = self._encoder
        if encoder is None or table.schema != encoder.schema:
            encoder = self._start(table.schema, folds=len(self._narrower) >= MOST_NARROWER)
        encoder.write(table)

    def finish(self) -> Encoded[ContentT]:
        """Return the file with all rows in the order in which they came, in the widest types."""
        assert self._encoder is not None
        encoder = self._start(self._encoder.schema, folds=True) if self._narrower else self._encoder
        return encoder.finish()

    def _start(self, schema: pa.Schema, *, folds: bool) -> PartEncoder[ContentT]:
        """Start a new file, maybe with the rows of all earlier ones."""
        if self._encoder is not None:
            self._narrower.append(self._encoder.finish())
        self._encoder = PartEncoder(schema, self._content())
        while folds and self._narrower:
            narrow = pq.ParquetFile(self._narrower.pop(0).content.opened(), read_dictionary=["param_id"])
            for number in range(narrow.num_row_groups):
                self._encoder.write(converted_table(narrow.read_row_group(number, use_threads=False), schema))
        return self._encoder
