"""Finds the families of the values in Arrow columns (column_families.py explains them).

Columns have the types that child/columns.py makes. Child processes import this: only the standard library, numpy and
pyarrow.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mops.study.casts import Column, is_list, is_nan_only
from mops.study.column_families import FLOAT, MIXED, NAN, NULL, Columns, Family

_EXACT = 2**53
_INT64_MAX = 2**63 - 1
_NS_PER_US = 1000

ONE_TYPE = {NULL: pa.null(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32()}
_MOST: dict[pa.DataType, str] = {
    **{kind: name for name, kind in ONE_TYPE.items()},
    **dict.fromkeys((pa.time64("us"), pa.time64("ns")), "time"),
    **dict.fromkeys((pa.float32(), pa.float64()), FLOAT),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "number negative"),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32()), "number"),
    pa.int64(): "number large negative",
    pa.uint64(): "number huge large",
}


def families_in(table: pa.Table) -> Columns:
    """Return the families of the values in a table, by column."""
    return {name: family_of(column) for name, column in zip(table.column_names, table.columns, strict=True)}


def family_of(column: Column) -> Family:
    """Return the family of a column's values. The type of a column without values says nothing."""
    return NAN if is_nan_only(column) else _of_values(column)


def _of_values(column: Column) -> Family:
    kind, is_ = column.type, pa.types
    if column.null_count == len(column):
        return NULL
    if is_.is_floating(kind):
        return FLOAT
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if is_.is_integer(kind):
        ends = pc.min_max(column)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        facts = {"large": most > _EXACT or least < -_EXACT, "negative": least < 0, "huge": most > _INT64_MAX}
    elif is_.is_timestamp(kind) or is_.is_duration(kind):
        values = column.drop_null().view(pa.int64()).to_numpy()
        reach = _INT64_MAX // _NS_PER_US
        facts = {
            "fine": kind.unit == "ns" and bool((values % _NS_PER_US).any()),
            "far": kind.unit == "us" and bool(((values > reach) | (values < -reach)).any()),
        }
    elif is_list(kind) or is_.is_struct(kind):
        inner = column.flatten()  # without the values below nulls
        if is_list(kind):
            return ["list", _of_values(inner)]
        return ["struct", {field.name: _of_values(one) for field, one in zip(kind, inner, strict=True)}]
    else:
        return of_type(kind)
    return " ".join([str(of_type(kind)), *sorted(fact for fact, is_true in facts.items() if is_true)])


def of_type(kind: pa.DataType, *, most: bool = False) -> Family:
    """Return the family without facts of a type's values, or the family of all values that the type can hold."""
    is_ = pa.types
    if (family := _MOST.get(kind)) is None:
        if is_list(kind):
            return ["list", of_type(kind.value_type, most=most)]
        if is_.is_struct(kind):
            return ["struct", {field.name: of_type(field.type, most=most) for field in kind}]
        if is_.is_dictionary(kind):  # as identities are stored
            return of_type(kind.value_type, most=most)
        family = "decimal" if is_.is_decimal(kind) else MIXED
        if is_.is_timestamp(kind) or is_.is_duration(kind):
            name = "duration" if is_.is_duration(kind) else "timestamp" if kind.tz is None else "zoned_timestamp"
            family = f"{name} {'fine' if kind.unit == 'ns' else 'far'}"
    # A float without this fact would be an integer.
    return family if most or family == FLOAT else family.split(" ")[0]


def of_column(kind: pa.DataType) -> Family:
    """Return the least family of the values in a column of a type."""
    return NAN if pa.types.is_floating(kind) else of_type(kind)
