"""Reads columns of Arrow tables as numbers, and decides which columns are numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def is_number(kind: pa.DataType) -> bool:
    """Tell whether a column of this type has integers, floats or decimals. Booleans are not numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def numbers(column: pa.ChunkedArray | pa.Array) -> Floats:
    """Return a column of numbers or booleans as floats; NaN for null, and for every value of another type."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not is_number(column.type):
        return np.full(len(column), np.nan)
    found: Any = pc.cast(column, pa.float64(), safe=False)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    values: Floats = found.to_numpy(zero_copy_only=False)
    return values


def nullable(values: Floats) -> pa.Array:
    """Return floats as a column with null for NaN."""
    return pa.array(values, pa.float64(), from_pandas=True)
