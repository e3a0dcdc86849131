"""The courses of outputs as fan charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mops.errors import UsageError
from mops.figures.choices import Course, choose_course
from mops.figures.columns import numbers
from mops.figures.fan import MOST_OVERLAID, Fan, have_decades
from mops.figures.losses import ScoredSets
from mops.figures.row_keys import division_text
from mops.jobs.figure_data import course_of, data_of, declared, fans_of, is_single_row
from mops.project.mops_toml import Observed
from mops.report.content import Block, Figure, Gallery, Key, Section, Width
from mops.report.drawing.decades import value_axis
from mops.report.drawing.fans import MIDDLE_50, MIDDLE_90, band, data_layer, median_line, single_lines, x_axis
from mops.report.drawing.look import BLUE, INK, SERIES
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.report.sections.best_courses import best_courses
from mops.report.sections.fan_pairs import only_text
from mops.report.sections.losses import MOST_RANKINGS
from mops.report.sections.spreads import spreads
from mops.report.sections.unshown_data import unshown_data
from mops.units import counted, shortened

_OUTPUTS_SHOWN = 4
_BEST, _LEAST_SCORED = 10, 20


def courses(facts: Facts) -> list[Course]:
    """Return what fan charts of a job's outputs show, those with data first."""
    return _shown(_course_of_each(facts))


def _shown(course_of: Mapping[str, Course | UsageError | None]) -> list[Course]:
    return [course for course in course_of.values() if isinstance(course, Course)][:_OUTPUTS_SHOWN]


def _course_of_each(facts: Facts) -> dict[str, Course | UsageError | None]:
    """Return the course of each output, those with data first; an error: why it has no figure; None: no course."""
    data = declared(facts.data.observed)
    with_data = {output for output, *_ in data}
    found: dict[str, Course | UsageError | None] = {}
    for name in sorted(facts.data.output_names, key=lambda name: name not in with_data):
        # Without data, a result with one row for each simulation, such as ``{"time": 3.5, "cost": 20}``, has no course.
        has_course = choose_course({name: facts.data.dataset("outputs", name).schema}, data=data) is not None
        if not has_course or (name not in with_data and is_single_row(facts.data, name)):
            found[name] = None
            continue
        try:
            found[name] = course_of(facts.data, name, places=data)
        except UsageError as several:
            found[name] = several
    return found


def outputs(facts: Facts) -> Section | None:
    """Return the section about outputs; None: there are none."""
    names = facts.data.output_names
    if not names:
        return None
    of_each = _course_of_each(facts)
    width: Width = "half" if sum(len(course.ys) for course in _shown(of_each)) > 1 else "whole"
    undrawn = [_undrawn(why) for why in of_each.values() if isinstance(why, UsageError)]
    fans: list[Fan] = []
    figures: list[list[Figure]] = []
    rankings = _rankings(facts)
    best: list[list[Figure]] = [[] for _ in rankings]
    for course in _shown(of_each):
        try:
            some = [fan for fan in fans_of(facts.data, course) if len(fan.table)]
            of_best = [best_courses(facts, scored, course, _BEST, width) for scored in rankings]
        except UsageError as several:  # of sets that the choice of the course has not read
            undrawn.append(_undrawn(several))
            continue
        fans += some
        best = [[*earlier, *more] for earlier, more in zip(best, of_best, strict=True)]
        has_decades = have_decades(some)
        figures += [_figures(fan, data_of(facts.data.observed, fan), width, has_decades=has_decades) for fan in some]
    notes = [*unshown_data(facts, fans), *undrawn]
    histograms = spreads(facts, [name for name, course in of_each.items() if course is None])
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
    shown = np.concatenate([fan.shown, *([numbers(data.table[data.y])] if data else [])])
    is_shared = len(divisions) > (1 if fan.keys else MOST_OVERLAID)  # areas would overlap
    y, note = value_axis(fan.y, shown, has_decades=has_decades, is_shared=is_shared)
    if not is_shared:
        return [_figure(fan, data, width, y, note)]
    of = zip(divisions, fan.divided(), strict=True)
    return [_figure(part, data and data.of_division(division), "third", y, note) for division, part in of]


def _figure(fan: Fan, data: Observed | None, width: Width, y: dict[str, Any], note: str) -> Figure:
    divisions = fan.table["division"].unique().to_pylist()
    x = x_axis(fan)
    colour: dict[str, Any] = {"value": BLUE}
    if fan.by is not None and len(divisions) > 1:
        scale = {"domain": divisions, "range": list(SERIES[: len(divisions)])}
        colour = {"field": "division", "type": "nominal", "scale": scale, "legend": None}
    layers = [
        band(fan, x, y, colour, ends=MIDDLE_90, opacity=0.16),
        band(fan, x, y, colour, ends=MIDDLE_50, opacity=0.28),
        *single_lines(fan, x, y, colour),
        median_line(fan, x, y, colour),
        *([data_layer(data, x, y)] if data else []),
    ]
    title = f"{shortened(fan.y, 40)} ({shortened(fan.output, 40)}){only_text(fan)}"
    keys = _keys(divisions, fan) + ([Key(INK, f"data: {shortened(data.file, 60)}")] if data else [])
    shown = fan.lines if set(fan.with_lines) == set(divisions) else fan.table
    return Figure(title, f"{fan.caption}{note}", _alt(fan), {"layer": layers}, shown, keys, width, 290)


def _alt(fan: Fan) -> str:
    last = {row["division"]: row for row in fan.table.to_pylist()}
    texts = [
        (f"for {division_text(fan.by, division)} " if len(last) > 1 else "") + _spread(fan, division, row)
        for division, row in last.items()
    ]
    return f"At the last {fan.x}, the median of {fan.y} is {'; '.join(texts)}."


def _spread(fan: Fan, division: str | None, row: dict[str, Any]) -> str:
    if division in fan.with_lines:
        return f"{cell(row['median'])}, of {counted(row['n'], 'value')}"
    return f"{cell(row['median'])}, 90 % between {cell(row['low90'])} and {cell(row['high90'])}"


def _keys(divisions: list[str | None], fan: Fan) -> list[Key]:
    if fan.by is None or len(divisions) < 2:
        return []
    return [Key(colour, division_text(fan.by, division)) for division, colour in zip(divisions, SERIES, strict=False)]
