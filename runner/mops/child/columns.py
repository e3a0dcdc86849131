"""Converts what Python, numpy and pandas hold to Arrow columns, in memory that no other code can change.

Every value keeps its meaning, or the column fails by name (docs/reference/models.md has the list).
pyarrow's own conversion changes some values: in a list that mixes times with and without a zone it turns one into the
other, it loses the mask of a masked array in ``np.array``, and it turns a half and an integer into two integers.
Standard library, numpy and pyarrow only. If a value is from pandas, the model has imported pandas.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import decimal
import functools
import numbers
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from mops.child.arrow_copy import BadColumn, owned, owned_column, plain
from mops.study.casts import list_array

T = TypeVar("T")
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

# pyarrow converts lists of only these types exactly.
_SIMPLE = (
    frozenset({float, int, NoneType, np.float64, np.int64}),
    frozenset({str, NoneType, np.str_}),
    frozenset({bool, NoneType, np.bool_}),
)


def by_type(function: Callable[[type], T]) -> Callable[[type], T]:
    """Return a function of a type that computes each result once. A model may make classes without end."""
    return cast(Callable[[type], T], functools.lru_cache(128)(function))


@by_type
def is_record(kind: type) -> bool:
    """Tell whether a type is a dataclass or a model of pydantic 2."""
    return hasattr(kind, "__dataclass_fields__") or (hasattr(kind, "model_dump") and hasattr(kind, "model_fields"))


def fields_of(record: Any) -> Mapping[str, Any]:
    """Return the fields of a record; the records inside of it stay as they are."""
    kind = type(record)
    if not is_record(kind):
        raise TypeError(f"it mixes rows and {kind.__name__}; return only rows of one type")
    if not hasattr(kind, "model_dump"):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    found = record.model_dump()
    if not isinstance(found, Mapping):  # a model of pydantic with a single value
        raise TypeError(f"{kind.__name__}.model_dump() gives {type(found).__name__}; a row needs names and values")
    return found


def of_mapping(columns: Mapping[Any, Any]) -> pa.Table:
    """Return a mapping of columns as a table; the labels of pandas series become columns too."""
    series = {name: values for name, values in columns.items() if is_pandas(type(values)) and hasattr(values, "index")}
    if not series:
        return _table(list(columns.items()), str)
    (first, one), *others = series.items()
    for name, other in others:
        if not other.index.equals(one.index):
            raise BadColumn(
                name, f"its pandas index is not that of column {first!r}; align them, or return values without an index"
            )
    return _table([*_labels(one.index), *columns.items()], str)


def of_frame(frame: Any) -> pa.Table:
    """Return a pandas frame as a table: named levels of its index first, then its columns."""
    return _table([*_labels(frame.index), *frame.items()], _joined)


def of_exported(table: Any) -> pa.Table:
    """Return a table of any library that exports Arrow."""
    if is_of("polars", type(table)):
        for name, dtype in zip(table.columns, table.dtypes, strict=True):
            _refuse_objects(name, dtype)
    return owned(table if hasattr(table, "__arrow_c_stream__") else pa.record_batch(table))


def _refuse_objects(name: str, dtype: Any) -> None:
    # A polars column of Python objects would export their addresses, or end the process.
    if isinstance(dtype, sys.modules["polars"].Object):
        raise BadColumn(name, "it holds Python objects of polars")


def is_pandas(kind: type) -> bool:
    """Tell whether a type is one of pandas, or derived from one."""
    return is_of("pandas", kind)


def is_of(library: str, kind: type) -> bool:
    """Tell whether a type is one of a library, or derived from one."""
    return any(base.__module__.partition(".")[0] == library for base in kind.__mro__)


def is_scalar(kind: type) -> bool:
    """Tell whether a type is that of a single value."""
    return issubclass(kind, NoneType | str | numbers.Number | np.generic)


def _table(columns: Iterable[tuple[Any, Any]], name_of: Callable[[Any], str]) -> pa.Table:
    made: dict[str, Column] = {}
    original: list[object] = []
    for given, values in columns:
        name = name_of(given)
        original.append(given)
        try:
            made[name] = column(values)
        except MemoryError:
            raise
        except BadColumn as bad:
            raise BadColumn(name, bad.why) from bad
        except Exception as refused:  # raised by code of any library that can make a column
            raise BadColumn(name, refused) from refused
    if len(made) < len(original):
        raise ValueError(f"it has columns of the same name: {', '.join(map(repr, original))}")
    return plain(pa.table(made))


def _joined(name: object) -> str:
    # The name of a pandas column of several levels: `infected_mean`.
    return "_".join(str(level) for level in name if str(level)) if isinstance(name, tuple) else str(name)


def _labels(index: Any) -> list[tuple[Any, Any]]:
    """Return the levels of a pandas index by name, except unnamed row numbers."""
    if index.nlevels == 1:
        if index.name is None and index.inferred_type in ("integer", "empty"):
            return []
        return [("index" if index.name is None else index.name, index)]
    # The names that reset_index gives.
    return [(f"level_{i}" if name is None else name, index.get_level_values(i)) for i, name in enumerate(index.names)]


def column(values: Any) -> Column:
    """Return one column that a model returned in any form; the error may have any type."""
    kind = type(values)
    if is_scalar(kind) or getattr(values, "ndim", 1) == 0:
        return of_values([values])
    if issubclass(kind, np.ndarray):
        return _of_numpy(values)
    if issubclass(kind, list | tuple):
        return of_values(values)
    if is_pandas(kind):
        return _of_pandas(values)
    if issubclass(kind, pa.Array | pa.ChunkedArray):
        return owned_column(values)
    if hasattr(kind, "__arrow_c_stream__"):
        if is_of("polars", kind):
            _refuse_objects("", values.dtype)
        return owned_column(pa.chunked_array(values))
    if hasattr(kind, "__arrow_c_array__") or hasattr(kind, "__arrow_array__"):
        return owned_column(pa.array(values))
    if _is_sequence(values):
        return of_values(list(values))  # numpy would make text of text and numbers, and floats of large integers
    return _of_numpy(np.asanyarray(values))  # asanyarray keeps the mask of a masked array


def _is_sequence(values: Any) -> bool:
    """Tell whether values are a sequence without a common type, unlike arrays and buffers."""
    kind = type(values)
    if issubclass(kind, Sequence):
        return not issubclass(kind, memoryview | bytearray | array.array)
    if issubclass(kind, Mapping) or not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        return False
    if any(hasattr(values, typed) for typed in ("__array__", "__array_interface__", "__array_struct__")):
        return False
    try:
        memoryview(values)
    except TypeError:
        return True
    return False


def _of_numpy(values: np.ndarray[Any, Any]) -> pa.Array:
    if values.ndim != 1:
        raise ValueError(f"it is an array of {values.ndim} dimensions; a column has one")
    if values.dtype.kind == "O":
        return of_values(values.tolist())
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    data = np.array(values, subok=False)
    if data.dtype.names:
        raise TypeError("it is a structured array; return a mapping of its fields to columns")
    if not data.dtype.isnative:
        data = data.astype(data.dtype.newbyteorder("="))
    if data.dtype.kind in "SU":  # pyarrow would cut numpy's text and bytes at the first NUL
        return pa.array(data.tolist(), pa.string() if data.dtype.kind == "U" else pa.binary(), mask=mask)
    if mask is None:
        return pa.array(data)
    if data.dtype.kind in "mM":  # with a mask, pyarrow takes NaT for a time
        mask = mask | np.isnat(data)
    return pa.array(data, mask=mask, from_pandas=False)


def _of_pandas(values: Any) -> Column:  # a series, an index or an array
    dtype = values.dtype
    if type(dtype).__name__ == "NumpyEADtype":  # the dtype of Series.array
        dtype = dtype.numpy_dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "O":
            return of_values(_without_marks(values.tolist()))
        return _of_numpy(values.to_numpy())  # whose NaN stays NaN
    for some in (dtype, getattr(getattr(dtype, "categories", None), "dtype", None)):
        _refuse_exotic(type(some))
    values = getattr(values, "array", values)
    if type(dtype).__name__ == "GeometryDtype":  # GeoParquet stores the ISO flavour too
        return pa.array(sys.modules["geopandas"].GeoSeries(values).to_wkb(flavor="iso").tolist(), pa.binary())
    return owned_column(pa.array(values, from_pandas=True))


_INSTEAD = {
    "Interval": "text, as with .astype(str), or two columns of numbers",
    "Period": "text, as with .astype(str), or times, as with .to_timestamp()",
    "Sparse": "plain values, as with .sparse.to_dense()",
}


def _refuse_exotic(kind: type) -> None:
    name = kind.__name__.removesuffix("Dtype")
    if name in _INSTEAD and is_pandas(kind):
        raise TypeError(f"it holds values of pandas.{name}, which mops does not store; return {_INSTEAD[name]}")


def _without_marks(values: list[Any]) -> list[Any]:
    """Replace the NaN of an object column by None, as pandas means it, unless the column also has numbers."""
    kinds = {type(v) for v in values if not _is_nan(v)}
    # Without booleans and decimals, whose columns cannot hold NaN.
    with_numbers = any(issubclass(kind, numbers.Number) and not issubclass(kind, bool) for kind in kinds)
    if with_numbers and not any(issubclass(kind, decimal.Decimal) for kind in kinds):
        return values
    return [None if _is_nan(v) else v for v in values]


def _is_nan(value: Any) -> bool:
    return isinstance(value, numbers.Number) and value != value


def of_values(values: Sequence[Any]) -> Column:
    """Return Python values as a column, nested values in the same way."""
    kinds = set(map(type, values))
    if any(kinds <= simple for simple in _SIMPLE):
        return pa.array(values)
    values = [_unpacked(value) for value in values]
    families = {_family(value) for value in values if value is not None}
    if len(families) > 1:
        raise TypeError(f"it mixes {' and '.join(sorted(families))}")
    family = families.pop() if families else ""
    if family.startswith("numpy's"):  # times of one unit
        dtype = next(value.dtype for value in values if value is not None)
        return _of_numpy(np.array(["NaT" if value is None else value for value in values], dtype=dtype))
    return _of_family(values, family)


def _unpacked(value: Any) -> Any:
    """Return None for a mark of a missing value, and the value of an array without dimensions."""
    kind = type(value)
    if kind.__name__ in ("NAType", "NaTType") and is_pandas(kind):
        return None
    if not isinstance(value, np.generic) and hasattr(kind, "__array__") and getattr(value, "ndim", 1) == 0:
        value = np.asanyarray(value)
        if np.ma.is_masked(value):
            return None
        return np.asarray(value)[()]
    return value


_FAMILIES: tuple[tuple[Any, str], ...] = (
    (str, "text"),
    (bytes | bytearray | memoryview, "bytes"),
    (datetime.date, "dates"),
    (datetime.time, "times of day"),
    (datetime.timedelta, "durations"),
    (Mapping, "mappings"),
    (Sequence | set | frozenset | np.ndarray | pa.Array | pa.ChunkedArray, "lists"),
)


def _family(value: Any) -> str:
    """Return the family of a value: a column must not mix families."""
    kind = type(value)
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, np.datetime64 | np.timedelta64):
        return f"numpy's {value.dtype}"
    if isinstance(value, numbers.Number | np.number):
        return "numbers"
    if isinstance(value, datetime.datetime):
        zone = "without" if value.tzinfo is None else "with"
        return f"times {zone} a zone"
    named = next((name for family, name in _FAMILIES if isinstance(value, family)), None)
    if named is None and hasattr(kind, "__array__"):
        return "lists"
    return named or f"values of {kind.__qualname__}"


def _of_family(values: list[Any], family: str) -> Column:
    """Return values of one family as a column, where pyarrow would change them."""
    is_of_pandas = any(is_pandas(type(value)) for value in values)
    if family == "numbers":  # if the list has a float16, pyarrow converts all its numbers to integers
        values = [float(value) if isinstance(value, np.float16) else value for value in values]
    elif family in ("times with a zone", "times without a zone", "durations") and is_of_pandas:
        series = sys.modules["pandas"].Series(values)  # pyarrow would drop the nanoseconds in a list
        if series.dtype.kind not in "mM" or any(a != b for a, b in zip(series, values, strict=True) if b is not None):
            raise TypeError("its times have no common type")
        return _of_pandas(series)
    elif family == "times of day" and any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("it holds times of day with a zone, which cannot be stored")
    elif family == "mappings":
        return _mappings(values)
    elif family == "lists":
        return _lists(values)
    elif any(is_record(type(value)) for value in values):  # records become structs, as dictionaries do
        return _mappings([None if value is None else fields_of(value) for value in values])
    elif is_of_pandas:
        for kind in set(map(type, values)):
            _refuse_exotic(kind)
    return pa.array(values)


def _mappings(values: list[Any]) -> pa.Array:
    keys = dict.fromkeys(chain.from_iterable(value for value in values if value is not None))
    if not all(isinstance(key, str) for key in keys):
        raise TypeError(f"it holds mappings with keys that are not text: {', '.join(map(repr, keys))}")
    if not keys:
        raise TypeError("it holds mappings without keys, which Parquet cannot hold")
    children = [_whole(of_values([None if v is None else v.get(key) for v in values])) for key in keys]
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, names=list(keys), mask=mask)


def _lists(values: list[Any]) -> pa.Array:
    lengths = pa.array([None if value is None else len(value) for value in values], pa.int64())
    lists = [value for value in values if value is not None]
    if all(isinstance(value, list | tuple | set | frozenset) for value in lists):
        elements = of_values(list(chain.from_iterable(lists)))
    else:
        columns = [column(list(value) if isinstance(value, set | frozenset) else value) for value in lists]
        if len({made.type for made in columns}) == 1:  # arrays keep their type if they have one in common
            chunks = (made.chunks if isinstance(made, pa.ChunkedArray) else [made] for made in columns)
            elements = pa.chunked_array(list(chain.from_iterable(chunks)))
        else:
            elements = of_values(list(chain.from_iterable(made.to_pylist() for made in columns)))
    return list_array(lengths, _whole(elements))


def _whole(made: Column) -> pa.Array:
    if isinstance(made, pa.Array):
        return made
    return pa.concat_arrays(made.chunks) if made.num_chunks else pa.array([], made.type)
