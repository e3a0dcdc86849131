"""The prior of a parameter, compared with the sets that are drawn from its space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mops.study.sampling.draw import prior_mass_below, prior_mass_between, prior_text, sets_at
from mops.study.sampling.space import Range, parse_space

RANGES: list[tuple[dict[str, Any], list[float], str]] = [
    ({"min": -1, "max": 3}, [-2, -1, 0.5, 3, 4], "uniform from -1 to 3"),
    ({"min": 0.01, "max": 1, "scale": "log"}, [0.001, 0.02, 0.1, 1], "log-uniform from 0.01 to 1"),
    ({"min": 2, "max": 5, "type": "int"}, [2, 2.5, 3, 5, 5.5, 6], "uniform over the integers from 2 to 5"),
    ({"min": 1, "max": 40, "type": "int", "scale": "log"}, [1, 1.5, 8, 40, 41], "log-uniform over the integers from 1"),
]


def parsed(entry: dict[str, Any]) -> Any:
    return parse_space({"a": entry}, where="space.json")


@pytest.mark.parametrize(("entry", "values", "text"), RANGES)
def test_the_prior_of_a_range_is_the_share_of_its_sets(entry: dict[str, Any], values: list[float], text: str) -> None:
    space = parsed(entry)
    assert isinstance(space["a"], Range)
    n = 2_000_000
    drawn = np.asarray(sets_at(space, (np.arange(n) + 0.5)[:, None] / n)["a"])
    expected = [(drawn < value).mean() for value in values]
    assert prior_mass_below(space["a"], np.array(values)) == pytest.approx(expected, abs=2e-6)
    low, high = values[1], values[-2]
    inside = ((drawn >= low) & (drawn <= high)).mean()
    assert prior_mass_between(space["a"], low, high) == pytest.approx(inside, abs=2e-6), "both ends belong to it"
    assert prior_text(space["a"]).startswith(text)


def test_the_prior_of_values_is_the_same_for_each() -> None:
    assert prior_text(parsed({"values": ["a", "b", "c"]})["a"]) == "the same for each of its 3 values"
