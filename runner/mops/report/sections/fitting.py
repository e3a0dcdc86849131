"""The calibration to which a job belongs: losses over its trials, and the posterior of its parameters."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.calibration.calibration import Calibration
from mops.calibration.options import Method
from mops.figures.bins import Bins, bins_for, bins_of
from mops.figures.calibration import Trials, pair_weights, posterior_quantiles, trials
from mops.figures.columns import Floats
from mops.report.content import Block, Figure, Gallery, Key, Section
from mops.report.drawing.axes import bin_axis, bin_rows, loss_axis, values
from mops.report.drawing.look import BLUE, PALE, RAMP, VERMILION
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.report.sections.marginals import posterior_marginals
from mops.report.sections.pareto import pareto
from mops.report.sections.predictive import predictive
from mops.units import counted, shortened

_PARAMETERS_SHOWN = 6
_PAIR_PARAMETERS = 4
_MOST_PAIR_BINS = 12
_LATER_SHOWN = 0.98  # of the losses of later rounds
_POINT_MARGIN = 4  # pixels, so that the axis does not cut points in half
_FLAT = 0.3  # of the range of all losses
# Of the greatest weight of a cell: a cell with less is empty, because its colour would be that of no weight.
_LEAST_SHARE = 0.02
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
    parts: list[Gallery | Block] = [Gallery([_trials(trials(found.trials()), _loss_text(found))])]
    if len(found.objectives) > 1:
        parts += pareto(found)
    if found.has_weights:
        fitted, weights = found.fitted(), np.array([weight or 0.0 for weight in found.weights])
        text = _weights_text(found)
        shown = fitted.select(list(found.varying[:_PARAMETERS_SHOWN]))
        parts.append(Block("table", _quantiles(posterior_quantiles(shown, weights), text, is_rough=found.is_rough)))
        figures = posterior_marginals(found, shown, weights, text)
        parts.append(Gallery(figures + _pairs(found, fitted, weights, text)))
    parts += predictive(facts, found)
    return Section("calibration", "Calibration", parts, _intro(found))


def _pairs(found: Calibration, fitted: pa.Table, weights: Floats, text: str) -> list[Figure]:
    """Return a figure for each pair of the first parameters, over the trials that have a weight to speak of."""
    weighty = weights > _LEAST_SHARE / 20 * weights.max()
    fitted, weights = fitted.filter(pa.array(weighty)), weights[weighty]
    n_bins = bins_for(int(found.ess), _MOST_PAIR_BINS, 1 / 3)
    bins = {name: bins_of(name, fitted[name], n_bins, weights) for name in found.varying[:_PAIR_PARAMETERS]}
    table = pair_weights(fitted, weights, bins)
    named = "Rough posterior of" if found.is_rough else "Posterior of"
    return [_pair(table, bins[x], bins[y], named, text) for x, y in combinations(bins, 2)]


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
    temperature = f" The temperature is {found.temperature:g}." if is_divided else ""
    return f"{_loss_text(found)}{temperature}"


def _trials(found: Trials, loss_text: str) -> Figure:
    rows = found.points.to_pylist()
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    margin = {"padding": _POINT_MARGIN}
    x = {"field": "trial", "type": "quantitative", "title": "trial", "scale": {"nice": False, **margin}}
    y = loss_axis(losses, "loss", is_log=found.is_log)
    y |= {"scale": y["scale"] | margin}
    cut = None if found.is_log else _cut(found)
    note = ""
    if cut is not None:
        y |= {"scale": {"domain": [min(losses), cut], "nice": False}}
        n_above = sum(loss > cut for loss in losses)
        note = f" The vertical axis ends at {cell(cut)}, to show the later rounds: {counted(n_above, 'trial')} above."
    starts = [row["n"] for row in found.rounds.to_pylist()]
    lines = [{"at": sum(starts[: i + 1]) + 0.5} for i in range(len(starts) - 1)]
    layers: list[dict[str, Any]] = [
        {
            **values(lines),
            "mark": {"type": "rule", "color": PALE, "strokeDash": [3, 3]},
            "encoding": {"x": {"field": "at", "type": "quantitative"}},
        },
        {
            **values([row for row in rows if row["loss"] is not None]),
            "mark": {"type": "circle", "color": BLUE, "size": 18, "opacity": 0.55, "clip": True},
            "encoding": {"x": x, "y": y | {"field": "loss"}},
        },
        {
            **values([row for row in rows if row["best"] is not None]),
            "mark": {"type": "line", "color": VERMILION, "interpolate": "step-after", "strokeWidth": 2, "clip": True},
            "encoding": {"x": x, "y": y | {"field": "best"}},
        },
    ]
    keys = [Key(BLUE, "a trial"), Key(VERMILION, "least loss so far"), Key(PALE, "a new round")]
    best = f" The least loss is {cell(min(losses))}." if losses else ""
    alt = f"{counted(found.n_trials, 'trial')} in {counted(len(found.rounds), 'round')}.{best}"
    return Figure(
        "Trials", f"{found.caption}{loss_text}{note}", alt, {"layer": layers}, found.points, keys, "whole", 300
    )


def _cut(found: Trials) -> float | None:
    """Return where the axis of losses ends, so that the later rounds are no flat line; None: it shows all losses."""
    rows = [row for row in found.points.to_pylist() if row["loss"] is not None]
    first = min((row["round"] for row in rows), default=0)
    later = [row["loss"] for row in rows if row["round"] > first]
    if not later:
        return None
    least, greatest = min(row["loss"] for row in rows), max(row["loss"] for row in rows)
    end = float(np.quantile(later, _LATER_SHOWN))
    return end if 0 < end - least < _FLAT * (greatest - least) else None


def _quantiles(found: pa.Table, weights: str, *, is_rough: bool) -> dict[str, Any]:
    names = {"low95": "2.5 %", "low50": "25 %", "median": "median", "high50": "75 %", "high95": "97.5 %"}
    rows = found.to_pylist()
    return {
        "caption": f"{'Rough w' if is_rough else 'W'}eighted quantiles of the posterior of each parameter.{weights}",
        "head": ["parameter", *names.values()],
        "rows": [[row["parameter"], *(cell(row[name]) for name in names)] for row in rows],
    }


def _pair(found: pa.Table, x: Bins, y: Bins, named: str, weights: str) -> Figure:
    table: pa.Table = found.filter(pc.and_(pc.equal(found["x"], x.name), pc.equal(found["y"], y.name)))
    at_x, at_y = bin_rows(x, "x"), bin_rows(y, "y")
    rows = [row | at_x[row["x_bin"]] | at_y[row["y_bin"]] for row in table.drop_columns(["x", "y"]).to_pylist()]
    most = max((row["weight"] for row in rows), default=1.0)
    rows = [row for row in rows if row["weight"] >= _LEAST_SHARE * most]
    scale = {"type": "quantize", "domain": [0, most], "range": list(reversed(RAMP))}
    colour = {"field": "weight", "type": "quantitative", "scale": scale, "legend": None}
    encoding = {**bin_axis(x, "x"), **bin_axis(y, "y"), "color": colour}
    keys = [Key(RAMP[5], "little weight"), Key(RAMP[0], f"most: {most:.2g}")]
    alt = f"The weight of the trials in {counted(len(rows), 'cell')} of {x.name} and {y.name}."
    caption = (
        f"The weight of the trials in each cell. A cell with less than {100 * _LEAST_SHARE:g} % of the "
        f"greatest weight is empty. Trials with hardly any weight are left out.{weights}"
    )
    title = f"{named} {shortened(x.name, 24)} and {shortened(y.name, 24)}"
    return Figure(title, caption, alt, {**values(rows), "mark": "rect", "encoding": encoding}, table, keys, height=240)
