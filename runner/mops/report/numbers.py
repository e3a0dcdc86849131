"""Numbers for cells of tables and ends of axes."""

from __future__ import annotations

import math


def cell(value: object) -> str:
    """Return a value for people: floats with 4 digits, separators of thousands, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not 1_000 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{round(value, 3 - math.floor(math.log10(abs(value)))):,.0f}"
