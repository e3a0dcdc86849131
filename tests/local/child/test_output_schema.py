"""The schema that every result of a job must fit, which becomes narrower with the values that come."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mops.study.column_families import Families
from mops.study.output_schema import InvalidOutput, OutputSchema

KNOWN: Families = {"daily": {"day": "number", "value": "number", "place": "string"}}
COLUMNS = {"day": [1, 2, 3], "value": [0.5, 1.5, 2.5], "place": ["a", "b", "c"]}


def check(reference: OutputSchema | None = None, **columns: Any) -> pa.Table:
    return (reference or OutputSchema(KNOWN)).check({"daily": pa.table(columns)})["daily"]


def one(known: Any) -> OutputSchema:
    return OutputSchema({"daily": {"x": known}})


def test_widths_may_differ() -> None:
    reference = OutputSchema(KNOWN)
    check(reference, **COLUMNS)
    found = check(reference, day=pa.array([1], pa.int8()), value=[1], place=["a"])
    assert found.schema.types == [pa.int8(), pa.int64(), pa.string()]


def test_null_fits_every_family() -> None:
    found = check(day=pa.nulls(1), value=[1.0], place=pa.nulls(1))
    assert found.to_pylist() == [{"day": None, "value": 1.0, "place": None}]


def test_columns_are_put_into_the_order_of_the_reference() -> None:
    reference = OutputSchema(KNOWN)
    for _ in range(2):
        found = check(reference, place=["a"], value=[1.0], day=[1])
        assert found.column_names == ["day", "value", "place"]


def test_missing_and_extra_columns_are_all_named() -> None:
    with pytest.raises(InvalidOutput, match=r"'daily'.*'value', 'place' missing.*'speed' extra"):
        check(day=[1], speed=[1])


def test_missing_and_extra_outputs_are_all_named() -> None:
    with pytest.raises(InvalidOutput, match=r"output 'daily' missing; output 'weekly' extra"):
        OutputSchema(KNOWN).check({"weekly": pa.table({"n": [1]})})


def test_a_column_of_another_family_is_refused_with_its_name_and_both_types() -> None:
    with pytest.raises(InvalidOutput, match=r"'value' is string, not a number.*'place' is bool, not a string"):
        check(day=[1], value=["a"], place=[True])


def test_a_column_of_another_family_is_refused_after_many_that_fit() -> None:
    reference = OutputSchema(KNOWN)
    for _ in range(3):
        check(reference, **COLUMNS)
    with pytest.raises(InvalidOutput, match="'value' is string"):
        check(reference, **(COLUMNS | {"value": ["a", "b", "c"]}))


def test_the_first_value_fixes_the_family_of_a_column() -> None:
    """After a null, both a number and a string were accepted: the job succeeded and could not be read."""
    reference = one("null")
    check(reference, x=[None])
    check(reference, x=[1])
    with pytest.raises(InvalidOutput, match="column 'x' is string, not a number"):
        check(reference, x=["a"])
    check(reference, x=pa.nulls(2, pa.string()))  # a type without values says nothing


def test_a_table_without_rows_fixes_no_family() -> None:
    reference = one("null")
    check(reference, x=pa.array([], pa.string()))
    assert check(reference, x=[0.5])["x"].to_pylist() == [0.5]


@pytest.mark.parametrize("first_is_handed_over", [False, True])
def test_large_integers_and_floats_do_not_fit_into_one_column(first_is_handed_over: bool) -> None:
    reference = one("number")
    check(reference, x=[2**53 + 1])
    if first_is_handed_over:
        reference.handed_over({"daily": {"x": "number large"}})
    check(reference, x=pa.array([1], pa.int8()))
    with pytest.raises(InvalidOutput, match=r"a float in a column that also holds an integer beyond 2\^53"):
        check(reference, x=[0.5])
    check(reference, x=[2**60])


def test_a_refused_table_fixes_no_family() -> None:
    reference = OutputSchema({"daily": {"x": "null", "y": "number"}})
    with pytest.raises(InvalidOutput, match="column 'y'"):
        check(reference, x=["text"], y=["wrong"])
    check(reference, x=[1], y=[1])


def test_values_are_checked_if_an_earlier_task_has_fixed_the_family() -> None:
    reference = one("number float")
    check(reference, x=[2**53])
    with pytest.raises(InvalidOutput, match=r"an integer beyond 2\^53 in a column that also holds floats"):
        check(reference, x=[2**53 + 1])


def test_values_are_not_read_if_the_type_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mops.study.output_schema.families_in", lambda _: pytest.fail("looked at values"))
    for column in ([0.5], pa.array([1], pa.int64()), ["a"]):
        reference = one("string" if column == ["a"] else "number")
        for _ in range(3):
            check(reference, x=column)
