"""The outputs of a calibration, compared with declared data before and after it: a prior and a posterior predictive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.calibration.calibration import Calibration
from mops.calibration.rounds import is_from_prior
from mops.errors import MopsError
from mops.figures.calibration import thinned
from mops.figures.choices import Course
from mops.figures.columns import Floats
from mops.figures.course_charts import only_text, place
from mops.figures.fan import MOST_SETS, MOST_VALUES, Fan, fans, have_decades
from mops.figures.row_keys import FigureRows, division_texts
from mops.jobs.data import JobData
from mops.jobs.figure_data import data_of, declared
from mops.jobs.scan import Selection
from mops.project.mops_toml import Observed
from mops.report.content import Block, Figure, Gallery, Width
from mops.report.facts import Facts
from mops.report.outputs import compared, courses, pairs_of_divisions
from mops.storage.job_records import job_names, load_job
from mops.units import counted, shortened

_NONE = "No figure compares the outputs of the calibration with the data:"


@dataclass(frozen=True)
class TrialRows:
    """Rows of an output, of sets with weights."""

    # ``group`` (int32): the number of the set, over all rounds; ``replicate``, and the columns that were asked for
    rows: pa.Table
    weights: dict[int, float]  # of each set; equal sets of a round are one set with the sum of their weights
    # The sets with a weight. If they are too many to read, ``rows`` has a sample of them, drawn by their weights.
    n_sets: int


@dataclass(frozen=True)
class _Chosen:
    """The sets of one of the two fans."""

    weights: Floats  # of each trial; 0: it does not belong to them
    name: str  # what the figure calls them
    text: str  # which sets they are, for the caption
    # Whether the weights are probabilities, so that a share of the fan can be compared with a share of the data.
    is_probability: bool = False


def predictive(facts: Facts, found: Calibration) -> list[Gallery | Block]:
    """Return a figure for each column with data, or a note why there is none; empty: no data, or no posterior."""
    data = declared(facts.data.observed) if found.method.gives_posterior else []
    with_data = [
        replace(course, ys=ys)
        for course in courses(facts)
        if (ys := tuple(y for y in course.ys if (course.output, course.x, y) in data))
    ]
    if not with_data:
        return []
    before, after = _prior_and_posterior(found)
    try:
        reason = _lack(facts, found, before.weights + after.weights)
        width: Width = "half" if sum(len(course.ys) for course in with_data) > 1 else "whole"
        shown = [] if reason else with_data
        figures = [one for course in shown for one in _figures(facts, found, course, before, after, width)]
    except MopsError as wrong:  # the job of another round may be damaged or deleted
        where = f" ({wrong.where})" if wrong.where else ""
        return [Block("note", f"{_NONE} {wrong.what}{where}.")]
    if not figures:
        reason = reason or f"the outputs have no values for the {before.name} or for the {after.name}"
        return [Block("note", f"{_NONE} {reason}.")]
    return [Gallery(figures)]


def _prior_and_posterior(found: Calibration) -> tuple[_Chosen, _Chosen]:
    first = [each.k for each in found.rounds if is_from_prior(each.state)]
    rounds = f"round{'' if len(first) == 1 else 's'} {', '.join(map(str, first))}"
    before = _Chosen(_of_rounds(found, first), "prior predictive", f"drawn from the prior, in {rounds}")
    weights = np.array([weight or 0.0 for weight in found.weights])
    text = f"of all rounds, by their posterior weights (effective sample size {found.ess:.3g})"
    name = "rough posterior predictive" if found.is_rough else "posterior predictive"
    return before, _Chosen(weights, name, text, is_probability=not found.is_rough)


def _of_rounds(found: Calibration, ks: Sequence[int]) -> Floats:
    """Return the weight 1 for each trial of these rounds."""
    return np.isin([each.k for each in found.rounds for _ in each.sets], ks).astype(np.float64)


def _lack(facts: Facts, found: Calibration, weights: Floats) -> str:
    """Return why there is no figure of the trials with a weight; empty: there may be one."""
    if not found.has_weights:
        return "no set has a loss"
    names = found.trials().filter(pa.array(weights > 0))["job"].unique().to_pylist()
    files = facts.data.files
    existing = set(job_names(files))
    if lost := [one for one in names if one not in existing or load_job(files, one).round_of != found.record.identity]:
        return f"the outputs of {' and '.join(lost)} have been deleted, or belong to another calibration"
    return ""


def _figures(
    facts: Facts, found: Calibration, course: Course, before: _Chosen, after: _Chosen, width: Width
) -> list[Figure]:
    """Return a figure for each column of which both fans have values."""
    (read_before, under), (read_after, over) = (_fans(facts, found, course, of.weights) for of in (before, after))
    of_y = {fan.y: fan for fan in under if len(fan.table)}
    figures = []
    for fan in over:
        data = data_of(facts.data.observed, fan)
        for one, two in pairs_of_divisions(of_y[fan.y], fan) if fan.y in of_y else []:
            here = data and data.of_division(two.table["division"][0].as_py())
            sides = (before, read_before, one), (after, read_after, two)
            figures.append(_figure(*sides, here, width, has_decades=have_decades([*under, *over])))
    return figures


def _fans(facts: Facts, found: Calibration, course: Course, weights: Floats) -> tuple[TrialRows, list[Fan]]:
    columns = [course.x, *course.ys, *course.keys]
    read = trial_rows(facts.data_of, found.trials(), weights, course.output, columns)
    if not len(read.rows):
        return read, []
    n = len(read.weights)
    divisions = division_texts([read.rows[key] for key in course.keys]) if course.keys else None
    by = " and ".join(course.keys) or None
    source = FigureRows(read.rows, course.output, course.ys, n, n, by, divisions)
    return read, [replace(fan, keys=course.keys) for fan in fans(source, course.x, read.weights)]


def _figure(
    before: tuple[_Chosen, TrialRows, Fan],
    after: tuple[_Chosen, TrialRows, Fan],
    data: Observed | None,
    width: Width,
    *,
    has_decades: bool,
) -> Figure:
    (earlier, read_earlier, under), (later, read_later, over) = before, after
    within = _within(over, data, later.name) if data is not None and later.is_probability else ""
    bins = f" The values of {over.x!r} are in bins." if over.is_binned else ""
    caption = (
        f"Median (lines) and the middle 50 % and 90 % (bands). {earlier.name.capitalize()}: "
        f"{_sets(read_earlier, under)} {earlier.text}. {later.name.capitalize()}: {_sets(read_later, over)} "
        f"{later.text}. "
        "The replicates of a set share its weight. The bands include the randomness of the model, and no errors of "
        f"measurement.{bins}{within}"
    )
    title = f"{shortened(over.y, 40)}: {earlier.name} and {later.name} ({shortened(over.output, 30)}){only_text(over)}"
    options = {"has_inner_bands": True, "has_decades": has_decades}
    return compared(under, over, (earlier.name, later.name), data, title, caption, width, **options)  # type: ignore[arg-type]


def _sets(read: TrialRows, fan: Fan) -> str:
    n, shown = counted(read.n_sets, "set"), fan.n_sets_shown
    if len(read.weights) < read.n_sets:
        return f"a sample of {shown:,} of {n}"
    missing = len(read.weights) - shown
    return f"{shown:,} of {n} ({missing:,} {'has' if missing == 1 else 'have'} no result)" if missing else n


def _within(fan: Fan, data: Observed, name: str) -> str:
    """Return how many data are in the middle 90 %, of those at an x of the fan; empty: none is."""
    ends = {place(row["x"]): (row["low90"], row["high90"]) for row in fan.table.to_pylist()}
    pairs = zip(data.table[data.x].to_pylist(), data.table[data.y].to_pylist(), strict=True)
    known = [(y, ends[place(x)]) for x, y in pairs if x is not None and y is not None and place(x) in ends]
    n = sum(low <= y <= high for y, (low, high) in known)
    if not known:
        return ""
    return (
        f" {n:,} of {len(known):,} data points lie in the middle 90 % of the {name}, but this band has no errors of "
        "measurement, so less than 90 % can still be a good fit."
    )


def trial_rows(
    data_of: Callable[[str], JobData],  # returns a job of a round
    trials: pa.Table,
    weights: Floats,
    output: str,
    columns: Sequence[str],
) -> TrialRows:
    """Return the rows of an output of all trials with a weight above 0; none of their jobs is lost."""
    pairs = zip(trials["job"].to_pylist(), trials["param_id"].to_pylist(), weights.tolist(), strict=True)
    of_set: dict[tuple[str, str], float] = {}
    for job, identity, weight in pairs:
        if weight > 0:
            of_set[job, identity] = of_set.get((job, identity), 0.0) + weight
    names = list(dict.fromkeys(name for name, _ in of_set))
    rows_of_job = {name: _n_rows(data_of(name), output, columns) for name in names}
    n_trials = sum(name in names for name in trials["job"].to_pylist())
    most = min(MOST_SETS, max(MOST_VALUES * n_trials // max(sum(rows_of_job.values()), 1), 1))
    kept = thinned(np.array(list(of_set.values())), most)
    number = {key: i for i, key in enumerate(of_set) if kept[i] > 0}
    tables = [
        _rows_of(data_of(name), output, columns, {at: i for (of, at), i in number.items() if of == name})
        for name, n in rows_of_job.items()
        if n
    ]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    return TrialRows(rows, {i: float(kept[i]) for i in number.values()}, len(of_set))


def _n_rows(data: JobData, output: str, columns: Sequence[str]) -> int:
    """Return the rows of an output; 0 if it lacks a column, or if every simulation of the round has failed."""
    if output not in data.output_names or not set(columns) <= set(data.dataset("outputs", output).schema.names):
        return 0
    return data.n_rows(output)


def _rows_of(data: JobData, output: str, columns: Sequence[str], number: dict[str, int]) -> pa.Table:
    """Return the rows of sets, with the number of each set as its group."""
    numbers = np.array([number.get(identity, -1) for identity in data.parameters.ids().to_pylist()], np.int32)
    # Not `data.rows`, which would keep a sample of each round.
    where = pc.field("group").isin(pa.array(np.flatnonzero(numbers >= 0), pa.int32()))
    wanted = Selection(where=where, columns=list(dict.fromkeys(("group", "replicate", *columns))))
    scan = data.scan(wanted, "outputs", output)
    rows = pa.Table.from_batches(scan.batches(), scan.schema)
    return rows.set_column(0, "group", pa.array(numbers[rows["group"].to_numpy()], pa.int32()))
