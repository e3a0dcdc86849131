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
    if column.null_count == len(column) or (not _is_number(kind) and is_nan_only(column)):
        return pa.nulls(len(column), kind)
    found, is_ = column.type, pa.types
    if is_.is_dictionary(found):
        return converted(column.dictionary, kind).take(column.indices)
    if is_.is_run_end_encoded(found):
        return converted(pc.run_end_decode(column), kind)
    if isinstance(found, pa.BaseExtensionType):
        return converted(column.storage, kind)
    if inner_types(found) is not None and inner_types(kind) is not None:
        return _rebuilt(column, kind)
    made = column.cast(kind)
    is_narrower = is_.is_floating(found) and is_.is_floating(kind) and kind.bit_width < found.bit_width
    if is_narrower or (is_.is_timestamp(found) and is_.is_date(kind)):
        _require_equal(column, made)
    return made


def converted_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema with its types. Raises as :func:`converted`."""
    columns = [converted(table[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def converted_expression(expression: pc.Expression, kind: pa.DataType) -> pc.Expression:
    """Return an expression for the values of another one with a plain type."""
    return expression.cast(kind)


def nearest_floats(column: Column) -> npt.NDArray[np.float64]:
    """Return numbers or booleans as the nearest floats, and NaN for null."""
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


def inner_types(kind: pa.DataType) -> list[pa.DataType] | None:
    """Return the types inside a nested type; None: it is not nested."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if is_list(kind):
        return [kind.value_type]
    return [field.type for field in kind] if pa.types.is_struct(kind) else None


def inner_arrays(array: pa.Array) -> list[pa.Array] | None:
    """Return the arrays inside a nested array, without values below nulls; None: the array is not nested."""
    if pa.types.is_map(array.type):
        offsets = pa.array(np.asarray(array.offsets))  # in a slice, only offsets are sliced
        nulls = array.is_null()
        return [pa.ListArray.from_arrays(offsets, one, mask=nulls).flatten() for one in (array.keys, array.items)]
    if is_list(array.type):
        return [array.flatten()]
    return list(array.flatten()) if pa.types.is_struct(array.type) else None


def list_array(lengths: pa.Array, elements: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """Return lists that take the elements in turn, as many as their lengths say; a list without a length is null."""
    nulls = lengths.is_null() if lengths.null_count else None
    return pa.ListArray.from_arrays(_offsets(lengths), elements, type=kind, mask=nulls)


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return pa.array(np.concatenate([np.zeros(1, np.int64), ends]), pa.int32())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _rebuilt(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert the arrays inside a nested array."""
    inner = inner_arrays(array) or []
    if pa.types.is_struct(kind):
        by_name = dict(zip([field.name for field in array.type], inner, strict=True))
        if len(by_name) < len(inner) or by_name.keys() != {field.name for field in kind}:
            raise pa.ArrowTypeError(f"{array.type} has not the fields of {kind}")
        children = [converted(by_name[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    values = [converted(one, type_) for one, type_ in zip(inner, inner_types(kind) or [], strict=True)]
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(_offsets(_map_lengths(array)), *values, type=kind, mask=array.is_null())
    return list_array(pc.list_value_length(array), values[0], kind)


def _map_lengths(array: pa.Array) -> pa.Array:
    return pa.array(np.where(np.asarray(array.is_valid()), np.diff(np.asarray(array.offsets)), 0))


def _require_equal(column: pa.Array, made: pa.Array) -> None:
    """Refuse a cast that rounds: pyarrow checks those of integers and of units of time only."""
    back = made.cast(column.type)
    is_same = pc.equal(back, column)
    if pa.types.is_floating(column.type):
        is_same = pc.or_(is_same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
    if not pc.all(is_same, min_count=0).as_py():  # nulls do not count
        raise pa.ArrowInvalid(f"{made.type} does not hold all values of {column.type} exactly")
