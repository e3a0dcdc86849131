"""The calibration to which a job belongs: losses over its trials, and the posterior of its parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from mops.calibration.calibration import Calibration
from mops.calibration.options import Method
from mops.figures import course_charts
from mops.figures.bins import LEAST_RATIO, MOST_BINS, bins_between, bins_of, pair_bins_for
from mops.figures.calibration import Prior, marginal, pair_weights, posterior_quantiles, trials
from mops.figures.columns import Floats, cell, is_number
from mops.report.content import Block, Figure, Gallery, Section
from mops.report.facts import Facts
from mops.report.predictive import predictive
from mops.study.sampling.draw import column_of, prior_mass_below, prior_mass_between, prior_text
from mops.study.sampling.space import Choice, Range
from mops.units import counted, shortened

_PARAMETERS_SHOWN = 6
_PAIR_PARAMETERS = 4
_LEAST_WEIGHT = 1e-3  # of the greatest weight of a trial: a trial with less is in no figure of a pair
_FINEST_BINS = 60
_BINS_OF_INTERVAL = 8
_OBJECTIVES_SHOWN = 4
_SETS_SHOWN = 20
_BEST_SHOWN = 10
_ESS_TEXT = "the effective sample size is {:.3g}"
_OTHER_WEIGHTS = (
    "The options of the last call count. Another call may have others: trials() of its calibration has the loss and "
    "the weight of each set."
)


def fitting(facts: Facts) -> Section | None:
    """Return the section about the calibration of which the job is a round; None: it is not one."""
    found = facts.calibration
    if found is None:
        return None
    shown = trials(found.trials())
    figure = Figure(course_charts.trials(shown), shown.points, "whole", 300, _loss_text(found))
    parts: list[Gallery | Block] = [Gallery([figure])]
    if len(found.objectives) > 1:
        parts += _pareto(found)
    elif not found.method.gives_posterior and found.n_scored:
        caption = f"The best sets of all rounds, at most {_BEST_SHOWN}.{_loss_text(found)}"
        parts.append(Block("table", _sets(found, found.best(_BEST_SHOWN), ["loss"], caption)))
    if found.has_weights:
        fitted, weights = found.fitted(), np.array([weight or 0.0 for weight in found.weights])
        text = _weights_text(found)
        first = fitted.select(list(found.varying[:_PARAMETERS_SHOWN]))
        quantiles = posterior_quantiles(first, weights)
        parts.append(Block("table", _quantiles(quantiles, text, is_rough=found.is_rough)))
        figures = _marginals(found, first, weights, quantiles)
        parts.append(Gallery(figures + _pairs(found, fitted, weights)))
    parts += predictive(facts, found)
    return Section("calibration", "Calibration", parts, _intro(found))


def _pairs(found: Calibration, fitted: pa.Table, weights: Floats) -> list[Figure]:
    """Return a figure for each pair of the first parameters, over the trials that have a weight to speak of."""
    weighty = weights > _LEAST_WEIGHT * weights.max()
    fitted, weights = fitted.filter(pa.array(weighty)), weights[weighty]
    n_bins = pair_bins_for(int(found.ess))
    bins = {name: bins_of(name, fitted[name], n_bins, weights) for name in found.varying[:_PAIR_PARAMETERS]}
    figures = []
    for x, y in combinations(bins.values(), 2):
        cells = pair_weights(fitted, weights, x, y)
        chart = course_charts.posterior_pair(cells, x, y, "rough " if found.is_rough else "")
        figures.append(Figure(chart, cells, height=250))
    return figures


def _marginals(found: Calibration, fitted: pa.Table, weights: Floats, of_posterior: pa.Table) -> list[Figure]:
    """Return a figure for each parameter: what the data taught. The narrower a posterior is, the finer are its bins."""
    quantiles = {row["parameter"]: row for row in of_posterior.to_pylist()}
    rough = "rough " if found.is_rough else ""
    figures = []
    for name in fitted.column_names:
        row, entry = quantiles.get(name), found.space[name]
        mass = None  # the prior probability of the credible interval; None: the parameter has no range
        if row is not None and isinstance(entry, Range):
            mass = prior_mass_between(entry, row["low95"], row["high95"])
        prior = prior_of(name, entry, fitted, weights, n_bins_for(mass))
        rows = marginal(fitted, weights, name, prior)
        median = row["median"] if row is not None and prior.bins.kind != "values" else None
        note = f" The prior is {prior_text(entry)}."
        if row is not None and mass is not None:
            ends = f"from {cell(row['low95'])} to {cell(row['high95'])}, a range with {100 * mass:.2g} % of the prior"
            note += f" The {rough}95 % credible interval (equal-tailed) is {ends}."
        figures.append(Figure(course_charts.marginal(prior.bins, rows, median, rough), rows, height=230, note=note))
    return figures


def prior_of(name: str, entry: Choice | Range, fitted: pa.Table, weights: Floats, most: int = MOST_BINS) -> Prior:
    """Return the prior of a parameter in at most this number of bins, which cover its whole range."""
    if isinstance(entry, Choice):
        values = column_of(entry.values)
        if is_number(values.type):
            bins = bins_of(name, values, most)
        else:  # a value that no trial has is one of the values too
            tried = pa.concat_arrays([values, *fitted[name].chunks])
            # Of more texts than bins, those with the greatest weights in the trials have a bin.
            bins = bins_of(name, tried, most, np.append(np.zeros(len(values)), weights))
        return Prior(bins, np.bincount(bins.index(values), minlength=len(bins)) / len(values))
    is_log = entry.is_log and entry.high >= LEAST_RATIO * entry.low
    bins = bins_between(name, entry.low, entry.high, most, is_log=is_log, is_integer=entry.is_int)
    edges = np.array([*bins.values, entry.high + 1.0]) if bins.kind == "values" else bins.edges
    return Prior(bins, np.diff(prior_mass_below(entry, edges)))


def n_bins_for(prior_mass: float | None) -> int:
    """Return into how many bins to divide a range, so that an interval with this prior probability is seen."""
    if not prior_mass:
        return MOST_BINS
    # About 8 bins for the interval, if 60 bins are enough for that.
    return int(min(max(math.ceil(_BINS_OF_INTERVAL / prior_mass), MOST_BINS), _FINEST_BINS))


def _intro(found: Calibration) -> str:
    scored = (
        "This section covers all rounds of the calibration, and all other sections only this round. "
        f"Calibration {found.name}: {counted(len(found.rounds), 'round')}, {counted(found.n_scored, 'scored set')}"
    )
    failed = f", {counted(found.n_failed, 'failed set')}" if found.n_failed else ""
    if not found.method.gives_posterior:
        sought = "the Pareto set of several losses" if len(found.objectives) > 1 else "the least loss"
        return f"{scored}{failed}. The method searches for {sought} and gives no posterior. {_OTHER_WEIGHTS}"
    if not found.has_weights:
        return f"{scored}{failed}. No set has a loss, so no set has a weight and there is no posterior."
    few = f" of {found.least_ess:g} wanted, so the posterior is rough" if found.is_rough else ""
    why = f" {found.why_rough[0].upper()}{found.why_rough[1:]}." if found.is_rough and found.why_rough else ""
    return f"{scored}{failed}; {_ESS_TEXT.format(found.ess)}{few}.{why}{_weights_text(found)} {_OTHER_WEIGHTS}"


def _loss_text(found: Calibration) -> str:
    if found.loss.weights is None:
        return " The loss is the sum of all losses."
    terms = " + ".join(f"{weight:g} x {label}" for label, weight in found.loss.weights.items())
    return f" The loss is {shortened(terms, 200)}."


def _weights_text(found: Calibration) -> str:
    """Return by which loss the trials weigh, and with which temperature, if the method has one."""
    is_divided = found.method is Method.IMPORTANCE
    temperature = f" The temperature is {found.scoring.temperature:g}." if is_divided else ""
    return f"{_loss_text(found)}{temperature}"


def _quantiles(found: pa.Table, weights: str, *, is_rough: bool) -> dict[str, Any]:
    names = {"low95": "2.5 %", "low50": "25 %", "median": "median", "high50": "75 %", "high95": "97.5 %"}
    rows = found.to_pylist()
    return {
        "caption": f"{'Rough w' if is_rough else 'W'}eighted quantiles of the posterior of each parameter.{weights}",
        "head": ["parameter", *names.values()],
        "rows": [[row["parameter"], *(cell(row[name]) for name in names)] for row in rows],
    }


def _pareto(found: Calibration) -> list[Gallery | Block]:
    """Return the figures and the table; empty: no set has losses."""
    places = found.pareto_places()
    if not places:
        return []
    table = found.trials()
    best = table.take(pa.array(places, pa.int64()))
    shown = found.objectives[:_OBJECTIVES_SHOWN]
    figures = [_objectives(table, places, x, y) for x, y in combinations(shown, 2)]
    more = f" These are the first {_SETS_SHOWN} of {len(best):,}." if len(best) > _SETS_SHOWN else ""
    caption = f"The Pareto set, in the order of {shortened(found.objectives[0], 60)}.{more}"
    return [Gallery(figures), Block("table", _sets(found, best[:_SETS_SHOWN], found.objectives, caption))]


def _objectives(table: pa.Table, places: list[int], x: str, y: str) -> Figure:
    is_best = set(places)
    rows = [
        {"x": at_x, "y": at_y, "best": place in is_best}
        for place, (at_x, at_y) in enumerate(zip(table[x].to_pylist(), table[y].to_pylist(), strict=True))
        if at_x is not None and at_y is not None
    ]
    data = pa.Table.from_pylist(rows).rename_columns([x, y, "pareto"])
    return Figure(course_charts.pareto(rows, x, y), data, height=250)


def _sets(found: Calibration, best: pa.Table, losses: Sequence[str], caption: str) -> dict[str, Any]:
    """Return a table of sets with their losses and fitted parameters."""
    columns = [f"param.{name}" if f"param.{name}" in best.column_names else name for name in found.varying]
    rows = [[cell(row[name]) for name in (*losses, *columns)] for row in best.to_pylist()]
    return {"caption": caption, "head": [*losses, *found.varying], "rows": rows}
