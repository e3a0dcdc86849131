"""Reads from a job what each figure needs, and returns the numbers of the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import CorruptRecord, MopsError, UsageError
from mops.figures.choices import Course, choose_course, choose_division, index_column, is_time, number_columns
from mops.figures.columns import Flags, Integers, is_number, numbers
from mops.figures.failures import FailedSets, FailureBins, failure_bins
from mops.figures.fan import MOST_VALUES, Fan, FanSource, fans, last_values, needs_decades, sample_of_sets
from mops.figures.log_axes import Decades, decades
from mops.figures.losses import TOTAL, ScoredSets, wide_losses
from mops.figures.sensitivity import Sensitivity, sensitivity
from mops.figures.sobol import SaltelliDesign, Sobol, saltelli_design, sobol
from mops.figures.spreads import Spread, SpreadSource, has_one_row, spreads
from mops.figures.timeline import Timeline, timeline
from mops.jobs.failures.causes import COLUMNS, causes_of
from mops.jobs.results import CHUNK_ROWS
from mops.jobs.status import Status
from mops.jobs.tables.parameters import Parameters
from mops.jobs.tables.ranking import loss_labels
from mops.jobs.tables.table import Table
from mops.project.observed import Observed, read_observed
from mops.storage.files import Files
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.storage.json_records import RESTORE_HINT
from mops.storage.live_record import read_live
from mops.storage.paths import JobPaths, bundle_path

MOST_MEASURES = 8


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

    def outputs(
        self, output: str, *, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> Table:
        """Return the committed rows of an output."""

    def losses(self) -> Table:
        """Return the committed losses."""

    def samples(self) -> Table:
        """Return the progress of the job."""


def timeline_of(job: JobTables) -> Timeline:
    """Return the job over time."""
    status = job.status()
    live = read_live(job.files, JobPaths(job.name), status.attempt) if status.attempt else None
    limit = live.limit_bytes or None if live else None
    return timeline(job.samples().to_arrow(), status.n_simulations, limit)


def scored_of(job: JobTables) -> ScoredSets:
    """Return the parameter sets that have a loss."""
    scored = scored_without_parameters(job)
    table = Parameters(job.files, job.name).joined(scored.table)
    names = tuple(table.column_names[scored.table.num_columns :])
    return ScoredSets(table, scored.labels, names, scored.sets_run)


def scored_without_parameters(job: JobTables) -> ScoredSets:
    """Return the parameter sets that have a loss; it reads no parameters."""
    losses = job.losses().to_arrow()
    labels = loss_labels(losses)
    return ScoredSets(wide_losses(losses, labels), tuple(labels), (), len(groups_run(job)))


def groups_run(job: JobTables) -> Integers:
    """Return the groups that have run, sorted."""
    committed = JobLog(job.files, JobPaths(job.name)).read().committed
    return np.fromiter(job.record.taken_over | committed, np.int64)


def course_of(
    job: JobTables,
    output: str | None = None,
    x: str | None = None,
    ys: Sequence[str] = (),
    data: Sequence[tuple[str, str, str]] = (),
) -> Course | None:
    """Return what a fan chart of the job shows: :func:`mops.figures.choices.choose_course`."""
    schemas = {name: job.dataset("outputs", name).schema for name in job.output_names()}
    return choose_course(schemas, output, x, ys, data)


def declared(observed: list[Observed] | MopsError) -> list[tuple[str, str, str]]:
    """Return the output, x and y of each table of data."""
    return [(one.output, one.x, one.y) for one in observed] if isinstance(observed, list) else []


def fans_of(
    job: JobTables, course: Course, by: str | Literal[False] | None = None, best: int | None = None
) -> list[Fan]:
    """Return a fan for each column of a course.

    Parameters
    ----------
    by
        The parameter that divides the fan; None: :func:`mops.figures.choices.choose_division`; False: none.
    best
        Only this number of parameter sets with the least sum of losses; None: all that have run.

    Raises
    ------
    UsageError
        The parameter does not exist or has too many values, or ``best`` is given and the job has no losses.
    """
    every = groups_run(job)
    groups = every if best is None else _best_groups(job, best)
    n_rows = len(job.outputs(course.output)) * len(groups) // max(len(every), 1)
    read = sample_of_sets(groups, n_rows)
    rows = _rows_of(job, course.output, [course.x, *course.ys], read)
    divided, divisions = _divisions_of(job, course.output, by)
    source = FanSource(rows, course.output, course.x, course.ys, len(groups), len(read), divided, divisions)
    return fans(source)


def _divisions_of(
    job: JobTables, output: str, by: str | Literal[False] | None
) -> tuple[str | None, dict[int, str | None] | None]:
    """Return the parameter that divides the figures of an output, and the division of each group."""
    parameters = Parameters(job.files, job.name)
    fields = parameters.fields(job.outputs(output).column_names)
    columns = parameters.columns(list(fields)).rename_columns([field.name for field in fields.values()])
    divided = None if by is False else choose_division(columns, by)
    return divided, None if divided is None else dict(enumerate(_texts(columns[divided])))


def spreads_of(job: JobTables, output: str, ys: Sequence[str]) -> list[Spread] | None:
    """Return how columns of an output are spread over simulations; None: simulations have several rows of it."""
    groups, n_rows = groups_run(job), len(job.outputs(output))
    if n_rows > job.record.n_simulations:
        return None
    read = sample_of_sets(groups, n_rows * len(ys))
    rows = _rows_of(job, output, ys, read)
    source = SpreadSource(rows, output, ys, len(groups), len(read), *_divisions_of(job, output, None))
    return spreads(source) if has_one_row(rows) else None


def is_single_row(job: JobTables, output: str) -> bool:
    """Tell whether an output has rows, and no simulation has several: it has no course, whatever its columns."""
    n_rows = len(job.outputs(output))
    if not 0 < n_rows <= job.record.n_simulations:
        return False
    return has_one_row(_rows_of(job, output, [], sample_of_sets(groups_run(job), n_rows)))


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
    """Return the data for a fan: the first ones with its output, its x and its y; None: there are none."""
    known = observed if isinstance(observed, list) else []
    return next((one for one in known if (one.output, one.x, one.y) == (fan.output, fan.x, fan.y)), None)


def axis_of(fan: Fan, data: Observed | None) -> Decades | None:
    """Return the logarithmic vertical axis of a fan and its data; None: the axis is linear."""
    shown = [fan.shown, *([numbers(data.table[data.y])] if data else [])]
    return decades(np.concatenate(shown)) if needs_decades(fan.table) else None


def _best_groups(job: JobTables, best: int) -> Integers:
    scored = scored_of(job)
    if not scored.labels:
        hint = "add targets to the job: mops jobs extend, or leave out 'best'"
        raise UsageError("the job has no losses, so it has no best sets", where="best", hint=hint)
    groups: Integers = scored.table["group"].to_numpy()[scored.ranked(TOTAL)[:best]].astype(np.int64)
    return np.sort(groups)


def _rows_of(job: JobTables, output: str, columns: Sequence[str], groups: Integers) -> pa.Table:
    of_groups = pc.field("group").isin(pa.array(groups, pa.int32()))
    return job.outputs(output, where=of_groups, columns=["group", "replicate", *columns]).to_arrow()


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_boolean(column.type):  # as study.json writes them
        return [None if value is None else str(value).lower() for value in column.to_pylist()]
    return [None if value is None else str(value) for value in column.to_pylist()]


def failure_bins_of(job: JobTables) -> FailureBins:
    """Return the failed sets in each bin of each parameter."""
    parameters, has_run = parameters_of(job), has_run_of(job)
    return failure_bins(failed_sets_of(job), parameters, has_run)


def parameters_of(job: JobTables) -> pa.Table:
    """Return the columns of the parameters; row ``i`` is group ``i``."""
    parameters = Parameters(job.files, job.name)
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


@dataclass(frozen=True)
class MeasuredSets:
    """The parameter sets that have a loss or a result, for the sensitivity to parameters.

    Parameters
    ----------
    table
        A row for each set: ``group``, then the columns of the measures and of the parameters.
    design
        The Saltelli design of all sets of the job, or None if these sets are not a Saltelli design.
    """

    table: pa.Table
    measures: tuple[str, ...]
    parameters: tuple[str, ...]
    design: SaltelliDesign | None


def measured_of(job: JobTables) -> MeasuredSets:
    """Return the sets with each loss and the last values of the outputs.

    The last values are those of the first columns of numbers of each output, at most 8 measures in all. In a large job
    they come from the sample of sets that a fan chart shows. A sample would break the blocks of a Saltelli design, so
    mops reads all its sets, some at a time.
    """
    design = saltelli_design(parameters_of(job))
    scored = scored_of(job)
    measures = [scored.title(label) for label in scored.shown_labels]
    sets = scored.table.select(["group", *scored.shown_labels]).rename_columns(["group", *measures])
    for output in job.output_names():
        schema = job.dataset("outputs", output).schema
        x = index_column(schema)
        ys = number_columns(schema, [x])[: max(MOST_MEASURES - len(measures), 0)]
        if ys:
            names = [_measure(output, y, x, measures) for y in ys]
            last = _last_values_of(job, output, x, ys, is_whole=design is not None)
            sets = sets.join(last.rename_columns(["group", *names]), "group", join_type="full outer")
            measures += names
    table = Parameters(job.files, job.name).joined(sets)
    return MeasuredSets(table, tuple(measures), tuple(table.column_names[sets.num_columns :]), design)


def _last_values_of(job: JobTables, output: str, x: str | None, ys: Sequence[str], *, is_whole: bool) -> pa.Table:
    """Return the last values of all sets, or of a sample if the job is large."""
    every, n_rows = groups_run(job), len(job.outputs(output))
    read = every if is_whole else sample_of_sets(every, n_rows)
    n_read = n_rows * len(read) // max(len(every), 1)
    columns = [*([x] if x else []), *ys]
    pieces = np.array_split(read, max(1, -(-n_read // MOST_VALUES)))
    return pa.concat_tables([last_values(_rows_of(job, output, columns, groups), x, ys) for groups in pieces])


def sensitivity_of(job: JobTables) -> Sensitivity:
    """Return the rank correlation of each parameter with each measure of :func:`measured_of`."""
    found = measured_of(job)
    return sensitivity(found.table, found.parameters, found.measures)


def sobol_of(job: JobTables) -> Sobol | None:
    """Return the Sobol indices for each measure of :func:`measured_of`; None: the sets are not a Saltelli design."""
    found = measured_of(job)
    return None if found.design is None else sobol(found.design, found.table, found.measures)


def _measure(output: str, y: str, x: str | None, taken: Sequence[str]) -> str:
    """Return the name of a column's measure, which no loss and no other column has."""
    name = f"{output}.{y}"
    if x is not None:
        name = f"last {name}" if is_time(x) else f"{name} at the greatest {x}"
    while name in taken:
        name = f"{name} ({y!r} of output {output!r})"
    return name
