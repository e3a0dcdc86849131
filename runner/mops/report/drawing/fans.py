"""Layers of fan charts: bands, medians, single simulations, and data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from mops.figures.fan import Fan
from mops.project.mops_toml import Observed
from mops.report.drawing.axes import place, values
from mops.report.drawing.look import INK

_OPACITY, _LEAST_OPACITY = 0.75, 0.12
MIDDLE_50, MIDDLE_90 = ("low50", "high50"), ("low90", "high90")


def x_axis(fan: Fan) -> dict[str, Any]:
    """Return the encoding of the horizontal axis."""
    is_time = not pa.types.is_floating(fan.table["x"].type)
    return {"field": "x", "type": "temporal" if is_time else "quantitative", "title": fan.x, "scale": {"nice": False}}


def band(fan: Fan, x: dict[str, Any], y: dict[str, Any], colour: dict[str, Any], **style: Any) -> dict[str, Any]:
    """Return an area of the style ``ends``, a pair of columns, and ``opacity``; divisions with lines have none."""
    low, high = style["ends"]
    mark = {"type": "area", "opacity": style["opacity"], "clip": True}
    encoding = {"x": x, "y": y | {"field": low}, "y2": {"field": high}, "color": colour}
    return {**_rows(fan), "mark": mark, "encoding": encoding}


def median_line(
    fan: Fan, x: dict[str, Any], y: dict[str, Any], colour: dict[str, Any], dash: tuple[int, int] = (1, 0)
) -> dict[str, Any]:
    """Return the medians as a line; divisions with lines have none."""
    mark = {"type": "line", "strokeWidth": 2, "strokeDash": list(dash), "clip": True}
    return {**_rows(fan), "mark": mark, "encoding": {"x": x, "y": y | {"field": "median"}, "color": colour}}


def single_lines(
    fan: Fan,
    x: dict[str, Any],
    y: dict[str, Any],
    colour: dict[str, Any],
    strengths: Mapping[int, float] | None = None,  # of the line of each group, up to 1; None: all are the same
) -> list[dict[str, Any]]:
    """Return a layer with the single simulations of a fan; empty: it has none."""
    rows = [
        row
        | {
            "x": place(row["x"]),
            "simulation": f"{row['group']} {row['replicate']}",
            "opacity": _OPACITY if strengths is None else max(strengths[row["group"]], _LEAST_OPACITY),
        }
        for row in fan.lines.to_pylist()
    ]
    mark = {"type": "line", "strokeWidth": 1.4, "clip": True}
    opacity = {"field": "opacity", "type": "quantitative", "scale": None, "legend": None}
    detail = {"field": "simulation"}
    encoding = {"x": x, "y": y | {"field": "y"}, "color": colour, "opacity": opacity, "detail": detail}
    return [{**values(rows), "mark": mark, "encoding": encoding}] if rows else []


def data_layer(data: Observed, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    """Return data as points."""
    columns = (data.table[name].to_pylist() for name in (data.x, data.y))
    rows = [{"x": place(at), "y": value} for at, value in zip(*columns, strict=True) if at is not None]
    mark = {"type": "point", "filled": True, "size": 36, "color": INK, "opacity": 1, "stroke": "var(--card)"}
    return {**values(rows), "mark": mark | {"strokeWidth": 1}, "encoding": {"x": x, "y": y | {"field": "y"}}}


def _rows(fan: Fan) -> dict[str, Any]:
    with_lines = fan.with_lines
    return values([row | {"x": place(row["x"])} for row in fan.table.to_pylist() if row["division"] not in with_lines])
