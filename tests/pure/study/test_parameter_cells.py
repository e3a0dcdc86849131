"""A column of plain numbers is read at once, with the same result as cell by cell."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mops.study.parameter_cells import plain_numbers, read_cell

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.from_regex(r"-?[0-9]{1,17}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
)


@given(st.lists(NUMBERS, min_size=1))
def test_numbers_are_read_as_cell_by_cell(cells: list[str]) -> None:
    if (found := plain_numbers(cells)) is not None:
        one_by_one = [read_cell(cell) for cell in cells]
        assert found.json.to_pylist() == [cell.text for cell in one_by_one]
        assert found.kinds == {cell.kind for cell in one_by_one}
        assert not any(cell.fault or cell.look for cell in one_by_one)


def test_plain_numbers_are_recognised(subtests: pytest.Subtests) -> None:
    for cell in ["0.5", "-0.0", "1e-300", "12", "0", "-999999999999999"]:
        with subtests.test(str(cell)):
            assert plain_numbers(["1", cell]) is not None


def test_all_others_are_read_cell_by_cell(subtests: pytest.Subtests) -> None:
    for cell in [
        "",
        "null",
        "-0",
        "007",
        "1.",
        ".5",
        "+1",
        "1_0",
        "1e999",
        " 1",
        "1\n",
        "nan",
        "1234567890123456",
        "1,5",
    ]:
        with subtests.test(str(cell)):
            assert plain_numbers(["1", cell]) is None
