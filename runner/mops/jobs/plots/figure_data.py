"""Reads from a job what each figure needs, and returns the numbers of the figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from mops.errors import MopsError, UsageError, known_name
from mops.figures.choices import IDENTITY, MOST_DIVISIONS, Course, choose_course, choose_division
from mops.figures.columns import Integers, numbers
from mops.figures.failures import FailedSets, FailureBins, failure_bins
from mops.figures.fan import Fan, FanSource, fans, have_decades, sample_of_sets
from mops.figures.log_axes import Decades, decades
from mops.figures.losses import ScoredSets
from mops.figures.row_keys import (
    candidates,
    check_divisions,
    division_texts,
    has_one_row,
    keys_of_rows,
    n_different,
    placed,
    several_rows,
)
from mops.figures.spreads import Spread, SpreadSource, spreads
from mops.figures.timeline import Timeline, timeline
from mops.jobs.data import JobData
from mops.jobs.tables.conditions import Where
from mops.jobs.tables.ranking import require_total, scored_sets
from mops.project.mops_toml import Observed


def timeline_of(data: JobData) -> Timeline:
    """Return the job over time."""
    limit = data.last_live.limit_bytes or None if data.last_live else None
    return timeline(data.samples, data.record.n_simulations, limit)


def scored_of(data: JobData, target: str | None = None, weights: Mapping[str, float] | None = None) -> ScoredSets:
    """Return the parameter sets that have a loss; the arguments and errors are those of :func:`scored_sets`."""
    scored = scored_without_parameters(data, target, weights)
    table = data.parameters.joined(scored.table)
    return replace(scored, table=table, parameters=tuple(table.column_names[scored.table.num_columns :]))


def scored_without_parameters(
    data: JobData, target: str | None = None, weights: Mapping[str, float] | None = None
) -> ScoredSets:
    """Return the parameter sets that have a loss, as :func:`scored_of`; it reads no parameters."""
    return scored_sets(data.losses, target, weights, sets_run=len(data.groups_run))


def course_of(
    data: JobData,
    output: str | None = None,
    x: str | None = None,
    ys: Sequence[str] = (),
    places: Sequence[tuple[str, str, str]] = (),
    by: str | Sequence[str] | Literal[False] | None = None,  # as in `fans_of`
    where: Where | None = None,  # as in `fans_of`
) -> Course | None:
    """Return what a fan chart of the job shows: ``mops.figures.choices.choose_course``, with its keys."""
    # What the caller names divides the fan, so mops does not look for keys.
    schemas = {name: data.dataset("outputs", name).schema for name in data.output_names}
    course = choose_course(schemas, output, x, ys, places)
    if course is None:
        return None
    schema = schemas[course.output]
    with_data = {y for of, along, y in places if (of, along) == (course.output, course.x)}
    if by:
        keys = tuple(name for name in _names(by) if name in schema.names)
    else:
        keys = keys_of(data, course.output, [course.x], {*ys, *with_data}, where)
    if set(keys) & set(course.ys):
        others = pa.schema([field for field in schema if field.name not in keys])
        course = choose_course({course.output: others}, course.output, course.x, ys, places)
    return None if course is None else replace(course, keys=keys)


def keys_of(
    data: JobData,
    output: str,
    at: Sequence[str],  # the columns of the place; empty: each simulation should have one row
    without: Collection[str] = (),  # columns that a figure shows, so that they do not divide it
    where: Where | None = None,
) -> tuple[str, ...]:
    """Return the columns that tell the rows of a simulation at a place apart; empty: it has one row at each."""
    # A UsageError, if no column tells them apart, or the columns have too many values to divide a figure.
    read = sample_of_sets(data.groups_run, data.n_rows(output))
    if has_one_row(_placed_rows(data, output, at, read, where), at):
        return ()
    names = candidates(data.dataset("outputs", output).schema, [*at, *without])
    rows = _placed_rows(data, output, at, read, where, names)
    keys = keys_of_rows(rows, at, names)
    if keys is None:
        raise several_rows(output, at)
    values = rows.select(list(keys))
    if n_different(values.columns) > MOST_DIVISIONS:
        raise several_rows(output, at, values)
    return keys


def _placed_rows(
    data: JobData,
    output: str,
    at: Sequence[str],
    groups: Integers,
    where: Where | None,
    names: Sequence[str] = (),
) -> pa.Table:
    rows = data.rows(output, [*at, *names], groups, where)
    return rows.filter(pa.array(placed(rows, at)))


def _names(by: str | Sequence[str]) -> list[str]:
    return [by] if isinstance(by, str) else list(by)


def declared(observed: list[Observed] | MopsError) -> list[tuple[str, str, str]]:
    """Return the output, x and y of each table of data."""
    return [(one.output, one.x, one.y) for one in observed] if isinstance(observed, list) else []


def fans_of(
    data: JobData,
    course: Course,
    # The parameters and the columns of the output that divide the fan. None: the keys of the course, or without keys
    # the parameter of `choose_division`. False: the keys of the course.
    by: str | Sequence[str] | Literal[False] | None = None,
    best: Integers | None = None,  # only these parameter sets, from `best_groups`; None: all that have run
    where: Where | None = None,  # only these rows; None: all
) -> list[Fan]:
    """Return a fan for each column of a course; raise UsageError if it cannot be divided."""
    every = data.groups_run
    groups = every if best is None else best
    n_rows = data.n_rows(course.output) * len(groups) // max(len(every), 1)
    read = sample_of_sets(groups, n_rows)
    named = _named_divisions(data, course, by)
    schema = data.dataset("outputs", course.output).schema
    keys = [name for name in named if name in schema.names]
    rows = data.rows(course.output, [course.x, *course.ys, *keys], read, where)
    divisions = divisions_of(data, schema.names, rows, named)
    if by is not None and by is not False and divisions is not None:
        check_divisions(" and ".join(map(repr, named)), len(divisions.drop_null().unique()))
    divided = " and ".join(named) or None
    source = FanSource(rows, course.output, course.x, course.ys, len(groups), len(read), divided, divisions)
    return [replace(fan, keys=tuple(keys)) for fan in fans(source)]


def _named_divisions(data: JobData, course: Course, by: str | Sequence[str] | Literal[False] | None) -> list[str]:
    if by is False or (by is None and course.keys):
        return list(course.keys)
    own = data.dataset("outputs", course.output).schema.names
    parameters = data.parameters.next_to(own)
    if by is None:
        chosen = choose_division(parameters)
        return [] if chosen is None else [chosen]
    named = _names(by)
    known = [*parameters.column_names, *(name for name in own if name not in (*IDENTITY, course.x, *course.ys))]
    for name in named:
        if name not in known:
            hint = known_name(name, known, f"the names are {', '.join(known) or 'none'}")
            raise UsageError(f"there is no parameter and no column {name!r}", where="by", hint=hint)
    return named


def divisions_of(
    data: JobData,
    own: Collection[str],  # all columns of the output
    rows: pa.Table,  # the column `group`, and those columns of the output that divide
    names: Sequence[str],
) -> pa.ChunkedArray | None:
    """Return the division of each row by parameters and by columns of its output; None: it is not divided."""
    if not names:
        return None
    parameters = data.parameters.next_to(own)
    return division_texts([rows[name] if name in own else parameters[name].take(rows["group"]) for name in names])


def spreads_of(data: JobData, output: str, ys: Sequence[str]) -> list[Spread] | None:
    """Return how columns of an output are spread over simulations; None: simulations have several rows of it."""
    groups, n_rows = data.groups_run, data.n_rows(output)
    if n_rows > data.record.n_simulations:
        return None
    read = sample_of_sets(groups, n_rows * len(ys))
    rows = data.rows(output, ys, read)
    if not has_one_row(rows):
        return None
    own = data.dataset("outputs", output).schema.names
    chosen = choose_division(data.parameters.next_to(own))
    divisions = divisions_of(data, own, rows, [] if chosen is None else [chosen])
    return spreads(SpreadSource(rows, output, ys, len(groups), len(read), chosen, divisions))


def is_single_row(data: JobData, output: str) -> bool:
    """Tell whether an output has rows, and no simulation has several: it has no course, whatever its columns."""
    n_rows = data.n_rows(output)
    if not 0 < n_rows <= data.record.n_simulations:
        return False
    return has_one_row(data.rows(output, [], sample_of_sets(data.groups_run, n_rows)))


def data_of(observed: list[Observed] | MopsError, fan: Fan) -> Observed | None:
    """Return the data for a fan: the first ones with its output, its x, its y and its keys; None: there are none."""
    known = observed if isinstance(observed, list) else []
    fitting = [one for one in known if (one.output, one.x, one.y) == (fan.output, fan.x, fan.y)]
    if not fan.keys:
        return fitting[0] if fitting else None
    data = next((one for one in fitting if set(fan.keys) <= set(one.table.column_names)), None)
    return None if data is None else replace(data, divisions=division_texts([data.table[key] for key in fan.keys]))


def axes_of(figures: Sequence[Fan], data: Sequence[Observed | None]) -> list[Decades | None]:
    """Return the logarithmic vertical axis of each fan of an output and its data; None: the axis is linear."""
    if not have_decades(figures):
        return [None] * len(figures)
    shown = ([one.shown, *([numbers(its.table[its.y])] if its else [])] for one, its in zip(figures, data, strict=True))
    return [decades(np.concatenate(values)) for values in shown]


def best_groups(scored: ScoredSets, n: int) -> Integers:
    """Return the groups of the ``n`` best sets; raise UsageError if there are no losses, or several without weights."""
    if not scored.labels:
        hint = "add targets to the job: mops jobs extend, or leave out 'best'"
        raise UsageError("the job has no losses, so it has no best sets", where="best", hint=hint)
    require_total(scored, "best")
    groups: Integers = scored.table["group"].to_numpy()[scored.ranked()[:n]].astype(np.int64)
    return np.sort(groups)


def failure_bins_of(data: JobData) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    failed = [
        FailedSets(cause.text, cause.first["reason"], cause.n, cause.groups.astype(np.int64)) for cause in data.causes
    ]
    return failure_bins(failed, data.parameters.next_to(()), data.has_run)
