"""The rules for a space, and the parameter sets that are drawn from it."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import StudyError, UsageError
from mops.study.sampling.draw import Method, draw
from mops.study.sampling.space import Choice, Range, parse_space

FORMS = 'write a value, {"values": [...]} or {"min": ..., "max": ...}'
SPACE: dict[str, Any] = {
    "beta": {"min": 0.1, "max": 0.5, "points": 3},
    "rate": {"min": 1e-4, "max": 1, "scale": "log", "points": 5},
    "n": {"min": 1, "max": 4, "type": "int"},
    "kind": {"values": ["a", "b", "c"]},
    "on": True,
}


def sets(space: dict[str, Any], method: str, n: int | None = None, seed: int = 1) -> list[dict[str, Any]]:
    parsed = parse_space(space, where="space.json")
    return draw(parsed, Method(method), n=n, seed=seed, where="space.json").to_pylist()


def test_every_form_of_a_parameter_is_read() -> None:
    assert parse_space(SPACE, where="space.json") == {
        "beta": Range(0.1, 0.5, points=3),
        "rate": Range(1e-4, 1, is_log=True, points=5),
        "n": Range(1, 4, is_int=True),
        "kind": Choice(("a", "b", "c")),
        "on": Choice((True,)),
    }


# An entry of the space, the path below it, and the message.
WRONG: list[tuple[Any, str, str]] = [
    (None, "", f"null is not a parameter; {FORMS}"),
    ([1, 2], "", f"a list is not a parameter; {FORMS}"),
    (float("nan"), "", "NaN is not a finite number; write one"),
    ({}, "", f"'min' and 'max' missing; {FORMS}"),
    ({"min": 1}, "", f"'max' missing; {FORMS}"),
    ({"mim": 1, "min": 1, "max": 2}, ".mim", "unknown key; did you mean 'min'?"),
    (
        {"min": 1, "max": 2, "colour": 3},
        ".colour",
        "unknown key; a parameter has 'values', 'min', 'max', 'type', 'scale', 'points'",
    ),
    ({"values": [1], "min": 1}, ".min", "belongs to a range and not to a list of values; keep one of the two"),
    ({"values": []}, ".values", "an empty list is not a non-empty list of values"),
    ({"values": 3}, ".values", "3 is not a non-empty list of values"),
    ({"values": [1, None]}, ".values[1]", "null is not a value; leave the parameter out"),
    ({"values": [1, "a"]}, ".values", "are of several types; write only booleans, only numbers or only strings"),
    ({"values": [True, 1]}, ".values", "are of several types; write only booleans, only numbers or only strings"),
    ({"values": [1, 2, 1]}, ".values", "1 appears twice; keep one"),
    (10**30, "", "is an integer beyond 64 bits; write it as a string"),
    ({"values": [1.5, 10**400]}, ".values[1]", "is too large for a float, and the list has floats"),
    ({"values": [2**64]}, ".values", "hold an integer beyond 64 bits; write it as a string"),
    ({"min": "1", "max": 2}, ".min", "'1' is not a number"),
    ({"min": 1, "max": True}, ".max", "true is not a number"),
    ({"min": 1, "max": 10**400}, ".max", f"{10**400} is too large"),
    ({"min": 2, "max": 2}, "", "'min' is 2 and 'max' 2; 'min' must be less (or write one value)"),
    ({"min": -1e307, "max": 1.7e308}, ".max", "1.7e+308 is too large"),
    ({"min": 0, "max": 1, "scale": "log"}, ".min", "0 has no logarithm; 'min' must be above 0 when 'scale' is 'log'"),
    ({"min": 0, "max": 1, "scale": "ln"}, ".scale", "'ln' is not 'linear' or 'log'"),
    ({"min": 0, "max": 1, "type": "integer"}, ".type", "'integer' is not 'float' or 'int'"),
    ({"min": 0.5, "max": 3, "type": "int"}, ".min", "0.5 is not an integer of at most 2^53, and 'type' is 'int'"),
    ({"min": 0, "max": 1, "points": 1}, ".points", "1 is not an integer of at least 2"),
    ({"min": 0, "max": 1, "points": 2.0}, ".points", "2.0 is not an integer of at least 2"),
]


def test_a_wrong_entry_is_refused_at_its_path(subtests: pytest.Subtests) -> None:
    for entry, path, message in WRONG:
        with subtests.test(str((entry, path, message))):
            with pytest.raises(StudyError) as raised:
                parse_space({"beta": entry}, where="space.json")
            assert [(problem.path, problem.message) for problem in raised.value.problems] == [
                (f"$.beta{path}", message)
            ]
            assert (raised.value.what, raised.value.where) == ("the space is not valid", "space.json")


def test_a_file_that_holds_no_space_is_refused(subtests: pytest.Subtests) -> None:
    for data, called in [([], "an empty list"), ({}, "an object"), (3, "3")]:
        with subtests.test(str((data, called))):
            with pytest.raises(StudyError) as raised:
                parse_space(data, where="space.json")
            assert str(raised.value.problems[0]) == (
                f'$: a space is a JSON object like {{"beta": {{"min": 0.1, "max": 0.5}}}}, not {called}'
            )


@pytest.mark.parametrize("method", ["sobol", "lhs"])
def test_the_same_seed_gives_the_same_sets_and_another_seed_different_ones(method: str) -> None:
    assert sets(SPACE, method, 64, seed=7) == sets(SPACE, method, 64, seed=7)
    assert sets(SPACE, method, 64, seed=7) != sets(SPACE, method, 64, seed=8)


def test_sets_are_the_same_in_every_version() -> None:
    """A study that is sampled again in a year must be the same study."""
    space = {"beta": {"min": 0, "max": 1}, "n": {"min": 1, "max": 9, "type": "int"}}
    assert sets(space, "sobol", 2, seed=1) == [
        {"beta": 0.28616916202008724, "n": 2},
        {"beta": 0.5817833486944437, "n": 9},
    ]
    assert sets(space, "lhs", 2, seed=1) == [{"beta": 0.6504827262815822, "n": 4}, {"beta": 0.1774407339013528, "n": 8}]


@pytest.mark.parametrize("method", ["sobol", "lhs"])
def test_values_have_the_range_and_type_of_the_space(method: str) -> None:
    drawn = sets(SPACE, method, 512)
    assert [list(each) for each in drawn] == [list(SPACE)] * 512
    assert all(0.1 <= each["beta"] <= 0.5 and 1e-4 <= each["rate"] <= 1 for each in drawn)
    assert {each["n"] for each in drawn} == {1, 2, 3, 4}
    assert {each["kind"] for each in drawn} == {"a", "b", "c"}
    assert {type(value) for each in drawn for value in each.values()} == {float, int, str, bool}
    assert all(each["on"] is True for each in drawn)


@pytest.mark.parametrize("method", ["sobol", "lhs"])
def test_values_cover_their_range_evenly(method: str) -> None:
    """512 sets have one value in each 512th of a range, in logarithms if the scale is logarithmic."""
    drawn = sets(SPACE, method, 512)
    beta = np.array([(each["beta"] - 0.1) / 0.4 for each in drawn])
    rate = np.array([1 + math.log10(each["rate"]) / 4 for each in drawn])
    for unit in (beta, rate):
        assert sorted(np.minimum(unit * 512, 511).astype(int)) == list(range(512))
    assert [sum(each["n"] == n for each in drawn) for n in (1, 2, 3, 4)] == [128] * 4


def test_integers_of_a_logarithmic_range_are_all_reached() -> None:
    space = {"n": {"min": 1, "max": 8, "type": "int", "scale": "log"}}
    counts = [sum(each["n"] == n for each in sets(space, "lhs", 3000)) for n in range(1, 9)]
    assert min(counts) > 0
    assert counts == sorted(counts, reverse=True)


def test_a_grid_has_every_combination_and_the_last_varies_fastest() -> None:
    grid = sets(SPACE, "grid")
    assert len(grid) == 3 * 5 * 4 * 3
    assert [each["kind"] for each in grid[:4]] == ["a", "b", "c", "a"]
    assert sorted({each["beta"] for each in grid}) == [0.1, 0.3, 0.5], "and not 0.30000000000000004"
    assert sorted({each["rate"] for each in grid}) == [1e-4, 1e-3, 1e-2, 1e-1, 1]
    assert len({tuple(each.values()) for each in grid}) == len(grid)


def test_grid_points_of_integers_are_integers_and_differ() -> None:
    drawn = sets({"n": {"min": 1, "max": 1000, "type": "int", "scale": "log", "points": 7}}, "grid")
    assert [each["n"] for each in drawn] == [1, 3, 10, 32, 100, 316, 1000]
    few = sets({"n": {"min": 1, "max": 3, "type": "int", "points": 50}}, "grid")
    assert [repr(each["n"]) for each in few] == ["1", "2", "3"]
    assert [each["n"] for each in sets({"n": {"min": 3, "max": 5, "type": "int"}}, "grid")] == [3, 4, 5]


def test_the_largest_grid_is_as_large_as_a_study_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mops.study.sampling.draw.SETS_LIMIT", 4)
    assert len(sets({"a": {"values": [1, 2]}, "b": {"values": [1, 2]}}, "grid")) == 4
    with pytest.raises(StudyError, match="cannot be sampled by 'grid'"):
        sets({"a": {"values": [1, 2, 3, 4, 5]}}, "grid")


def test_integers_next_to_floats_become_floats() -> None:
    """A column of a file has one type, and the sets must be the same in every format."""
    assert [repr(each["x"]) for each in sets({"x": {"values": [1, 2.5]}}, "grid")] == ["1.0", "2.5"]


def test_a_grid_without_points_is_refused_with_their_paths() -> None:
    with pytest.raises(StudyError, match="cannot be sampled by 'grid'") as raised:
        sets({"a": {"min": 0, "max": 1}, "b": {"min": 0, "max": 1, "scale": "linear"}, "c": 1}, "grid")
    assert [str(problem) for problem in raised.value.problems] == [
        f"$.{name}: has no 'points': give the number of values for a grid" for name in "ab"
    ]


def test_a_grid_that_is_too_large_is_refused_with_its_size() -> None:
    space = {name: {"min": 0, "max": 1, "points": 1000} for name in "abc"}
    with pytest.raises(StudyError) as raised:
        sets(space, "grid")
    assert str(raised.value.problems[0]) == (
        "$: the grid has 1000 x 1000 x 1000 = 1,000,000,000 sets; 10,000,000 is the most"
    )


def test_an_invalid_number_of_sets_is_refused(subtests: pytest.Subtests) -> None:
    for n in [None, 0, -1, 10_000_001]:
        with subtests.test(str(n)):
            with pytest.raises(UsageError) as raised:
                sets(SPACE, "sobol", n)
            assert raised.value.where == "-n"


def test_a_space_in_which_nothing_varies_is_refused() -> None:
    with pytest.raises(StudyError) as raised:
        sets({"a": 1, "b": {"values": ["x"]}}, "lhs", 5)
    assert str(raised.value.problems[0]) == "$: nothing varies; give ranges, or lists of values"


def test_a_million_sets_are_drawn() -> None:
    parsed = parse_space(SPACE, where="space.json")
    assert draw(parsed, Method.SOBOL, n=1 << 20, seed=0, where="space.json").num_rows == 1 << 20


def test_without_scipy_the_error_says_where_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats.qmc", None)
    space = parse_space({"beta": {"min": 0, "max": 1}}, where="space.json")
    with pytest.raises(UsageError, match="drawing parameter sets needs scipy") as raised:
        draw(space, Method.LHS, n=4, seed=0, where="space.json")
    assert "the cluster's image has no scipy" in str(raised.value.hint)


DECIMALS = st.decimals(-1000, 1000, places=3)


@given(DECIMALS, st.decimals("0.001", 1000, places=3), st.integers(2, 60))
def test_points_of_a_grid_are_the_floats_nearest_to_the_decimals(low: Decimal, width: Decimal, n: int) -> None:
    """0.1 to 0.5 in 5 points had 0.30000000000000004, which no one finds by 0.3."""
    space = {"x": {"min": float(low), "max": float(low + width), "points": n}}
    expected = [float(Fraction(low) + Fraction(width) * i / (n - 1)) for i in range(n)]
    assert [each["x"] for each in sets(space, "grid")] == expected


@given(st.integers(-6, 3), st.integers(1, 6))
def test_points_of_a_logarithmic_grid_are_powers_of_ten(first: int, n: int) -> None:
    space = {"x": {"min": float(f"1e{first}"), "max": float(f"1e{first + n}"), "scale": "log", "points": n + 1}}
    assert [each["x"] for each in sets(space, "grid")] == [float(f"1e{first + i}") for i in range(n + 1)]


def test_a_parameter_called_seed_is_refused() -> None:
    """Case 07: a file of sets had it as the seed of each set, and replicates were lost."""
    with pytest.raises(StudyError) as raised:
        parse_space({"beta": {"min": 0, "max": 1}, "seed": {"min": 1, "max": 9, "type": "int"}}, where="space.json")
    (problem,) = raised.value.problems
    assert problem.path == "$.seed"
    assert problem.message.endswith("give the parameter another name")
