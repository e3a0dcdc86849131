"""Converts columns of any library to Arrow columns of plain types, in memory that no other code can change.

Every value keeps its meaning, or the column fails by name (docs/reference/models.md has the list). pyarrow's own
conversion changes some values: in a list that mixes times with and without a zone it turns one into the other, it loses
the mask of a masked array in ``np.array``, and it turns a half and an integer into two integers.

Arrow data may lie in memory of numpy, polars or a C library. The model may write to that memory again, and invalid data
crash their reader with a segmentation fault. So mops validates and copies each batch as it arrives. A plain type is one
that Parquet can hold, and each value has one. Runs in children: the standard library, numpy and pyarrow only. If a
value is from pandas, the model has imported pandas.
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

from mops.study.casts import converted, is_list, list_array
from mops.study.column_families import MIXED
from mops.study.column_types import of_type

T = TypeVar("T")
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

# pyarrow converts lists of only these types exactly.
_SIMPLE = (
    frozenset({float, int, NoneType, np.float64, np.int64}),
    frozenset({str, NoneType, np.str_}),
    frozenset({bool, NoneType, np.bool_}),
)

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
    _refuse_complex(data.dtype.type)
    if data.dtype.type is np.longdouble:  # which Arrow does not have
        data = data.astype(np.float64)
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


def _refuse_complex(kind: type) -> None:
    if issubclass(kind, complex | np.complexfloating):
        raise TypeError("it holds complex numbers; return .real and .imag")


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
    nouns = {_noun_for(value) for value in values if value is not None}
    if len(nouns) > 1:
        raise TypeError(f"it mixes {' and '.join(sorted(nouns))}")
    noun = nouns.pop() if nouns else ""
    if noun.startswith("numpy's"):  # times of one unit
        dtype = next(value.dtype for value in values if value is not None)
        return _of_numpy(np.array(["NaT" if value is None else value for value in values], dtype=dtype))
    return _of_one_noun(values, noun)


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


_NOUNS: tuple[tuple[Any, str], ...] = (
    (str, "text"),
    (bytes | bytearray | memoryview, "bytes"),
    (datetime.date, "dates"),
    (datetime.time, "times of day"),
    (datetime.timedelta, "durations"),
    (Mapping, "mappings"),
    (Sequence | set | frozenset | np.ndarray | pa.Array | pa.ChunkedArray, "lists"),
)


def _noun_for(value: Any) -> str:
    """Return the noun for values like this one: a column must not mix values of two nouns."""
    kind = type(value)
    if isinstance(value, bool | np.bool_):
        return "booleans"
    if isinstance(value, np.datetime64 | np.timedelta64):
        return f"numpy's {value.dtype}"
    if isinstance(value, numbers.Number | np.number):
        _refuse_complex(kind)
        return "numbers"
    if isinstance(value, datetime.datetime):
        zone = "without" if value.tzinfo is None else "with"
        return f"times {zone} a zone"
    named = next((noun for kinds, noun in _NOUNS if isinstance(value, kinds)), None)
    if named is None and hasattr(kind, "__array__"):
        return "lists"
    return named or f"values of {kind.__qualname__}"


def _of_one_noun(values: list[Any], noun: str) -> Column:
    """Return values as a column, with those converted that pyarrow would change."""
    is_of_pandas = any(is_pandas(type(value)) for value in values)
    if noun == "numbers":  # if the list has a float16, pyarrow converts all its numbers to integers
        values = [float(value) if isinstance(value, np.float16 | np.longdouble) else value for value in values]
    elif noun in ("times with a zone", "times without a zone", "durations") and is_of_pandas:
        series = sys.modules["pandas"].Series(values)  # pyarrow would drop the nanoseconds in a list
        if series.dtype.kind not in "mM" or any(a != b for a, b in zip(series, values, strict=True) if b is not None):
            raise TypeError("its times have no common type")
        return _of_pandas(series)
    elif noun == "times of day" and any(value is not None and value.tzinfo is not None for value in values):
        raise TypeError("it holds times of day with a zone, which cannot be stored")
    elif noun == "mappings":
        return _mappings(values)
    elif noun == "lists":
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
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


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
    return pa.Table.from_arrays(_cast(table.columns, schema), schema=schema)


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
        batch = pa.RecordBatch.from_arrays(_cast(batch.columns, schema), schema=schema)
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


def _cast(columns: Iterable[Column], schema: pa.Schema) -> list[Column]:
    made = []
    for column, field in zip(columns, schema, strict=True):
        try:
            made.append(converted(column, field.type))
        except pa.ArrowException as refused:
            raise BadColumn(field.name, refused) from None
    return made
