"""What sections of a report consist of: figures, tables, and the texts around them."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from mops.report.drawing.svg import drawn

_PHONE_WIDTH = 340
_WIDTHS = {"third": 340, "half": 510, "whole": 1080}
Width = Literal["third", "half", "whole"]


@dataclass(frozen=True)
class Key:
    """An entry of a figure's legend: the colour of something."""

    colour: str
    text: str


@dataclass(frozen=True)
class Figure:
    """A figure with everything that a reader needs of it."""

    title: str  # what the figure shows, in a few words
    caption: str  # how to read it
    alt: str  # what it says, for readers who do not see it
    spec: dict[str, Any] = field(repr=False)  # Vega-Lite without a size
    data: pa.Table = field(repr=False)  # the numbers in it
    keys: Sequence[Key] = ()
    width: Width = "third"  # the share of the page; a figure wider than a third is drawn a second time for phones
    height: int = 215

    @cached_property
    def svgs(self) -> list[str]:
        """The SVG elements: one, or one for a desk and one for a phone."""
        wide = (_WIDTHS[self.width], self.height)
        if self.width == "third":
            return [drawn(self.spec, wide, self.alt)]
        phone = (_PHONE_WIDTH, min(self.height, 260))
        return [drawn(self.spec, wide, self.alt, "desk"), drawn(self.spec, phone, self.alt, "phone")]

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
