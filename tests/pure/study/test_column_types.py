"""The family of the values of an Arrow column, the type that stores columns of several types, and the conversion."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from mops.study.casts import converted
from mops.study.column_families import MIXED, NAN, NULL, Family
from mops.study.column_types import (
    families_of,
    family_of,
    least_of,
    most_of,
    storage_type,
    type_said,
    used_type,
)

BERN = "Europe/Zurich"


@pytest.mark.parametrize(
    ("values", "kind", "family"),
    [
        ([None], pa.int8(), NULL),
        ([], pa.string(), NULL),
        ([0, None], pa.int8(), "number"),
        ([2**53], pa.int64(), "number"),
        ([2**53 + 1], pa.int64(), "number large"),
        ([-(2**53), 1], pa.int64(), "number negative"),
        ([-(2**53) - 1], pa.int64(), "number large negative"),
        ([2**63 - 1], pa.uint64(), "number large"),
        ([2**63], pa.uint64(), "number huge large"),
        ([1.0], pa.float32(), "number float"),
        ([math.nan, None], pa.float32(), NAN),
        ([math.nan, 1.0], pa.float64(), "number float"),
        ([[math.nan]], pa.list_(pa.float64()), ["list", "number float"]),  # Arrow reads these as the text "nan"
        (["a", "b"], pa.dictionary(pa.int8(), pa.string()), "string"),
        ([[1], [-1]], pa.list_(pa.int8()), ["list", "number negative"]),
        (
            [{"a": 1, "b": None}],
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            ["struct", {"a": "number", "b": NULL}],
        ),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int8()), ["map", "string", "number"]),
    ],
)
def test_the_family_of_a_column_is_that_of_its_values(values: list[Any], kind: pa.DataType, family: Family) -> None:
    column = pa.array(values, kind)
    assert family_of(column) == family
    assert families_of({"out": pa.table({"x": column})}) == {"out": {"x": family}}
    assert family_of(pa.chunked_array([column, column[:0], column], kind)) == family


@pytest.mark.parametrize(
    ("value", "unit", "span"),
    [
        (1, "s", "ms ns"),  # no seconds in Parquet
        (1, "ms", "ms ns"),
        (1, "us", "us ns"),
        (1, "ns", "ns ns"),
        (1_000, "ns", "us ns"),
        (-1_000_000, "ns", "ms ns"),
        (10**9, "ns", "ms ns"),
        ((2**63 - 1) // 10**9, "s", "ms ns"),
        ((2**63 - 1) // 10**9 + 1, "s", "ms us"),
        (-((2**63 - 1) // 10**6) - 1, "s", "ms ms"),
        ((2**63 - 1) // 10**3 + 1, "s", "ms s"),
    ],
)
def test_the_family_of_times_has_the_units_that_hold_them_exactly(value: int, unit: str, span: str) -> None:
    def of(kind: pa.DataType) -> Family:
        return family_of(pa.array([0, value, None], pa.int64()).view(kind))

    assert of(pa.timestamp(unit)) == f"timestamp {span}"
    assert of(pa.timestamp(unit, BERN)) == f"zoned_timestamp {span}"
    assert of(pa.duration(unit)) == f"duration {span}"


PLAIN: list[tuple[pa.DataType, Family]] = [
    (pa.null(), NULL),
    (pa.bool_(), "boolean"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary_view(), "binary"),
    (pa.binary(4), "binary"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.time32("s"), "time"),
    (pa.time64("ns"), "time"),
    (pa.decimal128(10, 2), "decimal 8 2"),
    (pa.decimal128(5, -2), "decimal 7 0"),
    (pa.month_day_nano_interval(), "other month_day_nano_interval"),
    (pa.dictionary(pa.int8(), pa.string()), "string"),
    (pa.uuid(), "binary"),
    (pa.list_(pa.bool_()), ["list", "boolean"]),
    (pa.large_list(pa.bool_()), ["list", "boolean"]),
    (pa.list_(pa.bool_(), 2), ["list", "boolean"]),
    (pa.list_view(pa.bool_()), ["list", "boolean"]),
    (pa.large_list_view(pa.bool_()), ["list", "boolean"]),
    (pa.map_(pa.string(), pa.bool_()), ["map", "string", "boolean"]),
    (pa.struct([("a", pa.bool_()), ("b", pa.date32())]), ["struct", {"a": "boolean", "b": "date"}]),
    (pa.struct([("a", pa.bool_()), ("a", pa.date32())]), "other struct<a: bool, a: date32[day]>"),
]


@pytest.mark.parametrize(("kind", "family"), PLAIN, ids=str)
def test_all_values_of_most_types_have_one_family(kind: pa.DataType, family: Family) -> None:
    assert least_of(kind) == most_of(kind) == family


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (pa.int8(), "number", "number negative"),
        (pa.uint32(), "number", "number"),
        (pa.int64(), "number", "number large negative"),
        (pa.uint64(), "number", "number huge large"),
        (pa.list_(pa.int64()), ["list", "number"], ["list", "number large negative"]),
        (pa.float16(), NAN, "number float"),
        (pa.list_(pa.float32()), ["list", "number float"], ["list", "number float"]),
        (pa.timestamp("us"), "timestamp ms ns", "timestamp us us"),
        (pa.duration("ms"), "duration ms ns", "duration ms ms"),
        (pa.timestamp("s", BERN), "zoned_timestamp ms ns", MIXED),  # those that milliseconds do not reach
        (pa.list_(pa.timestamp("s")), ["list", "timestamp ms ns"], MIXED),
    ],
)
def test_the_values_of_a_number_or_time_type_have_a_range_of_families(
    kind: pa.DataType, least: Family, most: Family
) -> None:
    assert (least_of(kind), most_of(kind)) == (least, most)


@pytest.mark.parametrize(
    ("types", "family", "stored"),
    [
        ([], NULL, pa.null()),
        ([pa.null()], NULL, pa.null()),
        ([pa.null(), pa.int8(), pa.int8()], NULL, pa.int8()),
        ([pa.int8(), pa.int32(), pa.int16()], NULL, pa.int32()),
        ([pa.uint8(), pa.uint16()], NULL, pa.uint16()),
        ([pa.uint8(), pa.int8()], NULL, pa.int64()),
        ([pa.uint64(), pa.int8()], "number huge large", pa.uint64()),
        ([pa.float32()], NULL, pa.float32()),
        ([pa.float32(), pa.float64(), pa.float16()], NULL, pa.float64()),
        ([pa.float32(), pa.int8()], NULL, pa.float64()),
        ([pa.int8()], "number float", pa.float64()),
        ([pa.float32()], NAN, pa.float32()),
        ([pa.float64(), pa.string(), pa.float32()], "string", pa.string()),  # floats that are all NaN
        ([pa.float64()], "date", pa.null()),
        ([pa.timestamp("s")], NULL, pa.timestamp("ms")),
        ([pa.timestamp("us"), pa.timestamp("ms")], NULL, pa.timestamp("us")),
        ([pa.timestamp("ns"), pa.timestamp("s")], "timestamp ms us", pa.timestamp("us")),
        ([pa.timestamp("ms")], "timestamp us ns", pa.timestamp("us")),
        ([pa.timestamp("ms", BERN)], NULL, pa.timestamp("ms", BERN)),
        ([pa.timestamp("ms", BERN), pa.timestamp("us", "Asia/Tokyo")], NULL, pa.timestamp("us", "UTC")),
        ([pa.duration("s"), pa.duration("us")], NULL, pa.duration("us")),
        ([pa.decimal128(10, 2)], NULL, pa.decimal128(10, 2)),
        ([pa.decimal128(10, 2), pa.decimal128(5, 4)], NULL, pa.decimal128(12, 4)),
        ([pa.decimal128(38, 0), pa.decimal128(2, 0)], NULL, pa.decimal128(38, 0)),
        ([pa.decimal128(38, 0), pa.decimal128(1, 1)], NULL, pa.decimal256(39, 1)),
        ([pa.time32("s"), pa.time32("ms")], NULL, pa.time32("ms")),
        ([pa.time32("s")], NULL, pa.time32("ms")),
        ([pa.time32("s"), pa.time64("us")], NULL, pa.time64("us")),
        ([pa.time64("ns"), pa.time64("us")], NULL, pa.time64("ns")),
        ([pa.large_string()], NULL, pa.string()),
        ([pa.date64()], NULL, pa.date32()),
        ([pa.binary(4)], NULL, pa.binary(4)),
        ([pa.binary(4), pa.binary(8)], NULL, pa.binary()),
        ([pa.bool_()], NULL, pa.bool_()),
        ([pa.large_list(pa.int8()), pa.list_(pa.int16(), 2)], NULL, pa.list_(pa.int16())),
        (
            [pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.int16())],
            NULL,
            pa.map_(pa.string(), pa.int16()),
        ),
        (
            [pa.struct([("b", pa.int8()), ("a", pa.null())]), pa.struct([("a", pa.date64()), ("b", pa.int16())])],
            NULL,
            pa.struct([("b", pa.int16()), ("a", pa.date32())]),
        ),
        ([pa.list_(pa.int8())], ["list", "number float"], pa.list_(pa.float64())),
    ],
)
def test_the_type_that_stores_columns_of_several_types(
    types: list[pa.DataType], family: Family, stored: pa.DataType
) -> None:
    assert storage_type(types, family) == stored


@pytest.mark.parametrize(
    ("types", "family", "message"),
    [
        ([pa.int8(), pa.string()], NULL, r"no type holds int8 and string$"),
        ([pa.string()], "number", r"no type holds string in a column that holds number values$"),
    ],
)
def test_no_type_stores_columns_of_different_families(types: list[pa.DataType], family: Family, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        storage_type(types, family)


def test_a_family_gives_a_type_only_if_no_value_can_change_it() -> None:
    families: list[Family] = ["number float", "boolean", "string", "date", "number", ["list", "string"]]
    assert [type_said(family) for family in families] == [
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.date32(),
        pa.null(),
        pa.null(),
    ]


LIST, MAP = pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8())
STRUCT = pa.struct([("a", pa.int8()), ("b", LIST)])


@pytest.mark.parametrize(
    ("column", "used"),
    [
        (pa.array([None, None], pa.int8()), pa.null()),
        (pa.array([[None, None], [None]], LIST), pa.list_(pa.null())),
        (pa.array([[], None], LIST), pa.list_(pa.null())),
        (pa.array([{"a": None, "b": [None]}, None], STRUCT), pa.struct([("a", pa.null()), ("b", pa.list_(pa.null()))])),
        (pa.array([[("k", None)], [], None], MAP), pa.map_(pa.string(), pa.null())),
        (pa.array([[[None], None]], pa.list_(LIST)), pa.list_(pa.list_(pa.null()))),
    ],
)
def test_a_column_without_values_has_the_type_null(column: pa.Array, used: pa.DataType) -> None:
    """A list of nulls only killed the runner: Arrow casts it to an invalid array."""
    assert used_type(column) == used
    stored = converted(column, used)
    stored.validate(full=True)
    assert stored.to_pylist() == column.to_pylist()


def test_an_empty_map_fixes_the_family_of_its_keys_only() -> None:
    assert family_of(pa.array([[]], MAP)) == ["map", "string", "null"]


def test_a_column_of_maps_has_the_families_of_its_keys_and_values() -> None:
    """Each result with a column of maps failed: pyarrow's kernels for lists do not accept maps."""
    maps = pa.array([[("a", 2**60)], [("b", 1)], None, [], [("c", None)]], pa.map_(pa.string(), pa.int64()))
    assert family_of(maps) == ["map", "string", "number large"]
    assert family_of(maps[1:4]) == ["map", "string", "number"]
    assert used_type(maps[4:]) == pa.map_(pa.string(), pa.null())
