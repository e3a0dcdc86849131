"""The posterior of each fitted parameter, compared with its prior: what the data taught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mops.calibration.calibration import Calibration
from mops.figures.bins import Bins
from mops.figures.calibration import marginals, posterior_quantiles
from mops.figures.columns import Floats
from mops.report.content import Figure, Key
from mops.report.drawing.axes import bin_axis, bin_rows, values
from mops.report.drawing.look import AMBER, BLUE, VERMILION
from mops.report.numbers import cell
from mops.report.prior import n_bins_for, prior_of
from mops.study.sampling.prior import prior_mass_between, prior_text
from mops.study.sampling.space import Choice, Range
from mops.units import shortened


def posterior_marginals(found: Calibration, fitted: pa.Table, weights: Floats, weights_text: str) -> list[Figure]:
    """Return a figure for each parameter. The narrower a posterior is, the finer are its bins."""
    quantiles = {row["parameter"]: row for row in posterior_quantiles(fitted, weights).to_pylist()}
    masses = {name: _prior_mass(found.space[name], row) for name, row in quantiles.items()}
    priors = {
        name: prior_of(name, found.space[name], fitted, weights, n_bins_for(masses.get(name)))
        for name in fitted.column_names
    }
    table = marginals(fitted, weights, priors)
    figures = []
    for name, prior in priors.items():
        # If the effective sample size is too small, the figures say that median and interval are rough.
        words = _Words.of(name, is_rough=found.is_rough)
        learned = _learned(quantiles.get(name), masses.get(name), words.rough)
        text = f"The prior is {prior_text(found.space[name])}.{learned}"
        rows = table.filter(pc.equal(table["parameter"], name))
        median = quantiles[name]["median"] if name in quantiles else None
        figures.append(_marginal(prior.bins, rows, median, words, f"{text}{weights_text}"))
    return figures


@dataclass(frozen=True)
class _Words:
    """What a figure calls the posterior: ``rough`` is "rough " if the effective sample size is too small."""

    title: str
    text: str
    rough: str

    @classmethod
    def of(cls, name: str, *, is_rough: bool) -> _Words:
        name, rough = shortened(name, 40), "rough " if is_rough else ""
        title = f"{'Rough posterior' if is_rough else 'Posterior'} of {name}"
        return cls(title, f"The {rough}posterior of {name}", rough)


def _prior_mass(entry: Choice | Range, quantiles: dict[str, Any]) -> float | None:
    """Return the prior probability of a credible interval of 95 %; None: the parameter has no range."""
    if isinstance(entry, Choice):
        return None
    return prior_mass_between(entry, quantiles["low95"], quantiles["high95"])


def _learned(quantiles: dict[str, Any] | None, prior_mass: float | None, rough: str) -> str:
    if quantiles is None or prior_mass is None:
        return ""
    interval = f"from {cell(quantiles['low95'])} to {cell(quantiles['high95'])}"
    mass = f"{100 * prior_mass:.2g} % of the prior"
    return f" The {rough}95 % credible interval (equal-tailed) is {interval}, a range with {mass}."


def _prior_lines(*, is_rect: bool) -> list[dict[str, Any]]:
    """Return the marks of the prior: a line with a border."""
    strokes = (("var(--card)", 5.0), (AMBER, 2.5))  # without a border, the line would hardly be seen above a bar
    if is_rect:
        return [{"type": "rule", "color": colour, "strokeWidth": width} for colour, width in strokes]
    return [
        {"type": "tick", "orient": "horizontal", "color": colour, "thickness": width, "opacity": 1}
        for colour, width in strokes
    ]


def _marginal(bins: Bins, table: pa.Table, median: float | None, words: _Words, text: str) -> Figure:
    rows = [row | at for row, at in zip(table.to_pylist(), bin_rows(bins, "x"), strict=True)]
    is_rect = bins.kind != "values"
    share = {"type": "quantitative", "axis": {"format": "~%", "title": "share in each bin"}}
    mark = {"type": "rect" if is_rect else "bar", "color": BLUE, "stroke": "var(--card)", "strokeWidth": 0.5}
    x, weight = bin_axis(bins, "x"), share | {"field": "weight"}
    layers: list[dict[str, Any]] = [
        {"mark": mark, "encoding": {**x, "y": weight} | ({"y2": {"datum": 0}} if is_rect else {})},
        *({"mark": line, "encoding": {**x, "y": share | {"field": "prior"}}} for line in _prior_lines(is_rect=is_rect)),
    ]
    keys = [Key(BLUE, f"{words.rough}posterior"), Key(AMBER, "prior")]
    if median is not None and is_rect:
        at_median = {"x": {"datum": median, "type": "quantitative"}}
        layers.append({"mark": {"type": "rule", "color": VERMILION, "strokeWidth": 2}, "encoding": at_median})
        keys.append(Key(VERMILION, f"{words.rough}median {cell(median)}"))
    likely = max(rows, key=lambda row: row["weight"])
    alt = f"{words.text} has most weight in {likely['label']}: {likely['weight']:.0%}. "
    alt += f"The prior has {likely['prior']:.2%} there."
    caption = (
        f"The posterior weight of the trials in each bin of {shortened(bins.name, 60)}, and the prior probability of "
        f"the bin. Each sums to 1. {text}"
    )
    return Figure(words.title, caption, alt, {**values(rows), "layer": layers}, table, keys)
