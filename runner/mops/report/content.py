"""What sections of a report consist of: figures, tables, and the texts around them."""

from __future__ import annotations

import base64
import html
import io
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from mops.figures.charts import DARK, Chart

Width = Literal["third", "half", "whole"]

_WIDTHS = {"third": 340, "half": 510, "whole": 1080}
_PHONE = (340, 260)  # the width, and the greatest height
_MUTED = {"labelColor": "var(--muted)", "titleColor": "var(--muted)"}
_CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": None,
    "aria": False,  # the figure has one text for all, and screen readers need not walk through its marks
    "view": {"stroke": None},
    "axis": {
        **_MUTED,
        "gridColor": "var(--grid)",
        "domainColor": "var(--axis)",
        "tickColor": "var(--axis)",
        "tickSize": 4,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 6,
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
    "legend": {**_MUTED, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "rowPadding": 2},
    "line": {"strokeWidth": 1.8},
    "title": {"color": "var(--muted)"},
}
_GROUP = re.compile(r"<g\b[^>]*>")
_ROLE = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Figure:
    """A chart with its data, on a page."""

    chart: Chart = field(repr=False)
    data: pa.Table = field(repr=False)  # the numbers in it
    width: Width = "third"  # the share of the page; a figure wider than a third is drawn a second time for phones
    height: int = 215
    note: str = ""  # what the caption says after the caption of the chart
    is_live: bool = False  # whether the page draws it again in the browser, for its interactions

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The chart in Vega-Lite without a title and a size, in colours for light and dark pages."""
        text = json.dumps(self.chart.to_dict(validate=False))
        for light, dark in DARK.items():
            text = text.replace(f'"{light}"', f'"light-dark({light}, {dark})"')
        found: dict[str, Any] = json.loads(text)
        for name in ("title", "width", "height"):
            found.pop(name, None)
        return found | {"config": _CONFIG, "padding": 2}

    @property
    def title(self) -> str:
        """What the figure shows, in a few words."""
        return str(self._title["text"])

    @property
    def caption(self) -> str:
        """How to read the figure, and what it says."""
        return f"{' '.join(self._title['subtitle'])}{self.note}"

    @cached_property
    def _title(self) -> dict[str, Any]:
        found: dict[str, Any] = self.chart.title.to_dict()
        return found

    def sized(self, width: int, height: int) -> dict[str, Any]:
        """Return the chart in Vega-Lite with a size in pixels, which includes the axes if it is one view."""
        if "vconcat" not in self.spec:
            return self.spec | {"width": width, "height": height, "autosize": {"type": "fit", "contains": "padding"}}
        views = [one | {"width": width - 50} for one in self.spec["vconcat"]]
        return self.spec | {"vconcat": views}

    @property
    def live_spec(self) -> dict[str, Any]:
        """The chart for a browser, which draws it in the width of its place."""
        return self.sized(_WIDTHS[self.width], self.height)

    @cached_property
    def svgs(self) -> list[str]:
        """The SVG elements: one, or one for a desk and one for a phone."""
        wide = self.sized(_WIDTHS[self.width], self.height)
        if self.width == "third" or self.is_live:
            return [self._drawn(wide, "")]
        phone = self.sized(_PHONE[0], min(self.height, _PHONE[1]))
        return [self._drawn(wide, "desk"), self._drawn(phone, "phone")]

    def _drawn(self, spec: dict[str, Any], css_class: str) -> str:
        """Return a specification as an SVG element that other SVG elements of the page do not disturb."""
        import vl_convert  # noqa: PLC0415 - takes 0.1 s

        svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
        start, inner = re.fullmatch(r".*?(<svg\b[^>]*>)(.*)", svg, re.DOTALL).groups()  # type: ignore[union-attr]
        box = re.search(r'viewBox="[^"]*"', start)
        assert box is not None
        # Vega gives roles to marks also without texts for them, which screen readers would announce.
        inner = _GROUP.sub(lambda group: _ROLE.sub("", group[0]), inner)
        inner = _ID.sub(rf"\g<1>f{next(_numbers)}-", inner)
        alt = html.escape(f"{self.title}. {self.caption}")
        return f'<svg class="{css_class}" role="img" aria-label="{alt}" {box[0]}>{inner}'

    @property
    def csv(self) -> str:
        """The data as the address of a CSV file."""
        return csv_address(self.data)

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return f"{re.sub('[^a-z0-9]+', '-', self.title.lower()).strip('-')}.csv"


@dataclass(frozen=True)
class Gallery:
    """Figures next to each other."""

    figures: Sequence[Figure]
    kind: Literal["gallery"] = "gallery"

    @property
    def width(self) -> Width:
        """The width of the figures."""
        return self.figures[0].width


@dataclass(frozen=True)
class Block:
    """A part of a section with a template: ``kind`` is the name of its macro, ``data`` what the macro shows."""

    kind: str
    data: Any


@dataclass(frozen=True)
class Section:
    """A section of a report."""

    anchor: str  # its name in links
    title: str
    parts: Sequence[Gallery | Block]
    intro: str = ""  # a sentence below the title


def csv_address(table: pa.Table) -> str:
    """Return a table as a ``data:`` address of a CSV file for a spreadsheet."""
    # A report goes to people who have not seen the study, and a spreadsheet runs a text such as ``=HYPERLINK(...)`` as
    # a formula. So each text and name that it could run gets a ``'`` first, as OWASP advises. Numbers stay exact, also
    # as text. Files that programs read stay exact too, as those of pandas and polars: exported results and sampled
    # sets.
    columns = [_no_formulas(column) if pa.types.is_string(column.type) else column for column in table.columns]
    names = _no_formulas(pa.array(table.column_names, pa.string())).to_pylist()
    out = io.BytesIO()
    pa_csv.write_csv(pa.table(columns, names), out)
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(out.getvalue()).decode()}"


def _no_formulas(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    is_number = pc.match_substring_regex(texts, r"^[+-](\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
    could_run = pc.match_substring_regex(texts, r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]")
    return pc.if_else(pc.and_not(could_run, is_number), pc.binary_join_element_wise("'", texts, ""), texts)
