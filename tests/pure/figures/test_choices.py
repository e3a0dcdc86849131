"""The columns of a figure if the user does not name them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mops.errors import UsageError
from mops.figures.choices import Course, choose_course, choose_division, index_column, is_time

OWN = [("param_id", pa.string()), ("group", pa.int32()), ("replicate", pa.int32()), ("seed", pa.uint64())]


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([*OWN, *columns.items()])


SUMMARY = schema(attack_rate=pa.float64(), peak_day=pa.int64())
DAILY = schema(
    infected=pa.int64(), Day=pa.int32(), place=pa.string(), share=pa.float64(), dead=pa.int64(), r=pa.int64()
)
MONTHLY = schema(date=pa.date32(), births=pa.int64())
SCHEMAS = {"summary": SUMMARY, "daily": DAILY, "monthly": MONTHLY}


def test_the_index_column_has_a_known_name_and_a_place_on_an_axis(subtests: pytest.Subtests) -> None:
    for columns, chosen in [
        ({"day": pa.int32(), "t": pa.float64()}, "t"),
        ({"Year": pa.int32(), "n": pa.int64()}, "Year"),
        ({"date": pa.date32()}, "date"),
        ({"time": pa.timestamp("us")}, "time"),
        ({"day": pa.string(), "step": pa.int64()}, "step"),
        ({"days_ill": pa.int64()}, None),
        ({"group": pa.int32()}, None),
    ]:
        with subtests.test(columns=columns, chosen=chosen):
            assert index_column(pa.schema(list(columns.items()))) == chosen


def test_the_first_output_with_an_index_column_is_shown() -> None:
    assert choose_course(SCHEMAS) == Course("daily", "Day", ("infected", "share", "dead"))
    assert choose_course({"summary": SUMMARY}) is None
    assert choose_course({}) is None
    assert choose_course({"only": schema(day=pa.int32(), place=pa.string())}) is None


def test_columns_with_data_come_first_and_all_of_them_are_shown() -> None:
    wide = schema(day=pa.int32(), age=pa.int32(), **{name: pa.float64() for name in "abcdef"})

    def shown(*data: tuple[str, str]) -> Course | None:
        return choose_course({"daily": wide}, data=[("daily", x, y) for x, y in data])

    assert shown(("day", "e")) == Course("daily", "day", ("e", "age", "a"))
    assert shown(("day", "f"), ("day", "c"), ("day", "e"), ("day", "d")) == Course("daily", "day", tuple("cdef"))
    assert shown(("age", "d"), ("day", "b")) == Course("daily", "age", ("d", "day", "a"))
    assert shown(("day", "none")) == choose_course({"daily": wide}, data=[("other", "day", "f")])
    assert shown(("day", "none")) == Course("daily", "day", ("age", "a", "b"))


def test_what_the_user_names_is_kept() -> None:
    assert choose_course(SCHEMAS, "monthly") == Course("monthly", "date", ("births",))
    assert choose_course(SCHEMAS, "daily", "infected", ["dead"]) == Course("daily", "infected", ("dead",))
    assert choose_course(SCHEMAS, ys=["births"]) == Course("monthly", "date", ("births",))
    assert choose_course(SCHEMAS, x="peak_day") == Course("summary", "peak_day", ("attack_rate",))


def test_a_name_that_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    for named, what, hint in [
        (("dayly",), "there is no output 'dayly'", "did you mean 'daily'?"),
        (("daily", None, ["infect"]), "there is no column 'infect'", "did you mean 'infected'?"),
        (("daily", None, ["place"]), "column 'place' has the type string, and a fan chart needs numbers", None),
        (
            ("daily", "place"),
            "column 'place' has the type string, and the horizontal axis needs numbers or times",
            None,
        ),
        (("daily", "seed"), "column 'seed' has the type uint64, and the horizontal axis needs numbers or times", None),
        (("summary",), "no output has the columns of a fan chart: an index column such as 'day', and a number", None),
        ((None, "q"), "no output has the columns of a fan chart: 'q'", None),
    ]:
        with subtests.test(named=named, what=what, hint=hint):
            with pytest.raises(UsageError) as raised:
                choose_course(SCHEMAS, *named)
            assert raised.value.what == what
            assert hint is None or raised.value.hint == hint


def test_a_fan_is_divided_by_the_first_text_or_boolean_with_few_values() -> None:
    many, few, both = [f"v{i}" for i in range(8)], ["a", "b"] * 4, [True, None] * 4
    table = pa.table({"beta": range(8), "id": many, "one": ["a"] * 8, "both": both, "policy": few})
    assert choose_division(table) == "policy"
    assert choose_division(table.select(["beta", "id", "both"])) is None


def test_a_number_with_few_values_divides_a_fan_if_nothing_else_varies() -> None:
    doctors, fixed = [3, 4, 5, 3], [10.0] * 4
    table = pa.table({"doctors": doctors, "per_hour": fixed, "none": pa.nulls(4, pa.float64())})
    assert choose_division(table) == "doctors"
    assert choose_division(table.append_column("rate", pa.array([0.1, 0.2, 0.1, 0.2]))) is None
    assert choose_division(table.append_column("policy", pa.array(list("abab")))) == "policy"
    assert choose_division(pa.table({"r": range(7)})) is None
    assert choose_division(table.append_column("extra", pa.array([1, None, None, 1]))) is None, "some sets lack it"
    assert choose_division(pa.table({"r": [1, None]})) is None


def test_an_index_column_is_a_time_by_its_name() -> None:
    assert [is_time(name) for name in ("Day", "t", "step", "age", "depth", "x")] == [True] * 3 + [False] * 3
