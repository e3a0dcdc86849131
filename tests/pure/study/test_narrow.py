"""The surroundings of the best sets: inside the space, around the sets, never empty."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import UsageError
from mops.study.sampling.draw import Method, draw
from mops.study.sampling.space import Choice, Range, narrowed, parse_space, space_json

SPACE: dict[str, Any] = {
    "x": {"min": 0.0, "max": 10.0, "points": 5},
    "rate": {"min": 1e-4, "max": 1, "scale": "log"},
    "n": {"min": 1, "max": 50, "type": "int"},
    "kind": {"values": ["a", "b", "c"]},
    "fixed": 3,
}


def near(*sets: dict[str, Any]) -> dict[str, Any]:
    return narrowed(parse_space(SPACE, where="s"), [{"fixed": 3, **each} for each in sets], where="job waves")


def test_a_range_becomes_that_of_the_sets_and_a_quarter_on_each_side() -> None:
    one, other = {"x": 4.0, "rate": 0.01, "n": 20, "kind": "c"}, {"x": 6.0, "rate": 0.1, "n": 30, "kind": "a"}
    found = near(one, other)
    assert found["x"] == Range(3.5, 6.5, points=5)
    assert (found["rate"].low, found["rate"].high) == pytest.approx((0.01 / 10**0.25, 0.1 * 10**0.25))
    assert found["n"] == Range(17, 33, is_int=True)
    assert found["kind"] == Choice(("a", "c"))
    assert found["fixed"] == Choice((3,))


def test_the_surroundings_end_at_the_border_of_the_space_and_are_never_empty() -> None:
    corner = {"x": 10.0, "rate": 1e-4, "n": 1, "kind": "b"}
    found = near(corner)
    assert found["x"] == Range(9.9, 10.0, points=5)
    assert found["rate"].low == 1e-4
    assert found["rate"].high > 1e-4
    assert found["n"] == Range(1, 2, is_int=True)


@given(
    st.lists(
        st.sampled_from(draw(parse_space(SPACE, where="s"), Method.LHS, n=50, seed=1, where="s").to_pylist()),
        min_size=1,
    )
)
def test_the_surroundings_are_a_space_that_holds_the_sets(sets: list[dict[str, Any]]) -> None:
    found = near(*sets)
    assert parse_space(space_json(found), where="s") == found
    for name, entry in found.items():
        for each in sets:
            if isinstance(entry, Range):
                assert entry.low <= each[name] <= entry.high
            else:
                assert each[name] in entry.values


def test_sets_outside_of_the_space_are_refused(subtests: pytest.Subtests) -> None:
    for wrong in [{"x": 11.0}, {"x": None}, {"x": "4"}, {"kind": "d"}, {"fixed": 4}]:
        outside = pytest.raises(UsageError, match=f"have a value of '{next(iter(wrong))}' that the space lacks")
        with subtests.test(str(wrong)), outside:
            near({"x": 4.0, "rate": 0.01, "n": 20, "kind": "c", "fixed": 3, **wrong})
