"""Histograms of outputs that have one row for each simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from mops.figures.choices import IDENTITY, number_columns
from mops.figures.row_keys import division_text
from mops.figures.spreads import LEAST_VALUES, Spread
from mops.jobs.figure_data import spreads_of
from mops.report.content import Block, Figure, Gallery
from mops.report.drawing.histograms import histogram, strips
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.units import counted, shortened

_FIGURES = 6
_COLUMNS_READ = 12  # of each output: some may have too few values, or the same one in all simulations
_NAMED = 12  # columns in a note for each reason
_HEIGHT, _STRIP_HEIGHT, _AXES_HEIGHT = 215, 58, 55


def spreads(facts: Facts, outputs: Sequence[str]) -> list[Gallery | Block]:
    """Return a histogram for each number of outputs without a course, and notes that name the columns without one."""
    shown: list[Spread] = []
    texts: list[str] = []
    without: dict[str, list[str]] = {}
    for output in outputs:
        schema = facts.data.dataset("outputs", output).schema
        read = number_columns(schema)[: _COLUMNS_READ if len(shown) < _FIGURES else 0]
        found = spreads_of(facts.data, output, read)
        if found is None:
            texts.append(
                f"The output {shortened(output, 40)} has no figure: it has several rows for a simulation, and no "
                "column such as 'day' or 'time' along which mops could draw the course of its numbers."
            )
            continue
        chosen = [one for one in found if not one.is_constant][: _FIGURES - len(shown)]
        shown += chosen
        for name, reason in _unshown(schema, read, found, chosen):
            without.setdefault(reason, []).append(shortened(f"{output}.{name}", 60))
    texts += [f"Without a figure: {_listed(names)} ({reason})." for reason, names in without.items()]
    return [*([Gallery(list(map(_figure, shown)))] if shown else []), *(Block("note", text) for text in texts)]


def _unshown(
    schema: pa.Schema, read: Sequence[str], found: Sequence[Spread], chosen: Sequence[Spread]
) -> Iterator[tuple[str, str]]:
    """Yield the columns of an output that have no figure, with the reason."""
    numeric, spread_of, shown = number_columns(schema), {one.y: one for one in found}, {one.y for one in chosen}
    for name in schema.names:
        if name in IDENTITY or name in shown:
            continue
        if name not in numeric:
            yield name, "not a number"
        elif name in read and name not in spread_of:
            yield name, f"fewer than {LEAST_VALUES} values"
        elif name in read and spread_of[name].is_constant:
            yield f"{name} = {cell(spread_of[name].strips[0].median)}", "all values are equal"
        else:
            yield name, f"the report has figures of {_FIGURES} columns"


def _listed(names: Sequence[str]) -> str:
    n_more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {counted(n_more, 'other')}" if n_more > 0 else "")


def _figure(found: Spread) -> Figure:
    title = f"{shortened(found.y, 40)} ({shortened(found.output, 40)})"
    if found.by is None:
        spec = histogram(found.bins, found.table, shortened(found.y, 40), "simulations")
        return Figure(title, found.caption, f"Histogram. {found.caption}", spec, found.table.drop_columns("division"))
    medians = (
        f"for {division_text(found.by, strip.division)} {cell(strip.median)}, between {cell(strip.least)} and "
        f"{cell(strip.greatest)}"
        for strip in found.strips
    )
    alt = f"Histograms. The median of {found.y} is {'; '.join(medians)}."
    height = max(_HEIGHT, _AXES_HEIGHT + _STRIP_HEIGHT * len(found.strips))
    return Figure(title, found.caption, alt, strips(found), found.table, height=height)
