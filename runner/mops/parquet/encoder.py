"""Encodes tables as Parquet, into a file or memory without a name.

Parts are plain Parquet for any reader. The identity columns come first (``param_id``, ``group``, ``replicate``,
``seed``), then the model's. Types may differ between parts within a column's family. mops.parquet.schemas finds the
schema that holds them all. Child processes import this: the standard library and pyarrow only.
"""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

# The size of a row group before it is encoded, as Arrow. At 16 MiB the encoder returns its buffers to the system after
# each row group, which costs more CPU: 27 us for a simulation of 11 KiB, 24 us at 4 MiB.
ROW_GROUP_BYTES = 4 << 20
# How much is written and hashed at once. Parquet's writer writes each page and its header separately, which are about
# 110 writes for a row group, and each write takes Python's global lock.
WRITE_BYTES = 256 << 10
STRINGS_BYTES = 1 << 20  # room for the distinct strings of a column in a row group
TEXTS_BYTES = 16 << 20  # room for all whole tracebacks of an attempt (mops.attempt.commit)


class Content(Protocol):
    """A file or memory that the encoder writes, and reads back."""

    def write(self, data: Any) -> None:
        """Add to the content."""

    def opened(self) -> pa.NativeFile:
        """Return the content as a file for reading at any position."""


ContentT = TypeVar("ContentT", bound=Content)


@dataclass(frozen=True)
class Encoded(Generic[ContentT]):
    """A finished Parquet file that has no name yet."""

    content: ContentT
    rows: int
    bytes: int
    digest: str  # SHA-256 of the content, hexadecimal


class Sink(io.RawIOBase, Generic[ContentT]):
    """Writes a content, and computes its size and digest."""

    def __init__(self, content: ContentT) -> None:
        self.content = content
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._has_failed = False

    def writable(self) -> bool:
        """Return True, as any file that is open for writing."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes; return how many."""
        if self._has_failed:  # Arrow writes its buffer again when it frees it
            return len(data)
        try:
            self.content.write(data)
        except Exception:
            self._has_failed = True
            raise
        self._digest.update(data)
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.bytes

    def encoded(self, rows: int) -> Encoded[ContentT]:
        """Return the finished file with its digest."""
        return Encoded(self.content, rows, self.bytes, self._digest.hexdigest())


class PartEncoder(Generic[ContentT]):
    """Encodes tables of one schema as one Parquet file, in row groups of about 4 MiB."""

    def __init__(
        self,
        schema: pa.Schema,  # with dictionaries for identity columns, which become plain strings
        content: ContentT,  # empty
        dictionary_bytes: int = STRINGS_BYTES,  # a row group stores each distinct string once, if all take no more
    ):
        self.schema = schema
        self._sink = Sink(content)
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), WRITE_BYTES)
        self._open: list[pa.Table] = []
        self._open_bytes = 0
        self._rows = 0
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            store_schema=False,  # the schema has dictionaries, and readers expect plain strings
            # Measured on 365 x 4 floats a simulation: 22 us with these, 103 us with pyarrow's defaults. Runs of equal
            # numbers take 26 us as DELTA_BINARY_PACKED, and 3 % fewer bytes.
            compression="snappy",
            use_dictionary=[field.name for field in schema if _is_text(field.type)],
            write_statistics=["group"],
            dictionary_pagesize_limit=dictionary_bytes,
        )
        # pyarrow silently drops this key from a schema's metadata, so it is added to the file.
        # Parquet's own types would return durations as integers, and all time zones as UTC. The text of a type includes
        # the types of its elements and fields. Other parts save the 1 KiB of this schema.
        if any("duration[" in text or "tz=" in text for text in map(str, schema.types)):
            plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
            stored = base64.b64encode(pa.schema(plain).serialize().to_pybytes())
            self._writer.add_key_value_metadata({"ARROW:schema": stored})

    def write(self, table: pa.Table) -> None:
        """Add rows. The encoder encodes a row group when it is full, and before rows that would make it too large."""
        if not table.num_rows and (self._open or self._rows):
            return  # a file needs an empty table only to have its columns
        nbytes = table.nbytes
        if self._rows and self._open_bytes + nbytes > ROW_GROUP_BYTES:
            self._flush()
        self._open.append(table)
        self._open_bytes += nbytes
        self._rows += table.num_rows
        if self._open_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._open:
            # One dictionary for all: at a second one Parquet's writer falls back to plain strings, 5 us a simulation.
            table = pa.concat_tables(self._open).unify_dictionaries()
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._open, self._open_bytes = [], 0

    def finish(self) -> Encoded[ContentT]:
        """Return the file."""
        self._flush()
        self._writer.close()
        self._file.flush()
        return self._sink.encoded(self._rows)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def encode(table: pa.Table, content: ContentT) -> Encoded[ContentT]:
    """Encode one table as a Parquet file in an empty content."""
    encoder = PartEncoder(table.schema, content)
    encoder.write(table)
    return encoder.finish()
