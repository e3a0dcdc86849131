"""Reads columns of Arrow tables as numbers, decides which columns are numbers, and writes values for people."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.study.casts import nearest_floats

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def is_number(kind: pa.DataType) -> bool:
    """Tell whether a column of this type has integers, floats or decimals. Booleans are not numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def numbers(column: pa.ChunkedArray | pa.Array) -> Floats:
    """Return a column of numbers or booleans as floats; NaN for null, and for every value of another type."""
    if is_number(column.type) or pa.types.is_boolean(column.type):
        return nearest_floats(column)
    return np.full(len(column), np.nan)


def nullable(values: Floats) -> pa.Array:
    """Return floats as a column with null for NaN."""
    return pa.array(values, pa.float64(), from_pandas=True)


def cell(value: object) -> str:
    """Return a value for people: floats with 4 digits, separators of thousands, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not 1_000 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{round(value, 3 - math.floor(math.log10(abs(value)))):,.0f}"
