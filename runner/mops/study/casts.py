"""Converts Arrow data to other types: the only place of mops that casts (``tests/pure/study/test_casts.py``).

pyarrow's own cast makes invalid arrays of nested nulls and of slices, takes wrong elements of list views, refuses
nested types that differ inside, and rounds floats and times. Child processes import this: only the standard library,
numpy and pyarrow.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = Any  # ``pa.Array | pa.ChunkedArray``


def converted(column: Column, kind: pa.DataType) -> Column:
    """Return the same values with another type, in which a list is a ``pa.list_``; pa.ArrowException: not exactly."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([converted(chunk, kind) for chunk in column.chunks], kind)
    # Floats of which all are NaN have no value of another family, so they become null there.
    found, is_ = column.type, pa.types
    is_number = is_.is_integer(kind) or is_.is_floating(kind)
    if column.null_count == len(column) or (not is_number and is_nan_only(column)):
        return pa.nulls(len(column), kind)
    if is_.is_dictionary(found):
        return converted(column.dictionary, kind).take(column.indices)
    if is_.is_run_end_encoded(found):
        return converted(pc.run_end_decode(column), kind)
    if is_.is_map(found):  # in a slice of a map, only offsets are sliced
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        lists = pa.ListArray.from_arrays(pa.array(np.asarray(column.offsets)), entries, mask=column.is_null())
        return converted(lists, kind)
    if isinstance(found, pa.BaseExtensionType):
        return converted(column.storage, kind)
    return _cast(column, kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast plain values, and what is in lists and structs."""
    found, is_ = column.type, pa.types
    if is_list(found) and is_list(kind):
        return list_array(pc.list_value_length(column), converted(column.flatten(), kind.value_type), kind)
    if is_.is_struct(found) and is_.is_struct(kind):
        inner = dict(zip([field.name for field in found], column.flatten(), strict=True))
        if len(inner) < found.num_fields or inner.keys() != {field.name for field in kind}:
            raise pa.ArrowTypeError(f"{found} has not the fields of {kind}")
        children = [converted(inner[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    made = column.cast(kind)
    is_narrower = is_.is_floating(found) and is_.is_floating(kind) and kind.bit_width < found.bit_width
    if is_narrower or (is_.is_timestamp(found) and is_.is_date(kind)):  # of these casts, pyarrow checks none
        back = made.cast(found)
        is_same = pc.equal(back, column)
        if is_narrower:
            is_same = pc.or_(is_same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
        if not pc.all(is_same, min_count=0).as_py():  # nulls do not count
            raise pa.ArrowInvalid(f"{kind} does not hold all values of {found} exactly")
    return made


def converted_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema with its types. Raises as :func:`converted`."""
    columns = [converted(table[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def converted_expression(expression: pc.Expression, kind: pa.DataType) -> pc.Expression:
    """Return an expression for the values of another one with a plain type."""
    return expression.cast(kind)


def nearest_floats(column: Column) -> npt.NDArray[np.float64]:
    """Return numbers, texts of numbers or booleans as the nearest floats, and NaN for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    found: Any = pc.cast(column, pa.float64(), safe=False)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    values: npt.NDArray[np.float64] = found.to_numpy(zero_copy_only=False)
    return values


def is_nan_only(column: Column) -> bool:
    """Tell whether a column has floats, and all of them are NaN."""
    if not pa.types.is_floating(column.type) or column.null_count == len(column):
        return False
    first = column[0].as_py()
    if first is not None and first == first:  # the usual case, without a look at all values
        return False
    return not pc.any(pc.invert(pc.is_nan(column))).as_py()


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a type is one of the five types of lists."""
    is_ = pa.types
    some = is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind)
    return bool(some or is_.is_list_view(kind) or is_.is_large_list_view(kind))


def list_array(lengths: pa.Array, elements: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """Return lists that take the elements in turn, as many as their lengths say; a list without a length is null."""
    ends = np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int64), ends]), pa.int32())
    nulls = lengths.is_null() if lengths.null_count else None
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=nulls)
