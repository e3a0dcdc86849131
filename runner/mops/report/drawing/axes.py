"""Axes of figures: of bins, of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from mops.figures.bins import Bins, is_constant
from mops.figures.log_axes import log_ticks
from mops.units import shortened

TICKS = 5
_MOST_STEPS = 12
_LABEL_WIDTH = 70
_CHARACTER_WIDTH, _LABEL_GAP = 6.0, 8
_AXIS_WIDTH = 280  # pixels of the horizontal axis of a small figure
_LOG_TITLE = 22  # characters of a name that leave room for "(log scale)" on a small figure


def bin_axis(bins: Bins, channel: str, *, title: str | None = None) -> dict[str, Any]:
    """Return the encoding of bins on the channel ``x`` or ``y``. The data have ``label``, ``low`` and ``high``."""
    # Names from a study are only titles and values, never names of fields, in which Vega-Lite would see syntax.
    name = bins.name if title is None else title
    prefix = f"{channel}_" if channel in ("x", "y") else ""
    if bins.kind == "values":
        order = bins.labels()
        axis: dict[str, Any] = {"title": name, "labelLimit": _LABEL_WIDTH, **_label_style(order, channel, bins)}
        if channel == "y" and not bins.is_text:  # Vega-Lite begins at the top
            order.reverse()
        return {channel: {"field": f"{prefix}label", "type": "ordinal", "sort": order, "axis": axis}}
    scale = {"type": bins.kind, "zero": False, "nice": False, "domain": [float(bins.edges[0]), float(bins.edges[-1])]}
    axis = {"title": log_title(name) if bins.kind == "log" else name, "tickCount": TICKS}
    if bins.kind == "log":
        axis |= _log_ticks(float(bins.edges[0]), float(bins.edges[-1]))
    elif bins.is_integer:
        axis |= {"tickMinStep": 1}
    first = {"field": f"{prefix}low", "type": "quantitative", "scale": scale, "axis": axis}
    return {channel: first, f"{channel}2": {"field": f"{prefix}high"}}


def _label_style(labels: Sequence[str], channel: str, bins: Bins) -> dict[str, Any]:
    """Return how to write the labels of values. Texts get no regular steps, so none may be left out."""
    longest = max(map(len, labels), default=0)
    needed = len(labels) * min(longest * _CHARACTER_WIDTH + _LABEL_GAP, _LABEL_WIDTH)
    if channel == "x" and bins.is_text and needed > _AXIS_WIDTH:
        return {"labelAngle": -40, "labelOverlap": False}
    return {"labelAngle": 0, "labelSeparation": _LABEL_GAP}


def bin_rows(bins: Bins, channel: str) -> list[dict[str, Any]]:
    """Return the fields of :func:`bin_axis` for each bin, and where to draw a point."""
    table = bins.table()
    middles = bins.middles.tolist()
    rows = []
    for row, middle in zip(table.to_pylist(), middles, strict=True):
        rows.append(
            {f"{channel}_{name}": row[name] for name in ("label", "low", "high")} | {f"{channel}_middle": middle}
        )
    return rows


def point_axis(bins: Bins, channel: str) -> dict[str, Any]:
    """Return the encoding of points in the middles of bins, on the same axis as :func:`bin_axis`."""
    encoding = bin_axis(bins, channel)
    if bins.kind != "values":
        encoding = {channel: encoding[channel] | {"field": f"{channel}_middle"}}
    return encoding


def loss_axis(losses: Sequence[float], title: str, *, is_log: bool) -> dict[str, Any]:
    """Return the encoding of losses on a vertical axis; ``is_log``: of all losses, also those that are not shown."""
    if losses and is_constant(np.array(losses)):
        middle, half = losses[0], abs(losses[0]) / 10 or 1.0
        scale = {"domain": [middle - half, middle + half], "nice": False}
        return {"type": "quantitative", "scale": scale, "axis": {"title": title, "values": [middle], "format": ",.4~g"}}
    if not is_log or not losses:
        return {"type": "quantitative", "scale": {"zero": False}, "axis": {"title": title}}
    axis = {"title": log_title(title), **_log_ticks(min(losses), max(losses))}
    return {"type": "quantitative", "scale": {"type": "log", "nice": False}, "axis": axis}


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis. Without regular ones, Vega chooses them."""
    ticks = log_ticks(low, high)
    return {"format": ",~g"} | ({"values": ticks} if ticks else {})


def round_ends(low: float, high: float) -> tuple[float, float]:
    """Return round numbers around two different ones, near them: where a linear axis ends."""
    step = 10.0 ** math.floor(math.log10(high / 10 - low / 10))
    step *= next(factor for factor in (1, 2, 5, 10) if high / step - low / step <= _MOST_STEPS * factor)
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    return ends if all(map(math.isfinite, ends)) else (low, high)


def log_title(name: str) -> str:
    """Return the title of an axis with a logarithmic scale."""
    return f"{shortened(name, _LOG_TITLE)} (log scale)"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for a span of time: its seconds, and its name."""
    for limit, unit_s, name in ((180.0, 1.0, "seconds"), (7200.0, 60.0, "minutes"), (172_800.0, 3600.0, "hours")):
        if seconds < limit:
            return unit_s, name
    return 86_400.0, "days"


def byte_unit(n_bytes: int) -> tuple[int, str]:
    """Return the unit for sizes: its bytes, and its name."""
    return (2**30, "GiB") if n_bytes >= 2 * 2**30 else (2**20, "MiB")


def values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows as the data of a specification."""
    return {"data": {"values": rows}}


def place(x: Any) -> Any:
    """Return a value of a horizontal axis as Vega-Lite reads it: a number, or a date or time as ISO 8601."""
    if isinstance(x, date) and not isinstance(x, datetime):
        return f"{x.isoformat()}T00:00:00"  # JavaScript reads a date alone as UTC, and draws it in local time
    return x if isinstance(x, int | float) else x.isoformat()
