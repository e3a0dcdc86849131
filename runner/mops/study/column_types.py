"""Finds the families of the values in Arrow columns, and the types that store them exactly.

column_families.py explains families. Child processes import this: only the standard library, numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from mops.study.casts import Column, inner_arrays, inner_types, is_nan_only
from mops.study.column_families import (
    DECIMAL_DIGITS,
    MIXED,
    NAN,
    NULL,
    TIMED,
    UNITS,
    Columns,
    Families,
    Family,
    is_number,
    joined,
    number,
    said,
)

_EXACT = 2**53
_INT64_MAX = 2**63 - 1
_DECIMAL128_DIGITS = 38
_PER_UNIT = 1000
_COARSEST_STORED = "ms"  # Parquet has no seconds

_ANY_NUMBER = {
    pa.int64(): number(("large", "negative")),
    pa.uint64(): number(("large", "huge")),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), number(("negative",))),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32()), number()),
}
_SAID_BY_FAMILY = {
    "number float": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
}


def families_of(tables: Mapping[str, pa.Table]) -> Families:
    """Return the families of the values in these tables, by output and column."""
    return {output: families_in(table) for output, table in tables.items()}


def families_in(table: pa.Table) -> Columns:
    """Return the families of the values in a table, by column."""
    return {name: family_of(column) for name, column in zip(table.column_names, table.columns, strict=True)}


def family_of(column: Column) -> Family:
    """Return the family of a column's values. The type of a column without values says nothing."""
    return NAN if is_nan_only(column) else _values_family(column)


def _values_family(column: Column) -> Family:
    if column.null_count == len(column):
        return NULL
    kind = column.type
    if pa.types.is_floating(kind):
        return "number float"
    array = _one_array(column)
    if pa.types.is_integer(kind):
        return _integers(array)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _timed(array)
    if pa.types.is_dictionary(kind):
        return _values_family(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return _values_family(array.storage)
    if (inner := inner_arrays(array)) is None:
        return _plain_family(kind)
    families = list(map(_values_family, inner))
    if pa.types.is_map(kind):  # keys are never null, so their type says their family
        families[0] = joined(families[0], _least_of(kind.key_type))
    return _nested(kind, families)


def _one_array(column: Column) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _integers(array: pa.Array) -> str:
    ends = pc.min_max(array)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    facts = {"large"} if most > _EXACT or least < -_EXACT else set()
    if least < 0:
        facts.add("negative")
    if most > _INT64_MAX:
        facts.add("huge")
    return number(facts)


def _timed(array: pa.Array) -> str:
    """Return the family of times: the coarsest unit that is exact, and the finest unit that 64 bits hold."""
    values = array.drop_null().view(pa.int64()).to_numpy()
    need = room = array.type.unit
    furthest = max(abs(int(values.min())), abs(int(values.max())))
    while need not in ("s", _COARSEST_STORED) and not (values % _PER_UNIT).any():
        values, need = values // _PER_UNIT, UNITS[UNITS.index(need) - 1]
    while room != UNITS[-1] and furthest * _PER_UNIT <= _INT64_MAX:
        furthest, room = furthest * _PER_UNIT, UNITS[UNITS.index(room) + 1]
    return _timed_family(array.type, max(need, _COARSEST_STORED, key=UNITS.index), room)


def _timed_family(kind: pa.DataType, need: str, room: str) -> str:
    if pa.types.is_duration(kind):
        return f"duration {need} {room}"
    return f"{'timestamp' if kind.tz is None else 'zoned_timestamp'} {need} {room}"


def _nested(kind: pa.DataType, inner: Sequence[Family]) -> Family:
    if pa.types.is_struct(kind):
        fields = dict(zip([field.name for field in kind], inner, strict=True))
        return ["struct", fields] if len(fields) == len(inner) else f"other {kind}"  # two fields of one name
    return ["map" if pa.types.is_map(kind) else "list", *inner]


def _plain_family(kind: pa.DataType) -> str:
    """Return the family of a type whose values all have the same family."""
    is_ = pa.types
    if is_.is_decimal(kind):
        return f"decimal {kind.precision - kind.scale} {max(kind.scale, 0)}"
    tests: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        (NULL, is_.is_null),
        ("boolean", is_.is_boolean),
        ("string", lambda t: is_.is_string(t) or is_.is_large_string(t) or is_.is_string_view(t)),
        ("binary", lambda t: is_.is_binary(t) or is_.is_large_binary(t) or is_.is_binary_view(t)),
        ("binary", is_.is_fixed_size_binary),
        ("date", is_.is_date),
        ("time", is_.is_time),
    )
    return next((name for name, test in tests if test(kind)), f"other {kind}")


def most_of(kind: pa.DataType) -> Family:
    """Return the family of all values that a type can hold. If that family fits, every value fits."""
    if pa.types.is_integer(kind):
        return _ANY_NUMBER[kind]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        need = max(kind.unit, _COARSEST_STORED, key=UNITS.index)
        return _timed_family(kind, need, kind.unit) if need == kind.unit else MIXED
    return _of_type(kind, most_of)


def least_of(kind: pa.DataType) -> Family:
    """Return the least family of a value of a type: what the type alone says of a column."""
    return NAN if pa.types.is_floating(kind) else _least_of(kind)


def _least_of(kind: pa.DataType) -> Family:
    if pa.types.is_integer(kind):
        return number()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _timed_family(kind, _COARSEST_STORED, UNITS[-1])
    return _of_type(kind, _least_of)


def _of_type(kind: pa.DataType, of: Callable[[pa.DataType], Family]) -> Family:
    if pa.types.is_floating(kind):
        return "number float"
    if pa.types.is_dictionary(kind):
        return of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return of(kind.storage_type)
    inner = inner_types(kind)
    if inner is None:
        return _plain_family(kind)
    families = list(map(of, inner))
    return MIXED if MIXED in families else _nested(kind, families)


def used_type(column: Column) -> pa.DataType:
    """Return a column's type with null where it holds no value, which reads as any other type."""
    if column.null_count == len(column):
        return pa.null()
    if inner_types(column.type) is None:
        return column.type
    inner = list(map(used_type, inner_arrays(_one_array(column)) or []))
    if pa.types.is_map(column.type):
        inner[0] = column.type.key_type
        return pa.map_(*inner)
    if pa.types.is_struct(column.type):
        return pa.struct(list(zip([field.name for field in column.type], inner, strict=True)))
    return pa.list_(inner[0])


def storage_type(types: Iterable[pa.DataType], family: Family = NULL) -> pa.DataType:
    """Return the type that holds all values of columns of these types. ValueError: they are of different families."""
    kinds = [kind for kind in dict.fromkeys(types) if not pa.types.is_null(kind)]
    if family not in (NULL, NAN) and not is_number(family):
        kinds = [kind for kind in kinds if not pa.types.is_floating(kind)]  # their values are NaN, and read as null
    if not kinds:
        return pa.null()
    whole = reduce(joined, map(_least_of, kinds), family)
    if whole == MIXED:
        known = "" if family == NULL else f" in a column that holds {said(family)} values"
        raise ValueError(f"no type holds {' and '.join(map(str, kinds))}{known}")
    if isinstance(whole, str):
        return _plain_storage(kinds, whole)
    if whole[0] == "struct":
        fields = [(f.name, [kind.field(f.name).type for kind in kinds]) for f in kinds[0]]
        return pa.struct([(name, storage_type(types, whole[1][name])) for name, types in fields])
    columns = zip(*(inner_types(kind) or [] for kind in kinds), strict=True)
    inner = [storage_type(types, of) for types, of in zip(columns, whole[1:], strict=True)]
    return pa.map_(*inner) if whole[0] == "map" else pa.list_(inner[0])


def type_said(family: Family) -> pa.DataType:
    """Return the type of a column without values by its family; null: the type depends on later values."""
    return _SAID_BY_FAMILY.get(family, pa.null()) if isinstance(family, str) else pa.null()


def _plain_storage(kinds: Sequence[pa.DataType], family: str) -> pa.DataType:
    kind, *facts = family.split(" ")
    if kind == "number":
        floats = [one for one in kinds if pa.types.is_floating(one)]
        if "float" in facts:
            return max(floats, key=attrgetter("bit_width")) if len(floats) == len(kinds) else pa.float64()
        if len({pa.types.is_signed_integer(one) for one in kinds}) == 1:
            return max(kinds, key=attrgetter("bit_width"))
        return pa.uint64() if "huge" in facts else pa.int64()
    if kind in TIMED:
        need, room = facts
        finest = max((one.unit for one in kinds), key=UNITS.index)
        unit = min(max(finest, need, key=UNITS.index), room, key=UNITS.index)
        if kind == "duration":
            return pa.duration(unit)
        zones = {one.tz for one in kinds}
        return pa.timestamp(unit, zones.pop() if len(zones) == 1 else "UTC")
    if kind == "decimal" and len(kinds) > 1:
        before, behind = map(int, facts)
        make = pa.decimal128 if before + behind <= _DECIMAL128_DIGITS else pa.decimal256
        return make(min(before + behind, DECIMAL_DIGITS), behind)
    if kind == "time":
        finest = max((one.unit for one in kinds), key=UNITS.index)
        return pa.time64(finest) if finest in ("us", "ns") else pa.time32("ms")
    one_type = {"string": pa.string(), "date": pa.date32()}
    if kind == "binary" and len(kinds) > 1:
        return pa.binary()
    return one_type.get(kind, kinds[0])
