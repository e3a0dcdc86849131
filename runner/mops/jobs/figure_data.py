"""Reads from a job what each figure needs, and returns the numbers of the figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pyarrow as pa

from mops.errors import MopsError, UsageError, known_name
from mops.figures.choices import (
    IDENTITY,
    MOST_DIVISIONS,
    Course,
    choose_course,
    choose_division,
    index_column,
    is_time,
    number_columns,
)
from mops.figures.columns import Integers
from mops.figures.failures import FailureBins, failure_bins
from mops.figures.fan import MOST_VALUES, Fan, fans, last_values, sample_of_sets
from mops.figures.losses import TOTAL, ScoredSets, distribution, shown_sets
from mops.figures.row_keys import (
    FigureRows,
    candidates,
    check_divisions,
    division_text,
    division_texts,
    has_one_row,
    keys_of_rows,
    n_different,
    of_each_division,
    placed,
    several_rows,
)
from mops.figures.sensitivity import Sensitivity, sensitivity
from mops.figures.sobol import SaltelliDesign, Sobol, saltelli_design, sobol
from mops.figures.spreads import Spread, spreads
from mops.figures.timeline import Timeline, timeline
from mops.jobs.conditions import Where
from mops.jobs.data import JobData
from mops.jobs.ranking import require_total, scored_sets
from mops.project.mops_toml import Observed
from mops.units import counted


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
    source = FigureRows(rows, course.output, course.ys, len(groups), len(read), divided, divisions)
    return [replace(fan, keys=tuple(keys)) for fan in fans(source, course.x)]


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
    return spreads(FigureRows(rows, output, ys, len(groups), len(read), chosen, divisions))


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


def points_of(data: Observed | None) -> pa.Table | None:
    """Return the columns ``x`` and ``y`` of data, and ``division`` if columns of the data divide them."""
    if data is None:
        return None
    divisions = {} if data.divisions is None else {"division": data.divisions}
    return pa.table({"x": data.table[data.x], "y": data.table[data.y], **divisions})


def best_groups(scored: ScoredSets, n: int) -> Integers:
    """Return the groups of the ``n`` best sets; raise UsageError if there are no losses, or several without weights."""
    if not scored.labels:
        hint = "add targets to the job: mops jobs extend, or leave out 'best'"
        raise UsageError("the job has no losses, so it has no best sets", where="best", hint=hint)
    require_total(scored, "best")
    return np.sort(scored.ranked["group"].to_numpy()[:n]).astype(np.int64)


def failure_bins_of(data: JobData) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    failed = [(cause.text or cause.first["reason"], cause.groups.astype(np.int64)) for cause in data.causes]
    return failure_bins(failed, data.parameters.next_to(()), data.has_run)


MOST_MEASURES, MOST_NAMED = 8, 24
_LISTED = 12


@dataclass(frozen=True)
class MeasuredSets:
    """The parameter sets that have a loss or a result, for the sensitivity to parameters."""

    table: pa.Table  # a row for each set: `group`, then the columns of the measures and of the parameters
    measures: tuple[str, ...]
    parameters: tuple[str, ...]
    design: SaltelliDesign | None  # of all sets of the job; None: these sets are not a Saltelli design
    notes: tuple[str, ...]  # which results have no measure, and why: a sentence for each reason


def measured_of(
    data: JobData,
    output: str | None = None,  # None: the losses, and the first results of all outputs; else no losses
    ys: Sequence[str] = (),  # columns of the output; empty: all numbers
    where: Where | None = None,  # only these rows of the output; None: all
) -> MeasuredSets:
    """Return the sets with each loss and the last values of the outputs; raise UsageError if a name is wrong."""
    # Without a named output, these are at most 8 measures: the losses, then the results with one row for each
    # simulation, then the last values of the others. In a large job they come from the sample of sets that a fan chart
    # shows. A sample would break the blocks of a Saltelli design, so mops reads all its sets, some at a time.
    design = saltelli_design(data.parameters.next_to(()))
    if output is None:
        scored = scored_without_parameters(data)
        most, names = MOST_MEASURES, [scored.title(label) for label in scored.shown_labels]
        sets = scored.table.select(["group", *scored.shown_labels]).rename_columns(["group", *names])
        outputs = sorted(data.output_names, key=lambda name: not is_single_row(data, name))
    elif output in data.output_names:
        most, names, sets, outputs = MOST_NAMED, list[str](), pa.table({"group": pa.array([], pa.int32())}), [output]
    else:
        hint = known_name(output, data.output_names, f"the names are {', '.join(data.output_names) or 'none'}")
        raise UsageError(f"there is no output {output!r}", where="output", hint=hint)
    left_out, notes = list[str](), list[str]()
    for name in outputs:
        try:
            x, keys, found = _results_of(data, name, ys, where)
            read = found[: max(most - len(names), 0)]
            left_out += [f"{name}.{y}" for y in found[len(read) :]]
            last = _last_values_of(data, name, x, keys, read, where, is_whole=design is not None) if read else {}
        except UsageError as several:
            if output is not None:
                raise
            notes.append(f"No measure shows {name!r}: {several.what}.")
            continue
        for y, division in product(read, last):
            of = f", {division_text(' and '.join(keys), division)}" if keys else ""
            if len(names) >= most:
                left_out.append(f"{name}.{y}{of}")
                continue
            measure = _measure(name, y, x, of, names)
            values = last[division].select(["group", y]).rename_columns(["group", measure])
            sets = sets.join(values, "group", join_type="full outer")
            names.append(measure)
    if left_out:
        n_more = len(left_out) - _LISTED
        listed = ", ".join(left_out[:_LISTED]) + (f", and {counted(n_more, 'other')}" if n_more > 0 else "")
        notes.append(
            f"At most {most} results have a figure here, and these have none: {listed}. "
            "job.plot.sensitivity(OUTPUT, y=COLUMN) draws them."
        )
    table = data.parameters.joined(sets)
    parameters = tuple(table.column_names[sets.num_columns :])
    return MeasuredSets(table, tuple(names), parameters, design, tuple(notes))


def _results_of(
    data: JobData, output: str, ys: Sequence[str], where: Where | None
) -> tuple[str | None, tuple[str, ...], list[str]]:
    """Return the index column of an output, its keys, and the columns that can be measures."""
    # Without an index column, each simulation has one row. UsageError: a named column cannot be a measure.
    schema = data.dataset("outputs", output).schema
    x = None if is_single_row(data, output) else index_column(schema)
    known = number_columns(schema, [x])
    for name in ys:
        if name not in known:
            hint = known_name(name, known, f"the numbers are {', '.join(known) or 'none'}")
            raise UsageError(f"the output {output!r} has no number {name!r}", where="y", hint=hint)
    keys = keys_of(data, output, [] if x is None else [x], ys, where) if known else ()
    return x, keys, [y for y in (ys or known) if y not in keys]


def _last_values_of(
    data: JobData,
    output: str,
    x: str | None,
    keys: Sequence[str],
    ys: Sequence[str],
    where: Where | None,
    *,
    is_whole: bool,  # read all sets; False: a sample if the job is large
) -> dict[str | None, pa.Table]:
    """Return the last values of columns of an output, for each value of its keys."""
    own, n_rows, every = data.dataset("outputs", output).schema.names, data.n_rows(output), data.groups_run
    read = every if is_whole else sample_of_sets(every, n_rows)
    n_read = n_rows * len(read) // max(len(every), 1)
    last: dict[str | None, list[pa.Table]] = {}
    for groups in np.array_split(read, max(1, -(-n_read // MOST_VALUES))):  # the memory may not hold all of them
        rows = data.rows(output, [*([x] if x else []), *ys, *keys], groups, where)
        for division, some in of_each_division(rows, divisions_of(data, own, rows, keys)):
            last.setdefault(division, []).append(last_values(some, output, x, ys))
    return {division: pa.concat_tables(tables) for division, tables in last.items()}


def sensitivity_of(measured: MeasuredSets) -> Sensitivity:
    """Return the rank correlation of each parameter with each measure."""
    return sensitivity(measured.table, measured.parameters, measured.measures)


def sobol_of(measured: MeasuredSets) -> Sobol | None:
    """Return the Sobol indices for each measure; None: the sets are not a Saltelli design."""
    return None if measured.design is None else sobol(measured.design, measured.table, measured.measures)


def _measure(output: str, y: str, x: str | None, of: str, taken: Sequence[str]) -> str:
    """Return the name of a measure, which no loss and no other column has."""
    name = f"{output}.{y}"
    if x is not None:
        name = f"last {name}" if is_time(x) else f"{name} at the greatest {x}"
    name += of
    while name in taken:
        name = f"{name} ({y!r} of output {output!r})"
    return name


# mops reads all losses for a summary. Up to this number, that takes less time than the start of the command.
MOST_LOSSES = 100_000


@dataclass(frozen=True)
class LossSpread:
    """The smallest, the middle and the largest of one loss."""

    label: str  # the loss; `loss`: the only one
    title: str  # what the table calls the loss
    n: int  # the number of parameter sets that have the loss
    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class BestSet:
    """A parameter set with one of the smallest losses."""

    param_id: str
    group: int
    loss: float
    ranked_by: str  # the title of the loss


@dataclass(frozen=True)
class LossSummary:
    """The committed losses of a job."""

    n_losses: int
    spreads: list[LossSpread] | None  # each loss; None: the job has more than `MOST_LOSSES` losses
    best: list[BestSet] | None  # by the first loss, the best first, then those by the next one; None as for `spreads`


def loss_summary_of(data: JobData, n_best: int = 5, most_losses: int = MOST_LOSSES) -> LossSummary:
    """Return the summary of a job's losses; it reads the losses only if there are at most ``most_losses``."""
    n_losses = data.dataset("losses").count_rows()
    if n_losses > most_losses:
        return LossSummary(n_losses, None, None)
    scored = scored_without_parameters(data)
    spreads, best = list[LossSpread](), list[BestSet]()
    for label in scored.shown_labels:
        found = distribution(scored, label)
        if found.quantiles is not None:
            least, median, greatest = found.quantiles
            spreads.append(LossSpread(label, found.title, found.n, least, median, greatest))
    for one in scored.criteria():
        rows = shown_sets(one, n_best, 0).table.select(["param_id", "group", TOTAL]).to_pylist()
        best += [BestSet(row["param_id"], row["group"], row[TOTAL], one.title(TOTAL)) for row in rows]
    return LossSummary(n_losses, spreads, best)
