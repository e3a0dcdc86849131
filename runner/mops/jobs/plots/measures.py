"""Reads the losses and the last results of parameter sets, which the sensitivity to parameters compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pyarrow as pa

from mops.errors import UsageError, known_name
from mops.figures.choices import index_column, is_time, number_columns
from mops.figures.fan import MOST_VALUES, last_values, sample_of_sets
from mops.figures.row_keys import division_text, of_each_division
from mops.figures.sensitivity import Sensitivity, sensitivity
from mops.figures.sobol import SaltelliDesign, Sobol, saltelli_design, sobol
from mops.jobs.data import JobData
from mops.jobs.plots.figure_data import (
    divisions_of,
    is_single_row,
    keys_of,
    scored_of,
)
from mops.jobs.tables.conditions import Where
from mops.units import counted

MOST_MEASURES, MOST_NAMED = 8, 24
_LISTED = 12


@dataclass(frozen=True)
class Wanted:
    """The results that a caller names for the sensitivity to parameters; without names, mops chooses."""

    output: str | None = None  # None: the losses and the first results of all outputs; else no losses
    ys: Sequence[str] = ()  # columns of the output; empty: all numbers
    where: Where | None = None  # only these rows of the output; None: all


@dataclass(frozen=True)
class MeasuredSets:
    """The parameter sets that have a loss or a result, for the sensitivity to parameters."""

    table: pa.Table  # a row for each set: `group`, then the columns of the measures and of the parameters
    measures: tuple[str, ...]
    parameters: tuple[str, ...]
    design: SaltelliDesign | None  # of all sets of the job; None: these sets are not a Saltelli design
    notes: tuple[str, ...]  # which results have no measure, and why: a sentence for each reason


@dataclass(frozen=True)
class _Result:
    """A column of an output whose last values are measures."""

    output: str
    y: str
    x: str | None  # the column along which the values have a last one; None: each simulation has one row
    keys: tuple[str, ...]  # the columns for whose values the measures are apart


@dataclass
class _Measures:
    """The measures so far, in the order of the figures."""

    sets: pa.Table
    names: list[str]
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measured_of(data: JobData, wanted: Wanted = Wanted()) -> MeasuredSets:
    """Return the sets with each loss and the last values of the outputs; raise UsageError if a name is wrong."""
    # Without a named output, these are at most 8 measures: the losses, then the results with one row for each
    # simulation, then the last values of the others. In a large job they come from the sample of sets that a fan chart
    # shows. A sample would break the blocks of a Saltelli design, so mops reads all its sets, some at a time.
    design = saltelli_design(data.parameters.next_to(()))
    found = _losses_of(data) if wanted.output is None else _Measures(_no_sets(), [])
    most = MOST_MEASURES if wanted.output is None else MOST_NAMED
    for output in _in_order(data, wanted):
        try:
            results = _results_of(data, output, wanted)
            n_read = max(most - len(found.names), 0)
            found.left_out += [f"{result.output}.{result.y}" for result in results[n_read:]]
            if results[:n_read]:
                last = _last_values_of(data, results[:n_read], wanted.where, is_whole=design is not None)
                _add(found, results[:n_read], last, most)
        except UsageError as several:
            if wanted.output is not None:
                raise
            found.notes.append(f"No measure shows {output!r}: {several.what}.")
    if found.left_out:
        found.notes.append(_left_out_note(found.left_out, most))
    table = data.parameters.joined(found.sets)
    parameters = tuple(table.column_names[found.sets.num_columns :])
    return MeasuredSets(table, tuple(found.names), parameters, design, tuple(found.notes))


def _losses_of(data: JobData) -> _Measures:
    scored = scored_of(data)
    names = [scored.title(label) for label in scored.shown_labels]
    return _Measures(scored.table.select(["group", *scored.shown_labels]).rename_columns(["group", *names]), names)


def _no_sets() -> pa.Table:
    return pa.table({"group": pa.array([], pa.int32())})


def _in_order(data: JobData, wanted: Wanted) -> list[str]:
    """Return the outputs: those with one row for each simulation, then the others."""
    names = data.output_names
    if wanted.output is None:
        return sorted(names, key=lambda name: not is_single_row(data, name))
    if wanted.output not in names:
        hint = known_name(wanted.output, names, f"the names are {', '.join(names) or 'none'}")
        raise UsageError(f"there is no output {wanted.output!r}", where="output", hint=hint)
    return [wanted.output]


def _results_of(data: JobData, output: str, wanted: Wanted) -> list[_Result]:
    """Return the columns of an output that can be measures; raise UsageError if a named one cannot."""
    schema = data.dataset("outputs", output).schema
    x = None if is_single_row(data, output) else index_column(schema)
    known = number_columns(schema, [x])
    for name in wanted.ys:
        if name not in known:
            hint = known_name(name, known, f"the numbers are {', '.join(known) or 'none'}")
            raise UsageError(f"the output {output!r} has no number {name!r}", where="y", hint=hint)
    if not known:
        return []
    keys = keys_of(data, output, [] if x is None else [x], wanted.ys, wanted.where)
    return [_Result(output, y, x, keys) for y in (wanted.ys or known) if y not in keys]


def _last_values_of(
    data: JobData, results: Sequence[_Result], where: Where | None, *, is_whole: bool
) -> dict[str | None, pa.Table]:
    """Return the last values of columns of one output, for each value of its keys."""
    one, ys = results[0], [result.y for result in results]
    own = data.dataset("outputs", one.output).schema.names
    last: dict[str | None, list[pa.Table]] = {}
    for rows in _pieces_of(data, one, ys, where, is_whole=is_whole):
        for division, some in of_each_division(rows, divisions_of(data, own, rows, one.keys)):
            last.setdefault(division, []).append(last_values(some, one.output, one.x, ys))
    return {division: pa.concat_tables(tables) for division, tables in last.items()}


def _add(found: _Measures, results: Sequence[_Result], last: Mapping[str | None, pa.Table], most: int) -> None:
    for one, division in product(results, last):
        of = f", {division_text(' and '.join(one.keys), division)}" if one.keys else ""
        if len(found.names) >= most:
            found.left_out.append(f"{one.output}.{one.y}{of}")
            continue
        name = _measure(one.output, one.y, one.x, of, found.names)
        values = last[division].select(["group", one.y]).rename_columns(["group", name])
        found.sets = found.sets.join(values, "group", join_type="full outer")
        found.names.append(name)


def _pieces_of(
    data: JobData, one: _Result, ys: Sequence[str], where: Where | None, *, is_whole: bool
) -> Iterator[pa.Table]:
    """Yield the rows of all sets, or of a sample if the job is large, some sets at a time."""
    every, n_rows = data.groups_run, data.n_rows(one.output)
    read = every if is_whole else sample_of_sets(every, n_rows)
    n_read = n_rows * len(read) // max(len(every), 1)
    columns = [*([one.x] if one.x else []), *ys, *one.keys]
    for groups in np.array_split(read, max(1, -(-n_read // MOST_VALUES))):
        yield data.rows(one.output, columns, groups, where)


def _left_out_note(names: Sequence[str], most: int) -> str:
    n_more = len(names) - _LISTED
    listed = ", ".join(names[:_LISTED]) + (f", and {counted(n_more, 'other')}" if n_more > 0 else "")
    return (
        f"At most {most} results have a figure here, and these have none: {listed}. "
        "job.plot.sensitivity(OUTPUT, y=COLUMN) draws them."
    )


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
