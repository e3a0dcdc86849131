"""The outputs: their courses as fan charts, those of the best sets, and results without a course as histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mops.errors import MopsError, UsageError
from mops.figures import charts, course_charts
from mops.figures.choices import IDENTITY, Course, number_columns
from mops.figures.columns import Floats, cell, numbers
from mops.figures.course_charts import only_text
from mops.figures.fan import MOST_OVERLAID, Fan, have_decades
from mops.figures.losses import TOTAL, ScoredSets, named
from mops.figures.spreads import LEAST_VALUES, Spread
from mops.jobs.figure_data import (
    best_groups,
    data_of,
    fans_of,
    points_of,
    spreads_of,
)
from mops.project.mops_toml import Observed
from mops.report.content import Block, Figure, Gallery, Section, Width
from mops.report.facts import Facts
from mops.report.losses import MOST_RANKINGS, by_loss
from mops.units import counted, shortened

_OUTPUTS_SHOWN = 4
_BEST, _LEAST_SCORED = 10, 20
_FIGURES = 6  # histograms
_COLUMNS_READ = 12  # of each output: some may have too few values, or the same one in all simulations
_NAMED = 12  # columns in a note for each reason


def courses(facts: Facts) -> list[Course]:
    """Return what fan charts of a job's outputs show, those with data first."""
    return [course for course in facts.course_of_each.values() if isinstance(course, Course)][:_OUTPUTS_SHOWN]


def outputs(facts: Facts) -> Section | None:
    """Return the section about outputs; None: there are none."""
    names = facts.data.output_names
    if not names:
        return None
    shown = courses(facts)
    width: Width = "half" if sum(len(course.ys) for course in shown) > 1 else "whole"
    undrawn = [_undrawn(why) for why in facts.course_of_each.values() if isinstance(why, UsageError)]
    fans: list[Fan] = []
    figures: list[list[Figure]] = []
    rankings = _rankings(facts)
    best: list[list[Figure]] = [[] for _ in rankings]
    for course in shown:
        try:
            some = [fan for fan in fans_of(facts.data, course) if len(fan.table)]
            every = fans_of(facts.data, course, by=False) if rankings else []
            of_best = [best_courses(facts, scored, course, every, _BEST, width) for scored in rankings]
        except UsageError as several:  # of sets that the choice of the course has not read
            undrawn.append(_undrawn(several))
            continue
        fans += some
        best = [[*earlier, *more] for earlier, more in zip(best, of_best, strict=True)]
        has_decades = have_decades(some)
        figures += [_figures(fan, data_of(facts.data.observed, fan), width, has_decades=has_decades) for fan in some]
    notes = [*unshown_data(facts, fans), *undrawn]
    histograms = spreads(facts, [name for name, course in facts.course_of_each.items() if course is None])
    if not figures and not histograms and not undrawn:
        notes.append(Block("note", f"Outputs: {', '.join(names)}. None has numbers for a figure."))
    alone = [one for some in figures if len(some) == 1 for one in some]
    galleries = [Gallery(some) for some in ([alone] if alone else []) + [some for some in figures if len(some) > 1]]
    galleries += [Gallery(some) for some in best if some]
    return Section("outputs", "Outputs", [*notes, *galleries, *histograms])


def _rankings(facts: Facts) -> list[ScoredSets]:
    """Return the sets for each ranking whose best sets have figures."""
    if facts.scored.n_complete < _LEAST_SCORED:
        return []
    return [scored for scored in facts.scored.criteria()[:MOST_RANKINGS] if not scored.is_constant()]


def _undrawn(why: UsageError) -> Block:
    """Return the note of an output with a course that cannot be drawn."""
    return Block("note", f"{why.what[0].upper()}{why.what[1:]}: {why.hint}.")


def _figures(fan: Fan, data: Observed | None, width: Width, *, has_decades: bool) -> list[Figure]:
    """Return a figure; of keys or of more than two divisions a figure for each, with the same axes."""
    divisions = fan.table["division"].unique().to_pylist()
    if fan.keys and len(divisions) == 1:
        data = data and data.of_division(divisions[0])
    is_shared = len(divisions) > (1 if fan.keys else MOST_OVERLAID)  # areas would overlap
    if not is_shared:
        return [_fan(fan, data, width, has_decades=has_decades)]
    shown = np.concatenate([fan.shown, *([numbers(data.table[data.y])] if data else [])])
    of = zip(divisions, fan.divided(), strict=True)
    return [
        _fan(part, data and data.of_division(division), "third", has_decades=has_decades, shown=shown)
        for division, part in of
    ]


def _fan(fan: Fan, data: Observed | None, width: Width, *, has_decades: bool, shown: Floats | None = None) -> Figure:
    name = data.file if data else ""
    chart = course_charts.fan(fan, points_of(data), data_name=name, has_decades=has_decades, shown=shown)
    return Figure(chart, fan.table, width, 290)


def best_courses(
    facts: Facts, scored: ScoredSets, course: Course, every: Sequence[Fan], n_best: int, width: Width
) -> list[Figure]:
    """Return a figure for each column of a course and each division: all sets, and the best sets before them."""
    best = fans_of(facts.data, course, by=False, best=best_groups(scored, n_best))
    loss, by, figures = named(scored.title(TOTAL)), by_loss(scored), []
    for one, of_best in zip(every, best, strict=True):
        data = data_of(facts.data.observed, one)
        for whole, chosen in pairs_of_divisions(one, of_best):
            sets = counted(chosen.n_sets_shown, "set")
            caption = (
                f"Median (lines) and the middle 90 % (bands) of {counted(chosen.n_simulations, 'simulation')} of the "
                f"{sets} with the least {loss}, and of {counted(whole.n_simulations, 'simulation')} of all sets."
            )
            title = f"{shortened(whole.y, 40)} of the best sets{by} ({shortened(whole.output, 30)}){only_text(whole)}"
            names = "all sets", f"the {sets} with the least {loss}"
            here = data and data.of_division(whole.table["division"][0].as_py())
            options: dict[str, Any] = {"rows": ("all", "best"), "has_decades": have_decades(every)}
            figures.append(compared(whole, chosen, names, here, title, caption, width, **options))
    return figures


def compared(
    under: Fan,
    over: Fan,
    names: tuple[str, str],
    data: Observed | None,
    title: str,
    caption: str,
    width: Width,
    *,
    rows: tuple[str, str] | None = None,  # what the data call the two fans; None: as `names`
    has_inner_bands: bool = False,
    has_decades: bool = False,
) -> Figure:
    """Return a figure of two fans of a column. Its caption says what does not fit on the axis."""
    options = {"data_name": data.file if data else "", "has_inner_bands": has_inner_bands, "has_decades": has_decades}
    chart, is_cut = course_charts.compared(under, over, names, points_of(data), **options)  # type: ignore[arg-type]
    if is_cut:
        fitted = f"{names[1]} and the data" if data else names[1]
        caption += f" The vertical axis fits {fitted}; the grey band is cut off."
    tables = [
        fan.table.drop_columns(["division"]).add_column(0, "sets", pa.array([name] * len(fan.table)))
        for fan, name in zip((under, over), rows or names, strict=True)
    ]
    return Figure(charts.titled(chart, title, caption), pa.concat_tables(tables), width, 290)


def pairs_of_divisions(under: Fan, over: Fan) -> list[tuple[Fan, Fan]]:
    """Return the fans of each division that both fans have."""
    of_over = {part.table["division"][0].as_py(): part for part in over.divided()}
    parts = ((part.table["division"][0].as_py(), part) for part in under.divided())
    return [(part, of_over[division]) for division, part in parts if division in of_over]


def unshown_data(facts: Facts, fans: Sequence[Fan]) -> list[Block]:
    """Return a note for each table of declared data that is in none of the fans."""
    observed = facts.data.observed
    if isinstance(observed, MopsError):
        return [Block("note", f"The figures have no data: {observed.what} ({observed.where}).")]
    shown = [id(data.table) for fan in fans if (data := data_of(observed, fan)) is not None]
    return [
        Block("note", f"No figure shows the data of {one.file} for {one.y!r} of {one.output!r} along {one.x!r}.")
        for one in observed
        if id(one.table) not in shown
    ]


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
    data = found.table.drop_columns("division") if found.by is None else found.table
    return Figure(course_charts.spread(found), data)
