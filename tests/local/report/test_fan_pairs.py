"""Two fans in one figure: what its texts say of courses of different lengths, of lines, and of what is cut off."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from mops.figures.fan import Fan, FanSource, fans, have_decades
from mops.report.sections.fan_pairs import FanPair, Side
from mops.report.sections.outputs import _figures as outputs_figures

TEN = range(10)


def fan(courses: Sequence[Sequence[float]], xs: Sequence[Any] = TEN) -> Fan:
    """Return the fan of simulations with these values, each from the first x on."""
    rows = [
        {"group": group, "replicate": 0, "day": x, "y": float(y)}
        for group, course in enumerate(courses)
        for x, y in zip(xs, course, strict=False)
    ]
    table = pa.Table.from_pylist(rows).cast(
        pa.schema(
            [("group", pa.int32()), ("replicate", pa.int32()), ("day", pa.array(xs[:1]).type), ("y", pa.float64())]
        )
    )
    (found,) = fans(FanSource(table, "daily", "day", ["y"], len(courses), len(courses)))
    return found


def pair(under: Fan, over: Fan) -> FanPair:
    sides = Side(under, "all", "all sets", "all sets"), Side(over, "best", "the best sets", "best sets")
    return FanPair(*sides, None, has_decades=have_decades([under, over]))


def caption(under: Fan, over: Fan) -> str:
    return pair(under, over).figure("title", "", "", "whole").caption


def levels(low: float, high: float, n: int = 10, days: int = 3) -> list[list[float]]:
    """Return constant courses, evenly spread."""
    return [[low + (high - low) * i / (n - 1)] * days for i in range(n)]


def test_the_text_compares_both_fans_at_the_same_x() -> None:
    """It compared the last rows, which have another x in courses of another length."""
    longer, shorter = fan([[1, 2, 3, 4]] * 10), fan([[5, 6, 7]] * 10)
    same = "At day = 2, the median of y is 7 in the best sets, 90 % between 7 and 7, and 3 in all sets."
    assert pair(longer, shorter).alt == same
    assert pair(shorter, longer).alt == "At day = 3, the median of y is 4 in the best sets, 90 % between 4 and 4."


def test_the_text_names_dates_and_gives_no_quantiles_of_lines() -> None:
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    few = pair(fan([[1, 2]] * 10, days), fan([[3, 4]] * 3, days))
    assert few.alt == "At day = 2024-01-02, the median of y is 4 in the best sets, and 2 in all sets."


@pytest.mark.parametrize(
    ("under", "expected"),
    [
        (levels(0, 50), " The vertical axis fits the best sets; the band of all sets is cut off."),
        (levels(2.2, 2.8), ""),
        (levels(0, 50, n=9), " The vertical axis fits the best sets; some lines of all sets are cut off."),
        (levels(2.2, 2.8, n=9), ""),
    ],
)
def test_the_caption_says_what_is_cut_off(under: list[list[float]], expected: str) -> None:
    found = caption(fan(under), fan(levels(2, 3))).removesuffix(
        " Fewer than 10 simulations are lines instead of bands."
    )
    assert found == expected


def test_an_axis_down_to_0_cuts_nothing_off_at_its_lower_end() -> None:
    """The caption said that the band was cut off, although the axis of the figure reached 0."""
    over = fan([[0.001, 0.01, 1, 1000, 0.001]] * 10)
    under = fan([[0, 0.01, 1, 900, 0]] * 10)
    found = caption(under, over)
    assert "about linear down to 0" in found
    assert "cut off" not in found
    assert caption(fan([[0, 0.01, 1, 1100, 0]] * 10), over).endswith("the band of all sets is cut off.")


def test_of_equal_values_nothing_is_cut_off() -> None:
    assert caption(fan(levels(0, 50)), fan(levels(2, 2))) == ""


def test_sets_without_the_parameter_have_a_figure_of_their_own() -> None:
    """Case 29: a text parameter that some sets lack made the report end with a TypeError."""
    rows = pa.table({"group": pa.array(range(3), pa.int32()), "replicate": pa.array([0] * 3, pa.int32())})
    rows = rows.append_column("day", [[0, 0, 0]]).append_column("y", [[1.0, 2.0, 3.0]])
    kinds = pa.chunked_array([["p", None, "q"]])
    (found,) = fans(FanSource(rows, "daily", "day", ["y"], 3, 3, "kind", kinds))
    figures = outputs_figures(found, None, "whole", has_decades=False)
    assert [figure.title for figure in figures] == [
        *("y (daily), kind = p", "y (daily), kind = q", "y (daily), without kind"),
    ]
