"""The outputs of a calibration, compared with declared data before and after it: a prior and a posterior predictive.

An optimiser has neither. Its report compares the sets of the first round with the best sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mops.calibration.calibration import Calibration
from mops.calibration.rounds import is_from_prior
from mops.errors import CorruptRecord, UsageError
from mops.figures.choices import Course
from mops.figures.columns import Floats
from mops.figures.fan import Fan, FanSource, fans, have_decades
from mops.figures.row_keys import division_texts
from mops.jobs.figure_data import data_of, declared
from mops.project.mops_toml import Observed
from mops.report.content import Block, Figure, Gallery, Width
from mops.report.drawing.axes import place
from mops.report.facts import Facts
from mops.report.sections.fan_pairs import FanPair, Side, only_text, pairs_of_divisions
from mops.report.sections.outputs import courses
from mops.report.trial_outputs import TrialRows, lost_jobs, trial_rows
from mops.units import counted, shortened

_NONE = "No figure compares the outputs of the calibration with the data:"
_N_BEST = 8


@dataclass(frozen=True)
class _Chosen:
    """The sets of one of the two fans."""

    weights: Floats  # of each trial; 0: it does not belong to them
    name: str  # what the figure calls them
    text: str  # which sets they are, for the caption
    # Whether the weights are probabilities, so that a share of the fan can be compared with a share of the data.
    is_probability: bool = False


def predictive(facts: Facts, found: Calibration) -> list[Gallery | Block]:
    """Return a figure for each column with data, or a note why there is none; empty: no column has data."""
    data = declared(facts.data.observed)
    with_data = [
        replace(course, ys=ys)
        for course in courses(facts)
        if (ys := tuple(y for y in course.ys if (course.output, course.x, y) in data))
    ]
    if not with_data:
        return []
    before, after = _prior_and_posterior(found) if found.method.gives_posterior else _first_and_best(found)
    try:
        reason = _lack(facts, found, before.weights + after.weights)
        width: Width = "half" if sum(len(course.ys) for course in with_data) > 1 else "whole"
        shown = [] if reason else with_data
        figures = [one for course in shown for one in _figures(facts, found, course, before, after, width)]
    except (CorruptRecord, UsageError) as wrong:
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


def _first_and_best(found: Calibration) -> tuple[_Chosen, _Chosen]:
    first = found.rounds[0].k
    before = _Chosen(_of_rounds(found, [first]), "first round", f"of round {first}")
    losses = np.array([np.inf if loss is None else loss for loss in found.trials()["loss"].to_pylist()])
    weights = np.zeros(len(losses))
    if found.objectives:
        weights[found.pareto_places()] = 1
        return before, _Chosen(weights, "Pareto set", "that no other set beats in all objectives")
    best = np.argsort(losses, kind="stable")[:_N_BEST]
    weights[best] = np.isfinite(losses[best])
    return before, _Chosen(weights, "best sets", "with the least loss of all rounds")


def _of_rounds(found: Calibration, ks: Sequence[int]) -> Floats:
    """Return the weight 1 for each trial of these rounds."""
    return np.isin([each.k for each in found.rounds for _ in each.sets], ks).astype(np.float64)


def _lack(facts: Facts, found: Calibration, weights: Floats) -> str:
    """Return why there is no figure of the trials with a weight; empty: there may be one."""
    if found.method.gives_posterior and not found.has_weights:
        return "no set has a loss"
    names = found.trials().filter(pa.array(weights > 0))["job"].unique().to_pylist()
    if lost := lost_jobs(facts.data.files, found, names):
        return f"the outputs of {' and '.join(lost)} have been deleted"
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
    source = FanSource(read.rows, course.output, course.x, course.ys, n, n, by, divisions, read.weights)
    return read, [replace(fan, keys=course.keys) for fan in fans(source)]


def _figure(
    before: tuple[_Chosen, TrialRows, Fan],
    after: tuple[_Chosen, TrialRows, Fan],
    data: Observed | None,
    width: Width,
    *,
    has_decades: bool,
) -> Figure:
    (earlier, read_earlier, under), (later, read_later, over) = before, after
    sides = _side(earlier, under, read_earlier), _side(later, over, read_later)
    pair = FanPair(*sides, data, has_inner_bands=True, has_decades=has_decades)
    within = _within(over, data, later.name) if data is not None and later.is_probability else ""
    bins = f" The values of {over.x!r} are in bins." if over.is_binned else ""
    are_lines = len(over.lines) and len(set(read_later.weights.values())) > 1
    lines = " The more weight a simulation has, the stronger is its line." if are_lines else ""
    shared = "The replicates of a set share its weight." if later.is_probability else "Each set has the same weight."
    caption = (
        f"Median (lines) and the middle 50 % and 90 % (bands) of {over.y!r} at each {over.x!r}. "
        f"{earlier.name.capitalize()}: {_sets(read_earlier, under)} {earlier.text}. {later.name.capitalize()}: "
        f"{_sets(read_later, over)} {later.text}. {shared} The bands include the "
        f"randomness of the model, and no errors of measurement.{bins}{lines}{within}"
    )
    title = f"{shortened(over.y, 40)}: {earlier.name} and {later.name} ({shortened(over.output, 30)}){only_text(over)}"
    return pair.figure(title, caption, f"{pair.alt}{within}", width)


def _side(chosen: _Chosen, fan: Fan, read: TrialRows) -> Side:
    weights = read.weights if len(set(read.weights.values())) > 1 else None
    return Side(fan, chosen.name, f"the {chosen.name}", chosen.name, weights)


def _sets(read: TrialRows, fan: Fan) -> str:
    n, shown = counted(read.n_sets, "set"), fan.n_sets_shown
    if len(read.weights) < read.n_sets:
        return f"a sample of {shown:,} of {n}"
    missing = len(read.weights) - shown
    return f"{shown:,} of {n} ({missing:,} {'has' if missing == 1 else 'have'} no result)" if missing else n


def _within(fan: Fan, data: Observed, name: str) -> str:
    """Return how many data are in the middle 90 %, of those at an x of the fan; empty: none is, or it has no bands."""
    if len(fan.lines):
        return ""
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
