"""Logarithmic axes of all figures: their ticks, and their ends if some values are 0.

``bins.is_log`` says which losses and parameters need a logarithmic axis, and ``fan.have_decades`` which outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mops.figures.columns import Floats

MOST_TICKS = 6  # more would overlap on a small figure, and Vega would drop some
LEAST_GAP = 0.1  # of the height of an axis: nearer ticks collide on a small figure
_MOST_DECADES = 9


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: at most 6, between its ends."""
    # 1, 2 and 5 times each power of 10, or 1 and 3 times each power, or the powers alone, or each k-th power from 1:
    # the first choice that gives few enough ticks. One tick does not show a scale.
    ticks = next(ticks for ticks in _choices(low, high) if len(ticks) <= MOST_TICKS)
    return ticks if len(ticks) > 1 else []


def ticks_from_0(linear_below: float, high: float) -> list[float]:
    """Return the ticks of an axis with a linear part from 0: 0, and those of :func:`log_ticks` that do not collide."""
    ticks = [0.0]
    for tick in log_ticks(linear_below, high):
        before, at, end = (math.log1p(value / linear_below) for value in (ticks[-1], tick, high))
        if at - before >= LEAST_GAP * end:
            ticks.append(tick)
    return ticks


def _choices(low: float, high: float) -> Iterator[list[float]]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        yield _inside(low, high, powers, steps)
    for k in range(2, len(powers) + 1):
        yield _inside(low, high, [power for power in powers if power % k == 0], (1,))


def _inside(low: float, high: float, powers: Sequence[int], steps: Sequence[int]) -> list[float]:
    ticks = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


@dataclass(frozen=True)
class Decades:
    """A logarithmic axis of values that are not negative."""

    low: float
    high: float
    linear_below: float | None  # below this value, the axis is about linear down to 0 (symlog); None: it is logarithmic

    @property
    def ticks(self) -> list[float]:
        """The ticks, of which the first is 0 if the axis has a linear part."""
        return (
            log_ticks(self.low, self.high) if self.linear_below is None else ticks_from_0(self.linear_below, self.high)
        )

    def note(self, axis: str = "The vertical axis") -> str:
        """Return what a caption says of the axis."""
        if self.linear_below is None:
            return f"{axis} is logarithmic."
        return f"{axis} is logarithmic, and below {self.linear_below:g} about linear down to 0 (symlog)."


def decades(shown: Floats) -> Decades | None:
    """Return the logarithmic axis for these values, or None if no value is above 0 or a value is below 0."""
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    if low < 0 or high == 0:
        return None
    # If some values are 0, or less than a billionth of the greatest value, the axis has a linear part.
    least = max(float(shown[shown > 0].min()), high / 10.0**_MOST_DECADES)
    if low >= least:
        return Decades(low, high, None)
    return Decades(0.0, high, float(f"1e{math.floor(math.log10(least))}"))
