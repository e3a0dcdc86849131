"""Charts: one rule for scales and colours, names as values only, and what a caption says."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mops.figures import charts, course_charts
from mops.figures.bins import bins_of
from mops.figures.calibration import trials
from mops.figures.fan import Fan, fans, have_decades
from mops.figures.losses import ScoredSets, distribution
from mops.figures.profiles import parallel, profile
from mops.figures.row_keys import FigureRows
from mops.figures.timeline import timeline
from mops.storage.samples import as_table


def scored(losses: Any, name: str = "x") -> ScoredSets:
    n = len(losses)
    columns = {"group": pa.array(range(n), pa.int32()), "loss": losses, name: np.linspace(0, 1, n)}
    return ScoredSets(pa.table(columns), ("fit",), (name,))


def test_all_figures_of_a_loss_have_the_same_scale_and_its_title_says_so(subtests: pytest.Subtests) -> None:
    """One figure of a loss was logarithmic and another one was not, because each looked at its own values."""
    for losses, is_log in [
        (np.geomspace(0.01, 100, 40), True),
        (np.linspace(0.01, 100, 40), False),  # most are large
        (np.geomspace(1, 90, 40), True),
        (np.geomspace(1, 9, 40), False),  # less than a decade
        (np.append(np.geomspace(0.01, 100, 40), 0.0), False),
    ]:
        with subtests.test(losses=losses, is_log=is_log):
            sets = scored(losses)
            found = (
                sets.is_log(),
                profile(sets, "x").is_log,
                distribution(sets).bins.kind == "log",
                parallel(sets, 10, 10).axes[-1].kind == "log",
            )
            assert found == (is_log,) * 4
            drawn = charts.profile(profile(sets, "x")).to_dict()["layer"][0]["encoding"]["y"]
            assert (drawn["scale"].get("type") == "log") == is_log == drawn["title"].endswith("(log scale)")


def test_the_axis_of_bins_fits_their_kind() -> None:
    def axis(column: pa.Array, channel: str, name: str = "n") -> dict[str, Any]:
        found: dict[str, Any] = charts.bin_axis(bins_of(name, column), channel)[channel].to_dict()
        return found

    assert axis(pa.array([10, 9, 2, 10]), "x")["sort"] == ["2", "9", "10"], "numbers ascend rightwards"
    assert axis(pa.array([10, 9, 2, 10]), "y")["sort"] == ["10", "9", "2"], "and upwards"
    assert axis(pa.array(["b", "a"]), "y")["sort"] == ["a", "b"], "texts downwards"
    assert axis(pa.array(range(10, 40)), "x")["axis"]["tickMinStep"] == 1
    assert "tickMinStep" not in axis(pa.array(np.linspace(0, 1, 30)), "x")["axis"]
    long = axis(pa.array(np.geomspace(0.001, 10, 50)), "y", "rate" * 20)
    assert long["scale"]["type"] == "log"
    assert long["title"].endswith(" (log scale)")
    assert len(long["title"]) < 36


def test_an_axis_over_decades_has_a_linear_part_if_there_is_a_zero(subtests: pytest.Subtests) -> None:
    for shown, kind, ticks in [
        ([0.02, 5.0, 3000.0], "log", None),
        ([0.0, 0.02, 3000.0], "symlog", [0, 0.1, 1, 10, 100, 1000]),
        ([0.0, 1e-30, 1e4], "symlog", [0, 0.001, 0.1, 10, 1000]),
        ([-1.0, 1e6], None, None),
    ]:
        with subtests.test(shown=shown, kind=kind, ticks=ticks):
            y = charts.value_y("cases", np.array(shown), has_decades=True, is_shared=True).to_dict()
            assert y["scale"].get("type") == kind
            assert y["scale"]["domain"] == [min(shown), max(shown)]
            assert ("log scale" in y["title"]) == (kind is not None)
            if ticks is not None:
                assert y["axis"]["values"] == pytest.approx(ticks)


def test_names_of_a_study_are_values_and_no_fields() -> None:
    """Vega-Lite reads a name with a dot or a bracket as a path."""
    name = "a.b[0] 'x' \\ \"y\""
    sets = scored(np.arange(1.0, 41.0), name)
    for chart in (charts.parallel(parallel(sets, 9, 9)), charts.profile(profile(sets, name))):
        whole = chart.to_dict()
        rows = [row for rows in whole.pop("datasets").values() for row in rows]
        assert not any(name in row for row in rows)
        assert all(isinstance(value, str | int | float | bool | None) for row in rows for value in row.values())


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_are_seen_on_a_light_and_on_a_dark_page() -> None:
    for theme in (lambda colour: colour, charts.DARK.__getitem__):
        card = theme(charts.CARD)
        assert contrast(theme(charts.PALE), card) >= 3
        for colour in (charts.GREY, *charts.SERIES[:5]):
            assert contrast(theme(colour), card) >= 4.5, colour


def test_a_date_is_drawn_in_local_time() -> None:
    """JavaScript reads '2024-01-05' as UTC, which is another day west of Greenwich."""
    assert course_charts.place(date(2024, 1, 5)) == "2024-01-05T00:00:00"
    assert course_charts.place(datetime(2024, 1, 5, 6)) == "2024-01-05T06:00:00"
    assert course_charts.place(5.0) == 5.0


def fan(courses: list[list[float]]) -> Fan:
    """Return the fan of simulations with these values at x = 0, 1, ..."""
    rows = [(group, 0, x, float(y)) for group, course in enumerate(courses) for x, y in enumerate(course)]
    group, replicate, x, y = zip(*rows, strict=True)
    table = pa.table(
        {"group": pa.array(group, pa.int32()), "replicate": pa.array(replicate, pa.int32()), "day": x, "y": y}
    )
    (found,) = fans(FigureRows(table, "daily", ["y"], len(courses), len(courses)), "day")
    return found


def levels(low: float, high: float, n: int = 10) -> list[list[float]]:
    """Return constant courses, evenly spread."""
    return [[low + (high - low) * i / (n - 1)] * 3 for i in range(n)]


def test_a_fan_below_another_one_may_be_cut_off(subtests: pytest.Subtests) -> None:
    for under, over, is_cut in [
        (levels(0, 50), levels(2, 3), True),
        (levels(2.2, 2.8), levels(2, 3), False),
        (levels(0, 50, n=9), levels(2, 3), True),
        (levels(2.2, 2.8, n=9), levels(2, 3), False),
        # An axis down to 0 cuts nothing off at its lower end.
        ([[0, 0.01, 1, 900, 0]] * 10, [[0.001, 0.01, 1, 1000, 0.001]] * 10, False),
        ([[0, 0.01, 1, 1100, 0]] * 10, [[0.001, 0.01, 1, 1000, 0.001]] * 10, True),
    ]:
        with subtests.test(under=under, over=over, is_cut=is_cut):
            below, above = fan(under), fan(over)
            _, found = course_charts.compared(below, above, ("all", "best"), has_decades=have_decades([below, above]))
            assert found == is_cut


def test_the_axes_of_trials_cut_no_point_in_half() -> None:
    """The worst trial was at the upper end of the axis, and the last one at its right end."""
    losses = [300.0, 40.0, 60.0, 30.0]
    table = {"round": pa.array([1, 1, 2, 2], pa.int32()), "failure": [None] * 4, "loss": losses, "weight": [0.25] * 4}
    points = course_charts.trials(trials(pa.table(table))).to_dict()["layer"][1]
    assert points["mark"]["clip"]
    radius = (points["mark"]["size"] / np.pi) ** 0.5
    assert min(points["encoding"][channel]["scale"]["padding"] for channel in "xy") >= radius


def test_a_job_without_samples_has_an_empty_chart_that_says_why() -> None:
    chart = course_charts.progress(timeline(as_table([]), 10)).to_dict()
    assert chart["title"]["subtitle"] == ["The job has no samples yet. A runner takes one about every 10 s."]
