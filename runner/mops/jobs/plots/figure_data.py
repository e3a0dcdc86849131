"""Reads from a job what each figure needs, and returns the numbers of the figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import CorruptRecord, MopsError, UsageError, known_name
from mops.figures.choices import IDENTITY, MOST_DIVISIONS, Course, choose_course, choose_division
from mops.figures.columns import Flags, Integers, is_number, numbers
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
from mops.jobs.failures.causes import COLUMNS, causes_of
from mops.jobs.results import CHUNK_ROWS
from mops.jobs.status import Status
from mops.jobs.tables.conditions import Where
from mops.jobs.tables.parameters import Parameters
from mops.jobs.tables.ranking import require_total, scored_sets
from mops.jobs.tables.table import Table
from mops.project.mops_toml import Observed, read_observed
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import bundle_path
from mops.storage.progress_record import read_live


class JobTables(Protocol):
    """What figures read of a :class:`mops.Job`."""

    files: Files
    name: str

    @property
    def record(self) -> JobRecord:
        """The record of the submit."""

    def status(self) -> Status:
        """Return the state of the job."""

    def output_names(self) -> list[str]:
        """Return the names of the outputs."""

    def dataset(self, kind: str, output: str | None = None) -> ds.Dataset:
        """Return committed rows as a dataset."""

    def outputs(self, output: str, *, where: Where | None = None, columns: Sequence[str] | None = None) -> Table:
        """Return the committed rows of an output."""

    def losses(self) -> Table:
        """Return the committed losses."""

    def samples(self) -> Table:
        """Return the progress of the job."""


def timeline_of(job: JobTables) -> Timeline:
    """Return the job over time."""
    status = job.status()
    live = read_live(job.files, job.record.paths, status.attempt) if status.attempt else None
    limit = live.limit_bytes or None if live else None
    return timeline(job.samples().to_arrow(), status.n_simulations, limit)


def scored_of(job: JobTables, target: str | None = None, weights: Mapping[str, float] | None = None) -> ScoredSets:
    """Return the parameter sets that have a loss; the arguments and errors are those of :func:`scored_sets`."""
    scored = scored_without_parameters(job, target, weights)
    table = Parameters(job.files, job.record.paths).joined(scored.table)
    return replace(scored, table=table, parameters=tuple(table.column_names[scored.table.num_columns :]))


def scored_without_parameters(
    job: JobTables, target: str | None = None, weights: Mapping[str, float] | None = None
) -> ScoredSets:
    """Return the parameter sets that have a loss, as :func:`scored_of`; it reads no parameters."""
    return scored_sets(job.losses().to_arrow(), target, weights, sets_run=len(groups_run(job)))


def groups_run(job: JobTables) -> Integers:
    """Return the groups that have run, sorted."""
    record = job.record
    committed = JobLog(job.files, record.paths).read().committed
    return np.fromiter(record.taken_over | committed, np.int64)


def course_of(
    job: JobTables,
    output: str | None = None,
    x: str | None = None,
    ys: Sequence[str] = (),
    data: Sequence[tuple[str, str, str]] = (),
    by: str | Sequence[str] | Literal[False] | None = None,  # as in `fans_of`
    where: Where | None = None,  # as in `fans_of`
) -> Course | None:
    """Return what a fan chart of the job shows: ``mops.figures.choices.choose_course``, with its keys."""
    # What the caller names divides the fan, so mops does not look for keys.
    schemas = {name: job.dataset("outputs", name).schema for name in job.output_names()}
    course = choose_course(schemas, output, x, ys, data)
    if course is None:
        return None
    schema = schemas[course.output]
    with_data = {y for of, along, y in data if (of, along) == (course.output, course.x)}
    if by:
        keys = tuple(name for name in _names(by) if name in schema.names)
    else:
        keys = keys_of(job, course.output, [course.x], {*ys, *with_data}, where)
    if set(keys) & set(course.ys):
        others = pa.schema([field for field in schema if field.name not in keys])
        course = choose_course({course.output: others}, course.output, course.x, ys, data)
    return None if course is None else replace(course, keys=keys)


def keys_of(
    job: JobTables,
    output: str,
    at: Sequence[str],  # the columns of the place; empty: each simulation should have one row
    without: Collection[str] = (),  # columns that a figure shows, so that they do not divide it
    where: Where | None = None,
) -> tuple[str, ...]:
    """Return the columns that tell the rows of a simulation at a place apart; empty: it has one row at each."""
    # A UsageError, if no column tells them apart, or the columns have too many values to divide a figure.
    read = sample_of_sets(groups_run(job), len(job.outputs(output)))
    if has_one_row(_placed_rows(job, output, at, read, where), at):
        return ()
    names = candidates(job.dataset("outputs", output).schema, [*at, *without])
    rows = _placed_rows(job, output, at, read, where, names)
    keys = keys_of_rows(rows, at, names)
    if keys is None:
        raise several_rows(output, at)
    values = rows.select(list(keys))
    if n_different(values.columns) > MOST_DIVISIONS:
        raise several_rows(output, at, values)
    return keys


def _placed_rows(
    job: JobTables,
    output: str,
    at: Sequence[str],
    groups: Integers,
    where: Where | None,
    names: Sequence[str] = (),
) -> pa.Table:
    rows = rows_of(job, output, [*at, *names], groups, where)
    return rows.filter(pa.array(placed(rows, at)))


def _names(by: str | Sequence[str]) -> list[str]:
    return [by] if isinstance(by, str) else list(by)


def declared(observed: list[Observed] | MopsError) -> list[tuple[str, str, str]]:
    """Return the output, x and y of each table of data."""
    return [(one.output, one.x, one.y) for one in observed] if isinstance(observed, list) else []


def fans_of(
    job: JobTables,
    course: Course,
    # The parameters and the columns of the output that divide the fan. None: the keys of the course, or without keys
    # the parameter of `choose_division`. False: the keys of the course.
    by: str | Sequence[str] | Literal[False] | None = None,
    best: Integers | None = None,  # only these parameter sets, from `best_groups`; None: all that have run
    where: Where | None = None,  # only these rows; None: all
) -> list[Fan]:
    """Return a fan for each column of a course; raise UsageError if it cannot be divided."""
    every = groups_run(job)
    groups = every if best is None else best
    n_rows = len(job.outputs(course.output)) * len(groups) // max(len(every), 1)
    read = sample_of_sets(groups, n_rows)
    named = _named_divisions(job, course, by)
    schema = job.dataset("outputs", course.output).schema
    keys = [name for name in named if name in schema.names]
    rows = rows_of(job, course.output, [course.x, *course.ys, *keys], read, where)
    divisions = divisions_of(job, schema.names, rows, named)
    if by is not None and by is not False and divisions is not None:
        check_divisions(" and ".join(map(repr, named)), len(divisions.drop_null().unique()))
    divided = " and ".join(named) or None
    source = FanSource(rows, course.output, course.x, course.ys, len(groups), len(read), divided, divisions)
    return [replace(fan, keys=tuple(keys)) for fan in fans(source)]


def _named_divisions(job: JobTables, course: Course, by: str | Sequence[str] | Literal[False] | None) -> list[str]:
    if by is False or (by is None and course.keys):
        return list(course.keys)
    own = job.dataset("outputs", course.output).schema.names
    parameters = _parameters_next_to(job, own)
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
    job: JobTables,
    own: Collection[str],  # all columns of the output
    rows: pa.Table,  # the column `group`, and those columns of the output that divide
    names: Sequence[str],
) -> pa.ChunkedArray | None:
    """Return the division of each row by parameters and by columns of its output; None: it is not divided."""
    if not names:
        return None
    parameters = _parameters_next_to(job, own)
    return division_texts([rows[name] if name in own else parameters[name].take(rows["group"]) for name in names])


def _parameters_next_to(job: JobTables, taken: Collection[str]) -> pa.Table:
    """Return the columns of the parameters, with the names that they have next to other columns."""
    parameters = Parameters(job.files, job.record.paths)
    fields = parameters.fields(taken)
    return parameters.columns(list(fields)).rename_columns([field.name for field in fields.values()])


def spreads_of(job: JobTables, output: str, ys: Sequence[str]) -> list[Spread] | None:
    """Return how columns of an output are spread over simulations; None: simulations have several rows of it."""
    groups, n_rows = groups_run(job), len(job.outputs(output))
    if n_rows > job.record.n_simulations:
        return None
    read = sample_of_sets(groups, n_rows * len(ys))
    rows = rows_of(job, output, ys, read)
    if not has_one_row(rows):
        return None
    own = job.dataset("outputs", output).schema.names
    chosen = choose_division(_parameters_next_to(job, own))
    divisions = divisions_of(job, own, rows, [] if chosen is None else [chosen])
    return spreads(SpreadSource(rows, output, ys, len(groups), len(read), chosen, divisions))


def is_single_row(job: JobTables, output: str) -> bool:
    """Tell whether an output has rows, and no simulation has several: it has no course, whatever its columns."""
    n_rows = len(job.outputs(output))
    if not 0 < n_rows <= job.record.n_simulations:
        return False
    return has_one_row(rows_of(job, output, [], sample_of_sets(groups_run(job), n_rows)))


def observed_of(job: JobTables) -> list[Observed] | MopsError:
    """Return the data that the project of the job declares for outputs, or why they cannot be shown."""
    try:
        known = read_observed(_bundle_of(job))
        for one in known:
            _check_places(job, one)
    except MopsError as wrong:
        return wrong
    return known


def _bundle_of(job: JobTables) -> bytes:
    """Return the files of the project; raise CorruptRecord if they are missing or damaged."""
    path = bundle_path(job.record.bundle)
    where = f"{job.files.url}/{path}"
    try:
        bundle = job.files.get(path)
    except FileNotFoundError:
        raise CorruptRecord("the bundle of the project is missing", where=where, hint=RESTORE_HINT) from None
    if sha256(bundle).hexdigest() != job.record.bundle:
        raise CorruptRecord("the bundle of the project is damaged", where=where, hint=RESTORE_HINT)
    return bundle


def _check_places(job: JobTables, data: Observed) -> None:
    """Raise UsageError if one of data and output has times, and the other one numbers."""
    schema = job.dataset("outputs", data.output).schema if data.output in job.output_names() else pa.schema([])
    if data.x in schema.names and is_number(schema.field(data.x).type) != is_number(data.table[data.x].type):
        what = f"the column {data.x!r} of the data has the type {data.table[data.x].type}"
        hint = f"the output {data.output!r} has the type {schema.field(data.x).type}"
        raise UsageError(what, where=data.file, hint=hint)


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


def rows_of(
    job: JobTables, output: str, columns: Sequence[str], groups: Integers, where: Where | None = None
) -> pa.Table:
    """Return the columns ``group``, ``replicate`` and ``columns`` of the rows of some groups that meet a condition."""
    of_groups, wanted = pa.array(groups, pa.int32()), ["group", "replicate", *columns]
    if where is None:
        return job.outputs(output, where=pc.field("group").isin(of_groups), columns=wanted).to_arrow()
    rows = job.outputs(output, where=where, columns=wanted)
    batches = (batch.filter(pc.is_in(batch["group"], of_groups)) for batch in rows.to_batches())
    return pa.Table.from_batches(batches, rows.schema)


def failure_bins_of(job: JobTables) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    parameters, has_run = parameters_of(job), has_run_of(job)
    return failure_bins(failed_sets_of(job), parameters, has_run)


def parameters_of(job: JobTables) -> pa.Table:
    """Return the columns of the parameters; row ``i`` is group ``i``."""
    parameters = Parameters(job.files, job.record.paths)
    fields = parameters.fields(())
    return parameters.columns(list(fields)).rename_columns([field.name for field in fields.values()])


def has_run_of(job: JobTables) -> Flags:
    """Return for each group whether it has run."""
    has_run = np.zeros(job.record.n_groups, bool)
    has_run[groups_run(job)] = True
    return has_run


def failed_sets_of(job: JobTables) -> list[FailedSets]:
    """Return the sets with failures of each cause, the most frequent first, as :meth:`mops.Job.causes` counts them."""
    dataset = job.dataset("failures")
    causes = causes_of(dataset.to_batches(columns=list(COLUMNS), batch_size=CHUNK_ROWS, fragment_readahead=1))
    return [
        FailedSets(
            one.first["message"].strip().partition("\n")[0], one.first["reason"], one.n, one.groups.astype(np.int64)
        )
        for one in causes
    ]
