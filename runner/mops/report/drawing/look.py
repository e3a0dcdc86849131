"""The look of figures: colours as variables of the page, so that one SVG serves a light and a dark page.

The colours of series are Okabe and Ito's, which people with colour blindness tell apart, darkened or lightened until
each has enough contrast with the page. ``page/look.css`` has their values.
"""

from __future__ import annotations

from typing import Any

BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY, GREY, PALE = (
    f"var(--{name})" for name in ("blue", "vermilion", "green", "purple", "amber", "sky", "grey", "pale")
)
INK, MUTED, GRID, AXIS = (f"var(--{name})" for name in ("ink", "muted", "grid", "axis"))
SERIES = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)
# Six steps from the least to the greatest value; the least, which is the best loss, stands out most.
RAMP = tuple(f"var(--ramp-{i})" for i in range(1, 7))

# The colours of shares: none, in four steps, all. The first is darker than the page: a share of 0 is a result.
SHARES = tuple(f"var(--share-{i})" for i in range(1, 7))

# The key of a cell without sets, which has a cross.
CROSS = ", ".join(
    f"linear-gradient({angle}deg, transparent 44%, var(--muted) 44% 56%, transparent 56%)" for angle in (45, -45)
)

FONT = "system-ui, sans-serif"

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": None,
    "aria": False,  # the figure has one text for all, and screen readers need not walk through its marks
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "gridColor": GRID,
        "domainColor": AXIS,
        "tickColor": AXIS,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 6,
        "tickSize": 4,
        "tickCount": 5,
        "labelLimit": 130,
        "titleLimit": 190,
        "labelOverlap": True,
    },
    "axisX": {"grid": False},
    "axisY": {
        "domain": False,
        "ticks": False,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleBaseline": "bottom",
        "titleX": 0,
        "titleY": -8,
    },
    "legend": {"labelColor": MUTED, "titleColor": MUTED, "labelFontSize": 11, "titleFontSize": 11, "orient": "top"},
    "line": {"strokeWidth": 1.8},
}
