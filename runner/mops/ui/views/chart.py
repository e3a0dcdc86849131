"""The line of a small chart, as the path of an SVG in a square of 100 x 100, which the page stretches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_SIDE = 100.0
_HEADROOM = 1.08  # the highest point stays below the frame


@dataclass(frozen=True)
class Chart:
    """One series over time, as texts."""

    name: str
    value: str  # the newest
    top: str  # the greatest
    line: str  # of an SVG of 100 x 100; empty: fewer than two points
    area: str
    start: str
    end: str
    colour: str  # the class of its colour

    @property
    def text(self) -> str:
        """The chart in words, for people who do not see it."""
        return f"{self.name} from {self.start} to {self.end}: now {self.value}, at most {self.top}"


def paths(times: Sequence[float], values: Sequence[float]) -> tuple[str, str]:
    """Return the line through the points, and the area below it, from 0 to the greatest value."""
    if len(times) < 2 or times[-1] <= times[0]:
        return "", ""
    span, top = times[-1] - times[0], (max(values) or 1.0) * _HEADROOM
    points = [
        f"{_SIDE * (at - times[0]) / span:.2f} {_SIDE * (1 - value / top):.2f}"
        for at, value in zip(times, values, strict=True)
    ]
    line = "M" + " L".join(points)
    return line, f"{line} L{_SIDE:g} {_SIDE:g} L0 {_SIDE:g} Z"


def clock(at: float) -> str:
    """Return a moment as local time of day."""
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S}"
