"""Copies Arrow data: validated, of plain types that Parquet can hold, in memory that no other code can change.

Arrow data may lie in memory of numpy, polars or a C library. The model may write to that memory again, and invalid data
crash their reader with a segmentation fault. So mops validates and copies each batch as it arrives. Runs in children:
the standard library and pyarrow only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from mops.study.casts import converted, is_list
from mops.study.column_families import MIXED
from mops.study.column_types import of_type

_MOST_KNOWN = 32
_DEEPEST = 32  # readers accept Parquet schemas of 100 levels; a list takes two of them
_MOST_DIGITS = 38  # so a decimal of 76 digits, the most that Arrow has, holds any two
_MEANT_AS_STORED = ("arrow.uuid", "arrow.json", "arrow.bool8")

# Other encodings of the same values. Times that microseconds do not reach fail here.
_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.duration("s"): pa.duration("us"),
    pa.duration("ms"): pa.duration("us"),
}


class BadColumn(ValueError):
    """A column cannot be stored; the message names it."""

    def __init__(self, column: object, why: object):
        super().__init__(f"column {column!r}: {why}")
        self.why = why


# Schemas and what they become. Comparing two schemas takes 0.1 us, hashing one 7 us.
# bench/tricks.py, one child, arrow: -12 % of its CPU time.
_known: list[tuple[pa.Schema, pa.Schema]] = []


def owned(source: Any) -> pa.Table:
    """Return a copy of a table, a record batch, or anything that streams Arrow, of plain types."""
    batches: Iterable[pa.RecordBatch]
    if isinstance(source, pa.Table):
        source.validate()
        batches = source.to_batches()
    elif isinstance(source, pa.RecordBatch):
        batches = [source]
    elif isinstance(source, pa.RecordBatchReader):
        batches = source
    else:
        source = batches = pa.RecordBatchReader.from_stream(source)
    schema = _plain_schema(source.schema)
    # Each batch before the next one is read: a stream may use the same memory for it.
    return pa.Table.from_batches([_copy(batch, schema) for batch in batches], schema)


def owned_column(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a copy of a column, of a plain type; an error does not name the column."""
    return owned(pa.table({"": column})).column(0)


def plain(table: pa.Table) -> pa.Table:
    """Return a table with columns of plain types, without metadata of a library. It copies only what it casts."""
    schema = _plain_schema(table.schema)
    if schema.equals(table.schema, check_metadata=True):
        return table
    columns = [
        pa.chunked_array([_cast_named(field.name, chunk, field.type) for chunk in column.chunks], field.type)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    # One encoding for each type, every field nullable, no metadata.
    schema = schema.remove_metadata() if schema.metadata else schema  # that of fields stays: it names extensions
    for seen, known in _known:
        if seen.equals(schema, check_metadata=True):
            return known
    found = pa.schema([(field.name, _plain_type(field.name, field)) for field in schema])
    del _known[_MOST_KNOWN - 1 :]
    _known.insert(0, (schema, found))
    return found


def _copy(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        for field, column in zip(schema, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowException as invalid:
                raise BadColumn(field.name, f"its Arrow data are invalid: {invalid}") from None
        raise
    if not batch.schema.equals(schema):
        # Before the copy, which would copy the whole memory behind a view or behind categories.
        columns = [_cast_named(f.name, c, f.type) for f, c in zip(schema, batch.columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    # The cheapest copy (6 us for four columns) that takes any type, and only the rows of a slice.
    return pa.ipc.read_record_batch(batch.serialize(), schema)


def _plain_type(column: str, field: pa.Field, depth: int = 0) -> pa.DataType:
    kind, is_ = field.type, pa.types
    _require_readable(column, field, depth)

    def plain(inner: pa.Field) -> pa.DataType:
        return _plain_type(column, inner, depth + 1)

    if is_.is_struct(kind):
        return pa.struct([(inner.name, plain(inner)) for inner in kind])
    if is_.is_map(kind):
        return pa.list_(pa.struct([("key", plain(kind.key_field)), ("value", plain(kind.item_field))]))
    if is_list(kind):
        return pa.list_(plain(kind.value_field))
    if is_.is_dictionary(kind) or is_.is_run_end_encoded(kind):
        return plain(pa.field("values", kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind.extension_name == "arrow.bool8" else plain(pa.field("storage", kind.storage_type))
    if is_.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if is_.is_decimal(kind) and kind.bit_width < pa.decimal128(1).bit_width:
        return pa.decimal128(kind.precision, kind.scale)
    found = pa.binary() if is_.is_fixed_size_binary(kind) and kind.byte_width else _PLAIN.get(kind, kind)
    if of_type(found) == MIXED:
        raise BadColumn(column, f"Parquet cannot hold {kind}")
    return found


def _require_readable(column: str, field: pa.Field, depth: int) -> None:
    """Refuse what readers cannot read, and extension types whose storage alone does not tell what the values mean."""
    if depth > _DEEPEST:
        raise BadColumn(column, f"it is nested more than {_DEEPEST} levels deep")
    kind = field.type
    if pa.types.is_struct(kind) and len({inner.name for inner in kind}) < kind.num_fields:
        raise BadColumn(column, f"{kind} has fields of the same name")
    if pa.types.is_struct(kind) and not kind.num_fields:
        raise BadColumn(column, "Parquet cannot hold a struct without fields")
    if pa.types.is_decimal(kind):
        before, after = kind.precision - kind.scale, kind.scale
        if not (0 <= before <= _MOST_DIGITS and 0 <= after <= _MOST_DIGITS):
            what = f"{kind} has {before} digits before the point and {after} after it"
            raise BadColumn(column, f"{what}, and mops stores 0 to {_MOST_DIGITS} of each; return floats, or text")
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()  # if the type is unknown here
    if isinstance(field.type, pa.BaseExtensionType):
        name = field.type.extension_name
    if name and name not in _MEANT_AS_STORED and not name.startswith("geoarrow."):
        raise BadColumn(column, f"the extension type {name} would lose its meaning; return plain values, or text")


def _cast_named(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return converted(column, kind)
    except pa.ArrowException as refused:
        raise BadColumn(name, refused) from None
