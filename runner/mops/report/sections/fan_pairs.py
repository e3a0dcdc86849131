"""Two fans of a column in one figure, to compare some parameter sets with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mops.figures.columns import Floats, numbers
from mops.figures.fan import Fan
from mops.figures.row_keys import division_text
from mops.project.mops_toml import Observed
from mops.report.content import Figure, Key, Width
from mops.report.drawing.axes import round_ends
from mops.report.drawing.decades import value_axis
from mops.report.drawing.fans import MIDDLE_50, MIDDLE_90, band, data_layer, median_line, single_lines, x_axis
from mops.report.drawing.look import BLUE, GREY, INK
from mops.report.numbers import cell
from mops.units import shortened

_OF_LINE = ("group", "replicate")


@dataclass(frozen=True)
class Side:
    """One of the two fans."""

    fan: Fan
    name: str  # what its rows are called in the data
    text: str  # the same in sentences, such as "all sets"
    key: str  # the same in the key
    # of each group, which lines of single simulations show; None: all groups have the same
    weights: Mapping[int, float] | None = None

    @property
    def strengths(self) -> dict[int, float] | None:
        """How strong the lines of each group are, up to 1; None: all are the same."""
        if self.weights is None:
            return None
        n = Counter(group for group, _ in {*zip(*(self.fan.lines[name].to_pylist() for name in _OF_LINE), strict=True)})
        share = {group: self.weights[group] / n[group] for group in n}
        most = max(share.values(), default=0.0)
        return {group: one / most for group, one in share.items()}

    @property
    def data(self) -> pa.Table:
        """The rows that the figure draws: the quantiles of a fan, or the single simulations."""
        rows = self.fan.table
        if len(self.fan.lines):
            rows = self.fan.lines
            if self.weights is not None:
                weights = pa.array([self.weights[group] for group in rows["group"].to_pylist()], pa.float64())
                rows = rows.append_column("weight", weights)
        return rows.drop_columns(["division"]).add_column(0, "sets", pa.array([self.name] * len(rows)))


@dataclass(frozen=True)
class FanPair:
    """A fan in grey, and another one in blue above it, for which the vertical axis is made."""

    under: Side
    over: Side
    data: Observed | None  # that both are compared with
    has_inner_bands: bool = False  # whether the middle 50 % are drawn too
    has_decades: bool = False  # whether the axis is logarithmic, if no value is negative: fan.have_decades

    @property
    def alt(self) -> str:
        """What the figure says at the last x of the fan above, and of the other one at the same x."""
        over, under = self.over.fan, self.under.fan
        last = over.table.to_pylist()[-1]
        x = f"{last['x']:.6g}" if isinstance(last["x"], float) else str(last["x"])
        ends = "" if len(over.lines) else f", 90 % between {cell(last['low90'])} and {cell(last['high90'])}"
        same = [row["median"] for row in under.table.to_pylist() if row["x"] == last["x"]]
        other = f", and {cell(same[0])} in {self.under.text}" if same else ""
        return f"At {over.x} = {x}, the median of {over.y} is {cell(last['median'])} in {self.over.text}{ends}{other}."

    def figure(self, title: str, caption: str, alt: str, width: Width) -> Figure:
        """Return the figure. The caption also says what does not fit on the axis."""
        over, under = self.over.fan, self.under.fan
        x, (y, note) = x_axis(under), self._y_axis()
        keys = [Key(BLUE, self.over.key), Key(GREY, self.under.key)]
        keys += [Key(INK, f"data: {shortened(self.data.file, 60)}")] if self.data else []
        sides = (self.under, self.over)
        data = pa.concat_tables([one.data for one in sides], promote_options="default")
        caption = f"{caption}{note}{self._cut_note(y)}{_lines_note(over, under)}"
        spec = {"layer": self._layers(x, y)}
        return Figure(title, caption, alt, spec, data, keys, width, 290)

    def _layers(self, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
        grey, blue = {"value": GREY}, {"value": BLUE}
        under, over = self.under.fan, self.over.fan
        layers = [band(under, x, y, grey, ends=MIDDLE_90, opacity=0.22)]
        layers += [band(under, x, y, grey, ends=MIDDLE_50, opacity=0.22)] if self.has_inner_bands else []
        layers += single_lines(under, x, y, grey, self.under.strengths)
        layers += [band(over, x, y, blue, ends=MIDDLE_90, opacity=0.3)]
        layers += [band(over, x, y, blue, ends=MIDDLE_50, opacity=0.35)] if self.has_inner_bands else []
        layers += single_lines(over, x, y, blue, self.over.strengths)
        layers += [median_line(under, x, y, grey, (4, 3)), median_line(over, x, y, blue)]
        return layers + ([data_layer(self.data, x, y)] if self.data else [])

    def _y_axis(self) -> tuple[dict[str, Any], str]:
        """Return the encoding of the vertical axis, which fits the fan above and the data, and a note for a caption."""
        shown = self._shown()
        low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
        if low >= 0 and self.has_decades:
            zero = [0.0] if np.any(_drawn(self.under.fan) == 0) else []  # only a part that is linear has a place for it
            return value_axis(self.over.fan.y, np.append(shown, zero), has_decades=True, is_shared=False)
        scale = {"domain": list(round_ends(low, high)), "nice": False} if high > low else {"zero": False}
        return {"type": "quantitative", "title": shortened(self.over.fan.y, 40), "scale": scale}, ""

    def _cut_note(self, y: dict[str, Any]) -> str:
        """Return what does not fit on a vertical axis: the band or the lines of the fan below."""
        fan, domain = self.under.fan, y.get("scale", {}).get("domain")
        values = _drawn(fan)
        if domain is None or (domain[0] <= np.nanmin(values) and np.nanmax(values) <= domain[1]):
            return ""
        fitted = f"{self.over.text} and the data" if self.data else self.over.text
        what = "some lines" if len(fan.lines) else "the band"
        cut = f"{what} of {self.under.text} {'are' if len(fan.lines) else 'is'} cut off"
        return f" The vertical axis fits {fitted}; {cut}."

    def _shown(self) -> Floats:
        table = self.over.fan.table
        columns = [table["low90"], table["high90"], *([self.data.table[self.data.y]] if self.data else [])]
        return np.concatenate([numbers(column) for column in [*columns, self.over.fan.lines["y"]]])


def _drawn(fan: Fan) -> Floats:
    """Return the values of the lines, or of the ends of the band."""
    columns = [fan.lines["y"]] if len(fan.lines) else [fan.table[end] for end in MIDDLE_90]
    return np.concatenate([numbers(column) for column in columns])


def _lines_note(*fans: Fan) -> str:
    return " Fewer than 10 simulations are lines instead of bands." if any(len(fan.lines) for fan in fans) else ""


def pairs_of_divisions(under: Fan, over: Fan) -> list[tuple[Fan, Fan]]:
    """Return the fans of each division that both fans have."""
    of_over = {part.table["division"][0].as_py(): part for part in over.divided()}
    parts = ((part.table["division"][0].as_py(), part) for part in under.divided())
    return [(part, of_over[division]) for division, part in parts if division in of_over]


def only_text(fan: Fan) -> str:
    """Return which division a fan with one division shows, for a title; empty: it is not divided."""
    divisions = fan.table["division"].unique().to_pylist()
    return f", {shortened(division_text(fan.by, divisions[0]), 43)}" if fan.by and len(divisions) == 1 else ""
