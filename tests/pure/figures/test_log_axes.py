"""The ticks of logarithmic axes, and their ends if some values are 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.figures.log_axes import LEAST_GAP, MOST_TICKS, Decades, decades, log_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.1015, 9.931, [0.2, 0.5, 1, 2, 5]),
        (0.595, 22_414_321, [1, 100, 1e4, 1e6]),
        (1e-12, 1e3, [1e-12, 1e-9, 1e-6, 1e-3, 1, 1e3]),
        (0.2, 3e5, [1, 10, 100, 1e3, 1e4, 1e5]),
        (1.0, 50.0, [1, 2, 5, 10, 20, 50]),
        (1.0, 100.0, [1, 3, 10, 30, 100]),
        (2.1, 4.9, []),
        (4.0, 6.0, []),
    ],
)
def test_ticks_are_regular_and_few(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == ticks


@given(st.floats(-300, 300), st.floats(0, 300))
def test_ticks_are_between_the_ends_and_an_axis_of_a_decade_has_some(start: float, span: float) -> None:
    low, high = 10.0**start, 10.0 ** min(start + span, 300)
    ticks = log_ticks(low, high)
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= MOST_TICKS
    assert len(ticks) > 1 or high < 10 * low


@pytest.mark.parametrize(
    ("shown", "axis"),
    [
        ([0.02, math.nan, 3000.0], Decades(0.02, 3000.0, None)),
        ([0.0, 0.02, 3000.0], Decades(0.0, 3000.0, 0.01)),
        ([1e-30, 1e4], Decades(0.0, 1e4, 1e-5)),
        ([-1.0, 1e6], None),
        ([0.0, 0.0], None),
    ],
)
def test_an_axis_of_decades_has_a_linear_part_only_for_values_near_0(shown: list[float], axis: Decades | None) -> None:
    assert decades(np.array(shown)) == axis


def test_the_ticks_of_an_axis_with_a_linear_part_begin_at_0() -> None:
    assert Decades(0.0, 500.0, 100.0).ticks == [0, 100, 200, 500]
    assert Decades(300.0, 400.0, None).ticks == []


@given(st.floats(-6, 6), st.floats(0.5, 9))
def test_ticks_of_an_axis_from_0_never_collide(start: float, span: float) -> None:
    """0 and the first power of ten were written on each other."""
    linear_below, high = 10.0 ** math.floor(start), 10.0 ** (math.floor(start) + span)
    ticks = Decades(0.0, high, linear_below).ticks
    places = [math.log1p(tick / linear_below) / math.log1p(high / linear_below) for tick in ticks]
    assert places[0] == 0
    assert all(np.diff(places) >= LEAST_GAP - 1e-9)
