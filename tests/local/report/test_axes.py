"""Axes of figures: their scales, ticks, order and titles."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mops.figures.bins import bins_of
from mops.figures.losses import ScoredSets, distribution, shown_sets
from mops.figures.parallel import parallel
from mops.figures.profiles import profile
from mops.report.drawing.axes import bin_axis, loss_axis
from mops.report.drawing.decades import value_axis
from mops.report.drawing.parallel import Scale


def scored(losses: Any) -> ScoredSets:
    n = len(losses)
    columns = {"group": pa.array(range(n), pa.int32()), "loss": losses, "x": np.linspace(0, 1, n)}
    return ScoredSets(pa.table(columns), ("fit",), ("x",))


@pytest.mark.parametrize(
    ("losses", "is_log"),
    [
        (np.geomspace(0.01, 100, 40), True),
        (np.linspace(0.01, 100, 40), False),  # most are large
        (np.geomspace(1, 90, 40), True),
        (np.geomspace(1, 9, 40), False),  # less than a decade
        (np.append(np.geomspace(0.01, 100, 40), 0.0), False),
    ],
)
def test_all_figures_of_a_loss_have_the_same_scale(losses: np.ndarray, is_log: bool) -> None:
    """One figure of a loss was logarithmic and another one was not, because each looked at its own values."""
    sets = scored(losses)
    found = (
        sets.is_log(),
        profile(sets, "x").is_log,
        shown_sets(sets).is_log,
        distribution(sets).bins.kind == "log",
        parallel(sets).axes[-1].kind == "log",
    )
    assert found == (is_log,) * 5


def test_the_title_of_an_axis_says_that_its_scale_is_logarithmic() -> None:
    axis = loss_axis([0.02, 350.0], "fit", is_log=True)
    assert axis["scale"]["type"] == "log"
    assert axis["axis"]["title"] == "fit (log scale)"
    assert axis["axis"]["values"] == [0.1, 1.0, 10.0, 100.0]
    assert loss_axis([2.0, 15.0], "fit", is_log=True)["axis"]["values"] == [2, 5, 10], "one power of ten is no scale"
    assert loss_axis([0.02, 350.0], "fit", is_log=False)["axis"] == {"title": "fit"}
    bins = bins_of("rate", pa.array(np.geomspace(0.001, 10, 50)))
    assert bin_axis(bins, "x")["x"]["axis"]["title"] == "rate (log scale)"
    long = bin_axis(bins_of("rate" * 20, pa.array(np.geomspace(0.001, 10, 50))), "y")["y"]["axis"]["title"]
    assert long.endswith(" (log scale)")
    assert len(long) < 36


def test_numbers_ascend_upwards_and_rightwards_and_texts_downwards() -> None:
    few = bins_of("level", pa.array([10, 9, 2, 10]))
    assert bin_axis(few, "x")["x"]["sort"] == ["2", "9", "10"]
    assert bin_axis(few, "y")["y"]["sort"] == ["10", "9", "2"]
    assert bin_axis(bins_of("policy", pa.array(["b", "a"])), "y")["y"]["sort"] == ["a", "b"]


def test_ticks_of_integers_are_integers() -> None:
    many = bins_of("people", pa.array(range(10, 40), pa.int64()))
    assert bin_axis(many, "x")["x"]["axis"]["tickMinStep"] == 1
    assert Scale(many).ticks() == [(0.0, "10"), (1.0, "39")]
    wide = bins_of("people", pa.array(range(1001), pa.int64()))
    assert wide.edges[-1] > 1001
    assert Scale(wide).ticks() == [(0.0, "0"), (1.0, "1,000")], "the greatest value, also if the last bin ends above it"
    assert Scale(bins_of("people", pa.array([12_345, 2], pa.int64()))).ticks() == [(0.0, "2"), (1.0, "12,345")]
    assert "tickMinStep" not in bin_axis(bins_of("beta", pa.array(np.linspace(0, 1, 30))), "x")["x"]["axis"]


def test_an_axis_without_regular_ticks_leaves_them_to_vega() -> None:
    assert "values" not in loss_axis([2.1, 4.9], "fit", is_log=True)["axis"]
    assert loss_axis([2.1, 4.9], "fit", is_log=True)["axis"]["format"] == ",~g", "1,000,000, as in texts"


@pytest.mark.parametrize(
    ("shown", "kind", "ticks"),
    [
        ([0.02, 5.0, 3000.0], "log", [0.1, 1, 10, 100, 1000]),
        ([0.0, 0.02, 3000.0], "symlog", [0, 0.1, 1, 10, 100, 1000]),
        ([0.0, 1e-30, 1e4], "symlog", [0, 1e-4, 1e-2, 1, 100, 1e4]),
    ],
)
def test_decades_have_ticks_at_powers_of_ten_and_a_zero_if_there_is_one(
    shown: list[float], kind: str, ticks: list[float]
) -> None:
    y, note = value_axis("cases", np.array(shown), has_decades=True, is_shared=False)
    assert y["scale"]["type"] == kind
    assert y["scale"]["domain"] == [min(shown), max(shown)]
    assert y["axis"]["values"] == pytest.approx(ticks)
    assert y["axis"]["title"] == "cases (log scale)"
    assert ("symlog" in note) == (kind == "symlog")
    assert ("constant" in y["scale"]) == (kind == "symlog")


def test_data_below_zero_have_a_linear_axis() -> None:
    y, note = value_axis("cases", np.array([-1.0, 1e6]), has_decades=True, is_shared=True)
    assert (y["scale"], note) == ({"domain": [-1.0, 1e6], "nice": True}, "")


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_are_seen_on_a_light_and_on_a_dark_page() -> None:
    css = resources.files("mops.report").joinpath("page", "look.css").read_text()
    colours = {name: ends for name, *ends in re.findall(r"--([a-z]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    for theme in (0, 1):
        card = colours["card"][theme]
        assert contrast(colours["pale"][theme], card) >= 3
        for name in ("grey", "blue", "vermilion", "green", "purple", "amber"):
            assert contrast(colours[name][theme], card) >= 4.5, name
