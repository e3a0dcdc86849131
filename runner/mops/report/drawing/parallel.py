"""Parallel coordinates as SVG: an axis for each parameter, a line for each set. The page's script filters the lines."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Any

from mops.figures.bins import Bins
from mops.figures.parallel import Parallel
from mops.report.numbers import cell
from mops.units import counted, shortened

_WIDTH, _TOP, _HEIGHT, _BOTTOM, _SIDE = 1080, 44, 250, 24, 62
_CHARACTER_WIDTH = 8.0
_GRAB_WIDTH = 28


def parallel_svg(found: Parallel) -> tuple[str, list[dict[str, Any]]]:
    """Return the SVG element, and for each axis its name, its ends and its scale, for the script."""
    step = (_WIDTH - 2 * _SIDE) / max(len(found.axes) - 1, 1)
    xs = [_SIDE + i * step for i in range(len(found.axes))]
    rows = found.sets.table.to_pylist()
    scales = [Scale(axis) for axis in found.axes]
    # The attribute ``data-at`` says where a line crosses each axis, from 0 to 1, or ``-`` if it does not.
    lines = [_line(row, _kind(place, found.sets.n_best), scales, xs) for place, row in enumerate(rows)]
    title = found.sets.title
    drawn_axes = [
        part
        for axis, scale, x in zip(found.axes, scales, xs, strict=True)
        for part in _axis(title if axis.name == found.sets.label else axis.name, scale, x, step)
    ]
    over = ", ".join(axis.name for axis in found.axes[:-1])
    alt = f"{counted(len(rows), 'parameter set')} as lines over {over} and {title}."
    box = f"0 0 {_WIDTH} {_TOP + _HEIGHT + _BOTTOM}"
    start = f'<svg role="img" aria-label="{html.escape(alt)}" viewBox="{box}" font-size="12" fill="var(--muted)">'
    for_script = [
        {"name": title if axis.name == found.sets.label else axis.name, "low": s.low, "high": s.high, "log": s.is_log}
        for axis, s in zip(found.axes, scales, strict=True)
    ]
    # The best are drawn last, above the others.
    return "".join([start, *reversed(lines), *drawn_axes, "</svg>"]), [
        one | {"is_number": not axis.is_text} for one, axis in zip(for_script, found.axes, strict=True)
    ]


class Scale:
    """Where the values of an axis are: 0 at its lower end, 1 at its upper end."""

    def __init__(self, bins: Bins):
        self._bins = bins
        self.is_log = bins.kind == "log"
        self._texts = {value: i for i, value in enumerate(bins.values)} if bins.is_text else {}
        ends = bins.ends if bins.kind != "values" else list(range(len(bins))) if bins.is_text else bins.values
        self.low, self.high = (float(ends[0]), float(ends[-1])) if len(ends) else (0.0, 1.0)

    def at(self, value: Any) -> float | None:
        """Return the place of a value; None: it has none."""
        if self._texts:
            value = self._texts.get(value, len(self._texts) - 1 if value is not None else None)
        if value is None or not math.isfinite(value):
            return None
        if self.high == self.low:
            return 0.5
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places and the texts of the labels."""
        if self._texts:
            labels = zip(self._texts, self._bins.labels(), strict=True)
            return [(self.at(value) or 0.0, label) for value, label in labels]
        low, high = (cell(round(end) if self._bins.is_integer else end) for end in (self.low, self.high))
        return [(0.0, low), (1.0, high)] if self.high > self.low else [(0.5, low)]


def _y(share: float) -> float:
    return _TOP + (1 - share) * _HEIGHT


def _kind(place: int, n_best: int) -> str:
    return "set" if place >= n_best else "set best" if place else "set first"


def _line(row: dict[str, Any], kind: str, scales: list[Scale], xs: list[float]) -> str:
    at = [scale.at(row[scale._bins.name]) for scale in scales]
    steps, pen = [], "M"
    for share, x in zip(at, xs, strict=True):
        if share is None:
            pen = "M"
            continue
        steps.append(f"{pen}{x:.0f} {_y(share):.1f}")
        pen = "L"
    places = " ".join("-" if share is None else f"{share:.4g}" for share in at)
    return f'<path class="{kind}" data-set="{row["group"]}" data-at="{places}" d="{"".join(steps)}"/>'


def _title_place(characters: int, x: float, step: float) -> tuple[str, float]:
    """Return where the title of an axis is, and its width: above the axis, or at the border if it is too wide there."""
    room = min(x, _WIDTH - x)
    if 2 * room >= min(step, characters * _CHARACTER_WIDTH):
        return f'x="{x:.0f}" text-anchor="middle"', min(step, 2 * room)
    at_border = 'x="0"' if x < _WIDTH / 2 else f'x="{_WIDTH}" text-anchor="end"'
    return at_border, step / 2 + room


def _axis(name: str, scale: Scale, x: float, step: float) -> Iterator[str]:
    yield f'<line class="axis-line" x1="{x:.0f}" x2="{x:.0f}" y1="{_TOP}" y2="{_TOP + _HEIGHT}"/>'
    title = f"{name} (log)" if scale.is_log else name
    at, width = _title_place(len(title), x, step)
    shown = shortened(name, max(int(width / _CHARACTER_WIDTH) - len(title) + len(name), 6)) + title[len(name) :]
    yield (
        f'<text {at} y="16" fill="var(--ink)" font-weight="600">{html.escape(shown)}'
        f"<title>{html.escape(title)}</title></text>"
    )
    for share, text in scale.ticks():
        is_end = share in (0.0, 1.0) and not scale._texts
        y = _y(share) + (4 if not is_end else 16 if share == 0 else -7)
        place = f'x="{x:.0f}" text-anchor="middle"' if is_end else f'x="{x + 7:.0f}"'
        yield f'<text class="tick" {place} y="{y:.0f}">{html.escape(shortened(text, 14))}</text>'
    grab = f'x="{x - _GRAB_WIDTH / 2:.0f}" width="{_GRAB_WIDTH}"'
    yield f'<rect class="brush-range" {grab} y="{_TOP}" height="0"/>'
    yield f'<rect class="brush-area" {grab} y="{_TOP}" height="{_HEIGHT}"/>'
