"""One function converts columns: it keeps every value or raises, and nothing else in mops casts."""

from __future__ import annotations

import ast
import datetime as dt
import math
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mops
from mops.study.casts import converted, converted_table, nearest_floats

PACKAGE = Path(mops.__file__).parent
MAY_CAST = {"study/casts.py", "child/channel.py"}  # the latter casts a memoryview, which is not Arrow data

Leaf: TypeAlias = tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]

LEAVES: list[Leaf] = [
    (pa.null(), pa.float64(), st.none()),
    (pa.int8(), pa.null(), st.none()),
    (pa.int8(), pa.int64(), st.integers(-128, 127)),
    (pa.uint8(), pa.float64(), st.integers(0, 255)),
    (pa.float32(), pa.float64(), st.floats(width=32, allow_nan=False)),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), st.text(max_size=2)),
    (pa.string_view(), pa.string(), st.text(max_size=2)),
    (pa.timestamp("ms"), pa.timestamp("us"), st.integers(0, 59).map(lambda s: dt.datetime(2020, 1, 1, 0, 0, s))),
    (pa.binary(1), pa.binary(), st.binary(min_size=1, max_size=1)),
]


def _lists(inner: Leaf) -> st.SearchStrategy[Leaf]:
    kind, wide, values = inner
    some = st.lists(st.none() | values, max_size=3)
    makers = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    return st.sampled_from(
        [
            *((make(kind), pa.list_(wide), some) for make in makers),
            (pa.list_(kind, 2), pa.list_(wide), st.lists(st.none() | values, min_size=2, max_size=2)),
        ]
    )


def _structs(a: Leaf, b: Leaf) -> Leaf:
    values = st.fixed_dictionaries({"a": st.none() | a[2], "b": st.none() | b[2]})
    return pa.struct([("a", a[0]), ("b", b[0])]), pa.struct([("b", b[1]), ("a", a[1])]), values


KINDS = st.recursive(
    st.sampled_from(LEAVES), lambda inner: inner.flatmap(_lists) | st.builds(_structs, inner, inner), max_leaves=4
)


@given(KINDS, st.data())
def test_a_conversion_keeps_every_value_in_a_valid_array(leaf: Leaf, data: st.DataObject) -> None:
    """pyarrow's cast of lists of nulls made arrays that no reader accepts, and its cast of list views other values."""
    kind, wide, values = leaf
    rows = data.draw(st.lists(st.none() | values, max_size=5))
    start = data.draw(st.integers(0, len(rows)))
    column = pa.array(rows, kind).slice(start)
    for made in (converted(column, wide), converted(converted(column, wide), wide)):
        made.validate(full=True)
        assert made.type == wide
        assert made.to_pylist() == column.to_pylist()
    chunks = pa.chunked_array([column, column.slice(1)], kind)
    table = converted_table(pa.table({"y": chunks, "x": chunks}), pa.schema([("x", wide)]))
    table.validate(full=True)
    assert table.to_pydict() == {"x": chunks.to_pylist()}


def test_a_conversion_that_would_change_a_value_is_an_error(subtests: pytest.Subtests) -> None:
    for column, kind in [
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([math.nan]), pa.int64()),
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([dt.datetime(2020, 1, 1, 12)]), pa.date32()),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
    ]:
        with subtests.test(str((column, kind))), pytest.raises(pa.ArrowException):
            converted(column, kind)


@given(st.lists(st.none() | st.lists(st.tuples(st.text(max_size=1), st.none() | st.just(1)))), st.integers(0, 3))
def test_maps_become_lists_of_structs(rows: list[Any], start: int) -> None:
    column = pa.array(rows, pa.map_(pa.large_string(), pa.int8()))[start:]
    made = converted(column, pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])))
    made.validate(full=True)
    assert made.to_pylist() == [
        row if row is None else [{"key": key, "value": value} for key, value in row] for row in rows[start:]
    ]


def test_floats_of_which_all_are_nan_are_null_in_another_family() -> None:
    column = pa.array([math.nan, None, math.nan])
    for kind in (pa.string(), pa.timestamp("us"), pa.bool_(), pa.decimal128(3, 1), pa.list_(pa.int8())):
        assert converted(column, kind) == pa.nulls(3, kind)
    assert converted(pa.array([math.nan], pa.float32()), pa.float64())[0].as_py() != 0


def test_the_nearest_floats_have_nan_for_null() -> None:
    found = nearest_floats(pa.chunked_array([[True, None], [False]]))
    assert [None if math.isnan(value) else value for value in found] == [1.0, None, 0.0]
    assert nearest_floats(pa.array([2**53 + 1])).tolist() == [2.0**53]


def test_only_one_module_casts() -> None:
    """`submit --reuse` and `extend` stopped with "damaged": each had a cast of its own."""
    casts = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).as_posix() not in MAY_CAST and ".cast(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cast"
    ]
    assert casts == [], "use mops.study.casts.converted"
