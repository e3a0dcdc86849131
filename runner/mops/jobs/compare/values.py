"""Compares values exactly: every bit of a number, and NaN equals NaN. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.study.casts import converted, is_list


def differing(a: pa.Array, b: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell for each row of two arrays of one type and length whether the values differ."""
    if pa.types.is_floating(a.type):
        x, y = (column.to_numpy(zero_copy_only=False) for column in (a, b))
        bits = f"u{x.itemsize}"
        bits_differ = (x.view(bits) != y.view(bits)) & ~(np.isnan(x) & np.isnan(y))
        return np.asarray(bits_differ | (np.asarray(pc.is_null(a)) != np.asarray(pc.is_null(b))))
    if a.equals(b):
        return np.zeros(len(a), np.bool_)
    if pa.types.is_nested(a.type):  # a nested value may hold NaN, which Arrow calls unequal
        pairs = zip(*(without_times(column).to_pylist() for column in (a, b)), strict=True)
        return np.fromiter((not _equal(x, y) for x, y in pairs), np.bool_, len(a))
    unequal = pc.fill_null(pc.not_equal(a, b), fill_value=False)
    return np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(a), pc.is_null(b))))


def _equal(x: object, y: object) -> bool:
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal(x[key], y[key]) for key in x)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_equal, x, y))
    return repr(x) == repr(y)  # exact for floats, and equal for two NaN


def without_times(values: pa.Array) -> pa.Array:
    """Return an array with times as text, because Python's types cannot hold nanoseconds."""
    return converted(values, _timeless(values.type))


def _timeless(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    return pa.list_(kind.value_field.with_type(_timeless(kind.value_type))) if is_list(kind) else kind
