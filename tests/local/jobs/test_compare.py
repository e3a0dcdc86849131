"""Two runs of one simulation are compared exactly, and what differs is named."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest

from mops.jobs.compare import differing_losses, differing_tables

NAN = math.nan
DAY = datetime.date(2026, 1, 1)


def said(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return [str(difference) for difference in differing_tables(first, second)]


def of_column(first: Any, second: Any, kind: pa.DataType | None = None) -> list[str]:
    first, second = ({"daily": pa.table({"y": pa.array(values, kind)})} for values in (first, second))
    return said(first, second)


SAME = {
    "numbers": [1, 2, None],
    "NaN": [1.0, NAN, None],
    "infinities": [math.inf, -math.inf],
    "text": ["a", None, ""],
    "NaN in lists": [[1.0, NAN], None, []],
    "NaN in objects": [{"a": NAN, "b": [1]}, None],
    "days": [DAY, None],
    "nothing": [],
}


def test_equal_columns_do_not_differ(subtests: pytest.Subtests) -> None:
    for name, values in SAME.items():
        with subtests.test(name):
            assert of_column(values, values) == []


def test_chunks_do_not_count() -> None:
    whole = {"daily": pa.table({"y": [1.0, NAN, 3.0]})}
    parts = {"daily": pa.concat_tables([whole["daily"].slice(0, 1), whole["daily"].slice(1)])}
    assert said(whole, parts) == []


DIFFERING = {
    "the last bit of a number": ([0.5, 0.1 + 0.2], [0.5, 0.3], "1: 0.30000000000000004 the first time, 0.3"),
    "the sign of zero": ([0.0], [-0.0], "0: 0.0 the first time, -0.0"),
    "null and NaN": ([1.0, None], [1.0, NAN], "1: None the first time, nan"),
    "NaN and a number": ([NAN], [1.0], "0: nan the first time, 1.0"),
    "text": (["a", "b", "c"], ["a", "x", "y"], "1: 'b' the first time, 'x'"),
    "whole numbers": ([1, 2, 3, 4], [1, 2, 3, 5], "3: 4 the first time, 5"),
    "true and false": ([True, None], [True, False], "1: None the first time, False"),
    "the order of rows": ([1, 2], [2, 1], "0: 1 the first time, 2"),
    "days": ([DAY], [DAY + datetime.timedelta(1)], "0: 2026-01-01 the first time, 2026-01-02"),
    "within lists": ([[1.0], [NAN, 2.0]], [[1.0], [NAN, 3.0]], "1: [nan, 2.0] the first time, [nan, 3.0]"),
    "the length of lists": ([[1]], [[1, 1]], "0: [1] the first time, [1, 1]"),
}


def test_the_first_differing_row_is_named_with_both_values(subtests: pytest.Subtests) -> None:
    for name, (first, second, what) in DIFFERING.items():
        with subtests.test(name):
            assert of_column(first, second) == [f"output 'daily', column 'y', row {what} the second"]


def test_nanoseconds_are_compared_and_shown_without_pandas() -> None:
    (line,) = of_column([1, 2], [1, 3], pa.timestamp("ns"))
    assert line.startswith("output 'daily', column 'y', row 1: 1970-01-01 00:00:00.000000002 the first time")


NESTED = {
    "list": (pa.list_, [2], [3], "['1970-01-01 00:00:00.000000002']"),
    "large list": (pa.large_list, [2], [3], "['1970-01-01 00:00:00.000000002']"),
    "list of one length": (lambda kind: pa.list_(kind, 1), [2], [3], "['1970-01-01 00:00:00.000000002']"),
    "struct": (lambda kind: pa.struct({"at": kind}), {"at": 2}, {"at": 3}, "{'at': '1970-01-01 00:00:00.000000002'}"),
}


def test_nanoseconds_in_nested_columns_are_compared_and_shown(subtests: pytest.Subtests) -> None:
    for name, (kind, first, second, shown) in NESTED.items():
        with subtests.test(name):
            (line,) = of_column([first, first], [first, second], kind(pa.timestamp("ns")))
            assert line.startswith(f"output 'daily', column 'y', row 1: {shown} the first time")


def test_a_nested_type_that_arrow_cannot_cast_is_compared_and_shown() -> None:
    assert of_column([[1], [2]], [[1], [3]], pa.list_view(pa.int64())) == [
        "output 'daily', column 'y', row 1: [2] the first time, [3] the second"
    ]


def test_long_values_are_cut() -> None:
    (line,) = of_column(["a" * 1000], ["b" * 1000])
    assert len(line) < 300


def test_types_count_where_values_are_equal() -> None:
    first, second = ({"daily": pa.table({"y": pa.array([1], kind)})} for kind in (pa.int32(), pa.int64()))
    assert said(first, second) == ["output 'daily', column 'y': int32 the first time, int64 the second"]


def test_outputs_columns_and_rows_that_come_and_go_are_named() -> None:
    first = {"daily": pa.table({"a": [1, 2], "b": [1, 2]}), "gone": pa.table({"a": [1]})}
    second = {"daily": pa.table({"a": [1], "c": [1]}), "new": pa.table({"a": [1]})}
    assert said(first, second) == [
        "output 'daily', rows: 2 the first time, 1 the second",
        "output 'daily', column 'b': int64 the first time, absent the second",
        "output 'daily', column 'c': absent the first time, int64 the second",
        "output 'gone': present the first time, absent the second",
        "output 'new': absent the first time, present the second",
    ]


def test_the_order_of_outputs_and_of_columns_does_not_count() -> None:
    """A job stores columns in the order of its reference schema."""
    first = {"a": pa.table({"x": [1], "y": [2]}), "b": pa.table({"x": [1]})}
    second = {"b": pa.table({"x": [1]}), "a": pa.table({"y": [2], "x": [1]})}
    assert said(first, second) == []


def test_losses_are_compared_by_target_and_name() -> None:
    first = {("m:fit", "rmse"): 0.1, ("m:fit", "bias"): 1.0, ("m:other", "loss"): 2.0}
    second = {("m:fit", "rmse"): 0.2, ("m:other", "loss"): 2.0}
    assert list(map(str, differing_losses(first, second))) == [
        "target 'm:fit', loss 'rmse': 0.1 the first time, 0.2 the second",
        "target 'm:fit', loss 'bias': 1.0 the first time, absent the second",
    ]
