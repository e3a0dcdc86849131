"""Copies the rows of several parts into one new part, a row group at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.parquet.encoder import STRINGS_BYTES, TEXTS_BYTES, Encoded, PartEncoder
from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.backends.spool import Spool
from mops.storage.compaction.reading import verify_hint
from mops.storage.files import AT_ONCE, Files
from mops.storage.joblog.records import Part
from mops.storage.paths import table_of
from mops.study.casts import converted
from mops.study.column_families import Family

HELD_BYTES = 16 << 20
"""The most bytes of old parts that wait in memory to be copied. A larger part is alone there."""

_DICTIONARIES = {"failures": ("param_id", "traceback")}
"""Columns of a table that repeat long texts, read and written without decoding them."""


def merged(files: Files, parts: Sequence[Part], families: Mapping[str, Family]) -> Encoded[Spool]:
    """Return a file with the rows of parts of one table, in their order, in the widest types.

    Parameters
    ----------
    families
        The families of the table's columns; none for losses and failures.

    Raises
    ------
    CorruptRecord
        A part is not as it was committed.
    FileNotFoundError
        A part is missing.
    StorageError
        The storage refuses, is out of reach, or is full.
    """
    kind, _ = table_of(parts[0].path)
    repeated = _DICTIONARIES.get(kind, ("param_id",))
    copies = _Copies(files, parts)
    schemas = dict.fromkeys(pq.read_schema(data) for data in copies)
    schema = with_dictionaries(unified(schemas, f"{files.url}/{parts[0].path}", families), repeated)
    encoder = PartEncoder(schema, files.spool(), STRINGS_BYTES if kind == "outputs" else TEXTS_BYTES)
    for data in copies:
        for table in _row_groups(data, repeated):
            encoder.write(_in(table, schema))
    encoded = encoder.finish()
    if encoded.rows != (n_rows := sum(part.rows for part in parts)):
        what = f"{len(parts)} parts from this one on have {encoded.rows} rows, and their records name {n_rows}"
        raise _damaged(files, parts[0], what)
    return encoded


class _Copies:
    """Copies of parts in one temporary file. They are as committed: a damaged part must not become a valid one."""

    def __init__(self, files: Files, parts: Sequence[Part]):
        self._parts, self._copy = parts, Spool()
        for some in _held_together(parts):
            for part, data in zip(some, files.get_many([part.path for part in some]), strict=True):
                if data is None:
                    raise FileNotFoundError(part.path)
                if hashlib.sha256(data).hexdigest() != part.digest:
                    raise _damaged(files, part, "the SHA-256 of this part differs from the committed one")
                self._copy.write(data)

    def __iter__(self) -> Iterator[pa.BufferReader]:
        """Yield the content of each part."""
        content, start = pa.py_buffer(self._copy.mapped()), 0
        for part in self._parts:
            yield pa.BufferReader(content.slice(start, part.bytes))
            start += part.bytes


def _held_together(parts: Sequence[Part]) -> Iterator[list[Part]]:
    some: list[Part] = []
    for part in parts:
        if some and (len(some) == AT_ONCE or sum(one.bytes for one in [*some, part]) > HELD_BYTES):
            yield some
            some = []
        some.append(part)
    yield some


def _damaged(files: Files, part: Part, what: str) -> CorruptRecord:
    _, job, *_ = part.path.split("/")
    return CorruptRecord(what, where=f"{files.url}/{part.path}", hint=verify_hint(job))


def _row_groups(data: pa.BufferReader, repeated: Sequence[str]) -> Iterator[pa.Table]:
    there = pq.read_schema(data).names
    source = pq.ParquetFile(data, read_dictionary=[name for name in repeated if name in there])
    if not source.num_row_groups:
        yield source.schema_arrow.empty_table()
    for number in range(source.num_row_groups):
        yield source.read_row_group(number, use_threads=False)


def _in(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns and types of a schema that holds its values."""
    absent = set(schema.names) - set(table.column_names)  # an older mops wrote losses and failures with fewer columns
    columns = [
        pa.nulls(table.num_rows, field.type) if field.name in absent else converted(table[field.name], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
