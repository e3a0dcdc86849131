"""The first rows of a table as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

import pyarrow as pa

from mops.study.ids_and_seeds import short_id
from mops.units import counted

HEAD_ROWS = 5
_CELL_CHARACTERS = 24
_LINE_CHARACTERS = 110


def as_text(title: str, rows: int, head: pa.Table) -> str:
    """Return the title, the number of rows and columns, and the first rows."""
    names, cells = head.column_names, _cells(head)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (names, *cells)]
    shown = [line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..." for line in lines]
    return "\n".join([_title(title, rows, head), *(line.rstrip() for line in shown), *_more(rows, head)])


def as_html(title: str, rows: int, head: pa.Table) -> str:
    """Return what :func:`as_text` returns as an HTML table."""
    fields = "".join(
        f'<th title="{html.escape(str(field.type))}">{html.escape(field.name)}</th>' for field in head.schema
    )
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in _cells(head))
    more = "".join(f"<p>{line}</p>" for line in _more(rows, head))
    return (
        f"<div><p>{html.escape(_title(title, rows, head))}</p>"
        f"<table><thead><tr>{fields}</tr></thead><tbody>{body}</tbody></table>{more}</div>"
    )


def _title(title: str, rows: int, head: pa.Table) -> str:
    return f"{title}: {counted(rows, 'row')}, {counted(head.num_columns, 'column')}"


def _more(rows: int, head: pa.Table) -> Sequence[str]:
    return [f"and {rows - head.num_rows:,} more"] if rows > head.num_rows else []


def _cells(head: pa.Table) -> list[list[str]]:
    return [[_cell(name, value) for name, value in row.items()] for row in head.to_pylist()]


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if name == "param_id":
        return short_id(text)
    text = text.partition("\n")[0]
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 3]}..."
