"""Histograms: bars over the bins of a column, and strips of them on the same axis."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from mops.figures.bins import Bins
from mops.figures.fan import MOST_OVERLAID
from mops.figures.row_keys import division_text
from mops.figures.spreads import Spread
from mops.report.drawing.axes import TICKS, bin_axis, bin_rows, values
from mops.report.drawing.look import BLUE, INK, SERIES
from mops.report.numbers import cell
from mops.units import shortened

_HIGHEST_BAR, _LABEL_AT = 0.64, 0.7  # of the height of a strip
_NAME, _HEAD, _TAIL = 40, 17, 8  # characters
_LABEL_WIDTH = 285  # pixels


def histogram(bins: Bins, table: pa.Table, title: str, counted_things: str) -> dict[str, Any]:
    """Return a specification with a bar for each bin, from rows with a count ``n``."""
    rows = [row | at for row, at in zip(table.to_pylist(), bin_rows(bins, "x"), strict=True)]
    ticks = min(TICKS, max(table["n"].to_pylist(), default=1))  # fewer than ticks would repeat numbers
    axis = {"tickMinStep": 1, "tickCount": ticks, "format": ",d"}
    y = {"field": "n", "type": "quantitative", "title": counted_things, "axis": axis}
    y2 = {"y2": {"datum": 0}} if bins.kind != "values" else {}
    return {**values(rows), "mark": _bar(bins), "encoding": {**bin_axis(bins, "x", title=title), "y": y, **y2}}


def strips(found: Spread) -> dict[str, Any]:
    """Return a specification with a histogram of shares for each division, one below the other on the same axes."""
    n, title = len(found.strips), shortened(found.y, _NAME)
    greatest = max(found.table["share"].to_pylist())
    colours = SERIES[:n] if n <= MOST_OVERLAID else (BLUE,) * n
    bars, marks = [], []
    for i, (strip, fill) in enumerate(zip(found.strips, colours, strict=True)):
        bottom = n - 1 - i
        rows = found.table.slice(i * len(found.bins), len(found.bins)).to_pylist()
        for row, at in zip(rows, bin_rows(found.bins, "x"), strict=True):
            if row["n"]:
                top = bottom + _HIGHEST_BAR * row["share"] / greatest
                bars.append(at | {"bottom": bottom, "top": top, "colour": fill})
        text = f"{_with_both_ends(division_text(found.by, strip.division))}, n = {strip.n:,}, median "
        ends = {"bottom": bottom, "top": bottom + _HIGHEST_BAR, "label_at": bottom + _LABEL_AT}
        marks.append(ends | {"median": strip.median, "text": f"{text}{cell(strip.median)}"})
    x = bin_axis(found.bins, "x", title=title)
    y = {"field": "bottom", "type": "quantitative", **_share_axis(n, greatest)}
    colour = {"field": "colour", "type": "nominal", "scale": None, "legend": None}
    label = {"type": "text", "align": "left", "baseline": "bottom", "fontSize": 11, "color": INK, "limit": _LABEL_WIDTH}
    bar = {**x, "y": y, "y2": {"field": "top"}, "color": colour}
    name = {"x": {"value": 0}, "y": y | {"field": "label_at"}, "text": {"field": "text"}}
    layers: list[dict[str, Any]] = [
        {**values(bars), "mark": _bar(found.bins), "encoding": bar},
        {**values(marks), "mark": label, "encoding": name},
    ]
    if found.bins.kind != "values":
        line = {"type": "rule", "color": INK, "strokeWidth": 1.5}
        at = {"x": x["x"] | {"field": "median"}, "y": y, "y2": {"field": "top"}}
        layers.append({**values(marks), "mark": line, "encoding": at})
    return {"layer": layers}


def _with_both_ends(name: str) -> str:
    """Return a name that fits above a strip. The end often tells it from other names."""
    return name if len(name) <= _HEAD + _TAIL + 3 else f"{name[:_HEAD]}...{name[-_TAIL:]}"


def _bar(bins: Bins) -> dict[str, Any]:
    kind = "bar" if bins.kind == "values" else "rect"
    return {"type": kind, "color": BLUE, "stroke": "var(--card)", "strokeWidth": 0.5}


def _share_axis(n: int, greatest: float) -> dict[str, Any]:
    """Return the scale and the axis of strips: each has a tick at 0 and at a round share."""
    step = 10.0 ** math.floor(math.log10(greatest))
    tick = step * max(factor for factor in (1, 2, 5) if factor * step <= greatest)
    at = _HIGHEST_BAR * tick / greatest
    axis = {
        "title": "share of the simulations",
        "values": [bottom + place for bottom in range(n) for place in (0.0, at)],
        "tickCount": 2 * n,  # Vega leaves out values beyond this number
        "labelExpr": f"datum.value % 1 < 1e-6 ? '0 %' : '{100 * tick:.3g} %'",
    }
    return {"scale": {"domain": [0, n], "nice": False}, "axis": axis}
