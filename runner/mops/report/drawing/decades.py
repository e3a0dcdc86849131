"""Vertical axes of fan charts: linear, logarithmic, or logarithmic with a zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from mops.figures.columns import Floats
from mops.figures.log_axes import decades
from mops.report.drawing.axes import log_title
from mops.units import shortened

_PLAIN = (1e-4, 1e6)  # ticks that are written with all their digits


def value_axis(name: str, shown: Floats, *, has_decades: bool, is_shared: bool) -> tuple[dict[str, Any], str]:
    """Return the encoding of all values of a vertical axis, and a sentence for the caption."""
    found = decades(shown) if has_decades else None
    if found is None:
        low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
        scale = {"scale": {"domain": [min(low, 0.0), high], "nice": True}} if is_shared and high > min(low, 0.0) else {}
        return {"type": "quantitative", "title": shortened(name, 40), **scale}, ""
    ticks = found.ticks
    is_plain = all(_PLAIN[0] <= tick <= _PLAIN[1] for tick in ticks if tick)
    axis: dict[str, Any] = {"title": log_title(name), "format": ",~r" if is_plain else "~e"}
    axis |= {"values": ticks} if ticks else {}
    whole: dict[str, Any] = {"type": "log", "zero": False}
    if found.linear_below is not None:
        whole = {"type": "symlog", "constant": found.linear_below}
    whole |= {"nice": False, "domain": [found.low, found.high]}
    return {"type": "quantitative", "scale": whole, "axis": axis}, f" {found.note()}"
