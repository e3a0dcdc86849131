"""Families of column values: joining them in any order gives the same result, and errors name what does not fit."""

from __future__ import annotations

import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.study.column_families import (
    MIXED,
    NAN,
    NULL,
    UNITS,
    Family,
    is_family,
    join_columns,
    join_families,
    joined,
    misfits,
    news,
    number,
    refusal,
    said,
)

FACTS = st.sampled_from([(), ("float",), ("large",), ("huge", "large"), ("negative",), ("large", "negative")])
SPANS = st.tuples(st.sampled_from(UNITS[1:]), st.sampled_from(UNITS)).filter(
    lambda span: UNITS.index(span[0]) <= UNITS.index(span[1])
)
PLAIN: st.SearchStrategy[Family] = st.one_of(
    st.sampled_from([NULL, NAN, "boolean", "string", "binary", "date", "time", "other interval"]),
    FACTS.map(number),
    st.tuples(st.integers(0, 60), st.integers(0, 16)).map(lambda digits: f"decimal {digits[0]} {digits[1]}"),
    st.tuples(st.sampled_from(["timestamp", "zoned_timestamp", "duration"]), SPANS).map(
        lambda found: f"{found[0]} {found[1][0]} {found[1][1]}"
    ),
)
FAMILIES: st.SearchStrategy[Family] = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda one: ["list", one]),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(lambda fields: ["struct", fields]),
        st.tuples(inner, inner).map(lambda two: ["map", *two]),
    ),
    max_leaves=4,
)


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


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("number float", "number negative", "number float negative"),
        ("number float", "number large", MIXED),
        (NAN, "number negative", "number float negative"),
        (NAN, "number large", MIXED),
        (NAN, "string", "string"),
        (NAN, ["list", "number"], ["list", "number"]),
        ("number huge large", "number negative", MIXED),
        ("decimal 10 2", "decimal 3 5", "decimal 10 5"),
        ("decimal 60 0", "decimal 0 16", "decimal 60 16"),
        ("decimal 60 0", "decimal 0 17", MIXED),  # more than 76 digits
        ("timestamp ms ns", "timestamp us us", "timestamp us us"),
        ("duration ms us", "duration us ns", "duration us us"),
        ("timestamp ns ns", "timestamp us us", MIXED),  # one needs nanoseconds, the other is beyond their range
        ("timestamp ms ns", "zoned_timestamp ms ns", MIXED),
        ("other interval", "other fixed", MIXED),
        ("string", ["list", "string"], MIXED),
        (["list", "number"], ["list", "number float"], ["list", "number float"]),
        (["list", "number"], ["list", "string"], MIXED),
        (["list", "number"], ["map", "number", "number"], MIXED),
        (["map", "string", NULL], ["map", "string", "date"], ["map", "string", "date"]),
        (
            ["struct", {"a": NULL, "b": "date"}],
            ["struct", {"b": NULL, "a": "time"}],
            ["struct", {"a": "time", "b": "date"}],
        ),
        (["struct", {"a": "date"}], ["struct", {"a": "time"}], MIXED),
        (["struct", {"a": "date"}], ["struct", {"a": "date", "b": "date"}], MIXED),
    ],
)
def test_two_families_join_to_one_that_holds_both(one: Family, other: Family, both: Family) -> None:
    assert joined(one, other) == joined(other, one) == both


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("number float large", "number"),
        ("decimal 3 2", "decimal"),
        ("timestamp ms ns", "timestamp without a time zone"),
        ("zoned_timestamp ms ns", "timestamp with a time zone"),
        ("time", "time of day"),
        ("other month_day_nano interval", "month_day_nano interval"),
        (["list", "time"], "list of time of day"),
        (["map", "string", "number"], "map of string to number"),
        (["struct", {"a": "date", "b": ["list", "number"]}], "struct of a: date, b: list of number"),
    ],
)
def test_a_family_has_a_readable_name(family: Family, text: str) -> None:
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


@pytest.mark.parametrize(
    ("known", "found", "text"),
    [
        ("number float", "number large", "holds an integer beyond 2^53 in a column that also holds floats"),
        ("number large", "number float", "holds a float in a column that also holds an integer beyond 2^53"),
        ("number large", NAN, "holds a float in a column that also holds an integer beyond 2^53"),
        (NAN, "number large", "holds an integer beyond 2^53 in a column that also holds floats"),
        ("number huge large", "number negative", "holds a negative number in a column"),
        ("number negative", "number huge large", "holds an integer beyond 2^63-1 in a column"),
        ("number", "string", "is the type, not a number"),
        ("timestamp ms ns", "zoned_timestamp ms ns", "is the type, not a timestamp without a time zone"),
        ("timestamp ns ns", "timestamp us us", "no unit holds all values"),
        (["list", "number float"], ["list", "number large"], "holds an integer beyond 2^53"),
        (["list", "number"], ["list", "string"], "is the type, not a list of number"),
        (["struct", {"a": "number"}], ["struct", {"b": "number"}], "is the type, not a struct of a: number"),
        ("decimal 60 0", "decimal 0 30", "needs more than 76 digits"),
        ("boolean", "date", "is the type, not a boolean"),
        ("number", "timestamp us ms", "holds a timestamp without a time zone outside the range of milliseconds"),
        ("number", ["list", "number"], "is the type, not a number"),
        (["list", "number"], ["map", "number", "number"], "is the type, not a list of number"),
        (
            ["map", "string", "number float"],
            ["map", "string", "number large"],
            "holds an integer beyond 2^53 in a column that also holds floats",
        ),
        (
            ["struct", {"a": "date", "b": "number negative"}],
            ["struct", {"a": "date", "b": "number huge large"}],
            "holds an integer beyond 2^63-1 in a column",
        ),
    ],
)
def test_a_refusal_names_the_value_or_the_types(known: Family, found: Family, text: str) -> None:
    assert misfits({"x": known}, {"x": found}) == ["x"]
    assert text in refusal(known, found, "the type")


@pytest.mark.parametrize(
    "wrong",
    [
        1,
        "nested",
        "boolean float",
        "number fast",
        "decimal 3",
        "decimal 3 2 1",
        "decimal 3 x",
        "timestamp ms",
        "timestamp ms ns ns",
        "timestamp ms minutes",
        [],
        ["set", "number"],
        ["list"],
        ["list", "number", "number"],
        ["map", "number"],
        ["struct"],
        ["struct", ["number"]],
        ["struct", {}, {}],
        ["list", ["struct", {"a": "number", "b": "nested"}]],
    ],
)
def test_a_malformed_family_is_not_valid(wrong: object) -> None:
    assert not is_family(wrong)
