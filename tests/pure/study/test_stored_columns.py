"""Columns that are stored as another type of their family keep their values, and what holds none reads as any type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mops.study.column_types import converted, family_of, storage_type, used_type

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
def test_what_holds_no_value_has_the_type_null(column: pa.Array, used: pa.DataType) -> None:
    """A list of nothing but nulls ended the runner: Arrow casts it to an invalid array."""
    assert used_type(column) == used
    stored = converted(column, used)
    stored.validate(full=True)
    assert stored.to_pylist() == column.to_pylist()


WIDER: list[tuple[Any, pa.DataType, pa.DataType]] = [
    ([[1, None], None, []], LIST, pa.list_(pa.float64())),
    ([{"a": 1, "b": [2]}, None], STRUCT, pa.struct([("b", pa.list_(pa.int64())), ("a", pa.float64())])),
    ([[("k", 1)], None, [("l", None), ("m", 3)]], MAP, pa.map_(pa.string(), pa.float64())),
    ([{"a": None, "b": []}], STRUCT, pa.struct([("a", pa.string()), ("b", pa.list_(pa.list_(pa.date32())))])),
]


@pytest.mark.parametrize(("values", "kind", "wider"), WIDER)
@pytest.mark.parametrize("start", [0, 1])
def test_nested_columns_and_slices_of_them_keep_their_values(
    values: list[Any], kind: pa.DataType, wider: pa.DataType, start: int
) -> None:
    column = pa.array(values, kind).slice(start)
    stored = converted(column, wider)
    stored.validate(full=True)
    assert (stored.type, stored.to_pylist()) == (wider, column.to_pylist())


def test_an_empty_map_fixes_the_family_of_its_keys_only() -> None:
    assert family_of(pa.array([[]], MAP)) == ["map", "string", "null"]


def test_encodings_of_lists_are_stored_as_lists() -> None:
    assert storage_type([pa.large_list(pa.int8()), pa.list_(pa.int64(), 2)]) == pa.list_(pa.int64())
