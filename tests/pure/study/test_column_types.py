"""Families of the values in columns: any order of joining gives the same family, and errors name what does not fit."""

from __future__ import annotations

import json
import math
from functools import reduce

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.study.column_families import (
    MIXED,
    NAN,
    NULL,
    Family,
    is_family,
    join_columns,
    join_families,
    joined,
    misfits,
    news,
    refusal,
    said,
)
from mops.study.column_types import families_in, family_of, of_column, of_type

BERN = "Europe/Zurich"
NUMBERS = [
    "number",
    "number float",
    "number large",
    "number huge large",
    "number negative",
    "number large negative",
    "number float negative",
]
TIMES = [f"{kind}{fact}" for kind in ("timestamp", "zoned_timestamp", "duration") for fact in ("", " far", " fine")]
PLAIN: st.SearchStrategy[Family] = st.sampled_from(
    [NULL, NAN, "boolean", "string", "binary", "date", "time", "decimal", *NUMBERS, *TIMES]
)
FAMILIES: st.SearchStrategy[Family] = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda one: ["list", one]),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(lambda fields: ["struct", fields]),
    ),
    max_leaves=4,
)


def test_the_family_of_a_column_is_that_of_its_values(subtests: pytest.Subtests) -> None:
    for values, kind, family in [
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
        ([[1], [-1]], pa.list_(pa.int8()), ["list", "number negative"]),
        (
            [{"a": 1, "b": None}],
            pa.struct([("a", pa.int8()), ("b", pa.string())]),
            ["struct", {"a": "number", "b": NULL}],
        ),
    ]:
        with subtests.test(str((values, kind, family))):
            column = pa.array(values, kind)
            assert family_of(column) == family
            assert families_in(pa.table({"x": column})) == {"x": family}
            assert family_of(pa.chunked_array([column, column[:0], column], kind)) == family


def test_the_family_of_times_says_which_unit_holds_them(subtests: pytest.Subtests) -> None:
    for value, unit, fact in [
        (1, "us", ""),
        (1, "ns", " fine"),
        (-1_001, "ns", " fine"),
        (-1_000, "ns", ""),
        ((2**63 - 1) // 1000, "us", ""),
        ((2**63 - 1) // 1000 + 1, "us", " far"),
        (-((2**63 - 1) // 1000) - 1, "us", " far"),
        (-(2**63), "us", " far"),
    ]:
        with subtests.test(str((value, unit, fact))):

            def of(kind: pa.DataType, value: int = value) -> Family:
                column = pa.array([0, value, None], pa.int64()).view(kind)
                return family_of(pa.chunked_array([column, column[:1], column[:0]]))

            assert of(pa.timestamp(unit)) == f"timestamp{fact}"
            assert of(pa.timestamp(unit, BERN)) == f"zoned_timestamp{fact}"
            assert of(pa.duration(unit)) == f"duration{fact}"


def test_a_type_has_a_least_and_a_largest_family(subtests: pytest.Subtests) -> None:
    for kind, least, most in [
        (pa.null(), NULL, NULL),
        (pa.bool_(), "boolean", "boolean"),
        (pa.string(), "string", "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string", "string"),
        (pa.binary(), "binary", "binary"),
        (pa.date32(), "date", "date"),
        (pa.time64("ns"), "time", "time"),
        (pa.decimal128(10, 2), "decimal", "decimal"),
        (pa.month_day_nano_interval(), MIXED, MIXED),
        (pa.int8(), "number", "number negative"),
        (pa.uint32(), "number", "number"),
        (pa.int64(), "number", "number large negative"),
        (pa.uint64(), "number", "number huge large"),
        (pa.list_(pa.int64()), ["list", "number"], ["list", "number large negative"]),
        (pa.float32(), NAN, "number float"),
        (pa.list_(pa.float32()), ["list", "number float"], ["list", "number float"]),
        (pa.timestamp("us"), "timestamp", "timestamp far"),
        (pa.timestamp("ns", BERN), "zoned_timestamp", "zoned_timestamp fine"),
        (pa.duration("ns"), "duration", "duration fine"),
        (
            pa.struct([("a", pa.bool_()), ("b", pa.int8())]),
            ["struct", {"a": "boolean", "b": "number"}],
            ["struct", {"a": "boolean", "b": "number negative"}],
        ),
    ]:
        with subtests.test(str((kind, least, most))):
            assert of_column(kind) == least
            assert of_type(kind, most=True) == most


@given(FAMILIES, FAMILIES, FAMILIES)
def test_the_order_of_joining_does_not_matter(one: Family, other: Family, third: Family) -> None:
    assert joined(one, other) == joined(other, one)
    assert joined(joined(one, other), third) == joined(one, joined(other, third))


@given(FAMILIES)
def test_a_family_joined_with_itself_or_nothing_is_itself(one: Family) -> None:
    assert joined(one, one) == joined(one, NULL) == joined(NULL, one) == one
    assert joined(one, MIXED) == MIXED


@given(FAMILIES, FAMILIES)
def test_families_that_do_not_fit_are_refused(one: Family, other: Family) -> None:
    if joined(one, other) == MIXED:
        assert refusal(one, other, "the type")
    assert said(one)


def test_two_families_join_to_one_that_holds_both(subtests: pytest.Subtests) -> None:
    for one, other, both in [
        ("number float", "number negative", "number float negative"),
        ("number float", "number large", MIXED),
        (NAN, "number negative", "number float negative"),
        (NAN, "number large", MIXED),
        (NAN, "string", "string"),
        (NAN, ["list", "number"], ["list", "number"]),
        ("number huge large", "number negative", MIXED),
        ("decimal", "decimal", "decimal"),
        ("timestamp", "timestamp far", "timestamp far"),
        ("duration fine", "duration", "duration fine"),
        ("timestamp fine", "timestamp far", MIXED),
        ("timestamp", "zoned_timestamp", MIXED),
        ("binary", "string", MIXED),
        ("string", ["list", "string"], MIXED),
        (["list", "number"], ["list", "number float"], ["list", "number float"]),
        (["list", "number"], ["list", "string"], MIXED),
        (["list", "number"], ["struct", {"a": "number"}], MIXED),
        (
            ["struct", {"a": NULL, "b": "date"}],
            ["struct", {"b": NULL, "a": "time"}],
            ["struct", {"a": "time", "b": "date"}],
        ),
        (["struct", {"a": "date"}], ["struct", {"a": "time"}], MIXED),
        (["struct", {"a": "date"}], ["struct", {"a": "date", "b": "date"}], MIXED),
    ]:
        with subtests.test(str((one, other, both))):
            assert joined(one, other) == joined(other, one) == both


def test_a_family_has_a_readable_name(subtests: pytest.Subtests) -> None:
    for family, text in [
        ("number float large", "number"),
        ("decimal", "decimal"),
        ("timestamp far", "timestamp without a time zone"),
        ("zoned_timestamp fine", "timestamp with a time zone"),
        ("time", "time of day"),
        (["list", "time"], "list of time of day"),
        (["struct", {"a": "date", "b": ["list", "number"]}], "struct of a: date, b: list of number"),
    ]:
        with subtests.test(str((family, text))):
            assert said(family) == text


def test_joined_columns_keep_their_order() -> None:
    known = {"b": "number", "a": NULL}
    assert list(join_columns(known, {"c": "date", "a": "time"}).items()) == [
        ("b", "number"),
        ("a", "time"),
        ("c", "date"),
    ]


def test_only_columns_that_do_not_fit_are_misfits() -> None:
    assert misfits({"a": "number", "b": "date"}, {"a": "number float", "b": "time", "c": "string"}) == ["b"]


@given(FAMILIES)
def test_a_family_is_valid_after_a_round_trip_through_json(family: Family) -> None:
    assert is_family(json.loads(json.dumps(family)))


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), FAMILIES), max_size=5))
def test_what_is_new_completes_what_is_known(several: list[dict[str, Family]]) -> None:
    known: dict[str, dict[str, Family]] = {}
    for columns in several:
        more = news(known, {"out": columns})
        whole = join_families(known, {"out": columns})
        assert join_families(known, more) == {name: columns for name, columns in whole.items() if name in known or more}
        assert news(whole, {"out": columns}) == {}
        known = join_families(known, more)
    assert known.get("out", {}) == reduce(lambda a, b: join_families({"o": a}, {"o": b})["o"], several, {}) or not known


def test_a_refusal_names_the_value_or_the_types(subtests: pytest.Subtests) -> None:
    for known, found, text in [
        ("number float", "number large", "holds an integer beyond 2^53 in a column that also holds floats"),
        ("number large", "number float", "holds a float in a column that also holds an integer beyond 2^53"),
        ("number large", NAN, "holds a float in a column that also holds an integer beyond 2^53"),
        (NAN, "number large", "holds an integer beyond 2^53 in a column that also holds floats"),
        ("number huge large", "number negative", "holds a negative number in a column"),
        ("number negative", "number huge large", "holds an integer beyond 2^63-1 in a column"),
        ("number", "string", "is the type, not a number"),
        ("timestamp", "zoned_timestamp", "is the type, not a timestamp without a time zone"),
        ("timestamp fine", "timestamp far", "holds a time that nanoseconds do not reach, in a column"),
        ("duration far", "duration fine", "holds nanoseconds in a column"),
        ("timestamp fine", "duration far", "is the type, not a timestamp without a time zone"),
        (["list", "number float"], ["list", "number large"], "holds an integer beyond 2^53"),
        (["list", "number"], ["list", "string"], "is the type, not a list of number"),
        (["struct", {"a": "number"}], ["struct", {"b": "number"}], "is the type, not a struct of a: number"),
        ("boolean", "date", "is the type, not a boolean"),
        ("number", ["list", "number"], "is the type, not a number"),
        (["list", "number"], ["struct", {"a": "number"}], "is the type, not a list of number"),
        (
            ["struct", {"a": "date", "b": "number negative"}],
            ["struct", {"a": "date", "b": "number huge large"}],
            "holds an integer beyond 2^63-1 in a column",
        ),
    ]:
        with subtests.test(str((known, found, text))):
            assert misfits({"x": known}, {"x": found}) == ["x"]
            assert text in refusal(known, found, "the type")


def test_a_malformed_family_is_not_valid(subtests: pytest.Subtests) -> None:
    for wrong in [
        1,
        "nested",
        "boolean float",
        "number fast",
        "decimal 3 2",
        "timestamp ms",
        "number fine",
        [],
        ["set", "number"],
        ["list"],
        ["list", "number", "number"],
        ["struct"],
        ["struct", ["number"]],
        ["struct", {}, {}],
        ["list", ["struct", {"a": "number", "b": "nested"}]],
    ]:
        with subtests.test(str(wrong)):
            assert not is_family(wrong)
