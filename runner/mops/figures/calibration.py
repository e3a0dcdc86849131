"""The rounds of a calibration: losses over its trials, and the posterior of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, cell_columns, cells, is_log
from mops.figures.columns import Floats, Integers, nullable, numbers

MOST_TRIALS = 2_000


@dataclass(frozen=True)
class Trials:
    """The losses of a calibration over its trials."""

    # At most about 2,000 trials in their order, among them each trial that was better than all before it: ``trial``
    # (int64, from 1), ``round`` (int32), ``loss`` and ``weight`` (float64; null: it has failed), ``best`` (float64):
    # the least loss so far.
    points: pa.Table
    n_before: Integers  # for each round, the number of trials before it
    n_trials: int
    is_log: bool  # whether the loss needs a logarithmic scale


def trials(table: pa.Table) -> Trials:
    """Return the losses over the trials, from ``Calibration.trials``."""
    losses = numbers(table["loss"])
    so_far = np.fmin.accumulate(losses) if len(losses) else losses
    step = max(1, -(-len(losses) // MOST_TRIALS))
    least = np.where(np.isnan(so_far), np.inf, so_far)
    better = least < np.append(np.inf, least[:-1])[: len(least)]
    shown = np.flatnonzero((np.arange(len(losses)) % step == 0) | better)
    points = {
        "trial": pa.array(shown + 1, pa.int64()),
        "round": table["round"].take(pa.array(shown)),
        "loss": nullable(losses[shown]),
        "weight": nullable(numbers(table["weight"])[shown]),
        "best": nullable(so_far[shown]),
    }
    _, n_before = np.unique(table["round"].to_numpy(), return_index=True)
    return Trials(pa.table(points), n_before, len(losses), is_log(losses[np.isfinite(losses)]))


@dataclass(frozen=True)
class Prior:
    """The bins of a parameter, and the prior probability of each of them."""

    bins: Bins
    masses: Floats


POSTERIOR_QUANTILES = {"low95": 0.025, "low50": 0.25, "median": 0.5, "high50": 0.75, "high95": 0.975}


def marginal(fitted: pa.Table, weights: Floats, name: str, prior: Prior) -> pa.Table:
    """Return the posterior of a parameter in bins, compared with its prior; failed trials have weight 0."""
    # ``trials`` (int64): the trials in the bin. ``weight`` (float64): their posterior weights, of all 1. ``prior``
    # (float64): the prior probability of the bin.
    index = prior.bins.index(fitted[name])
    inside = index >= 0
    n = np.bincount(index[inside], minlength=len(prior.bins)).astype(np.int64)
    weight = np.bincount(index[inside], weights=weights[inside], minlength=len(prior.bins))
    found = prior.bins.table().add_column(0, "parameter", pa.array([name] * len(prior.bins), pa.string()))
    found = found.append_column("trials", pa.array(n)).append_column("weight", pa.array(weight))
    return found.append_column("prior", pa.array(prior.masses, pa.float64()))


def pair_weights(fitted: pa.Table, weights: Floats, x: Bins, y: Bins) -> pa.Table:
    """Return the posterior weight in each cell with weight of two parameters."""
    rows, cell = cells(x.index(fitted[x.name]), y.index(fitted[y.name]), len(x), len(y))
    weight = np.bincount(cell, weights=weights[rows], minlength=len(x) * len(y))
    full = np.flatnonzero(weight)
    return pa.table(cell_columns(x, y, full) | {"weight": pa.array(weight[full], pa.float64())})


def posterior_quantiles(fitted: pa.Table, weights: Floats) -> pa.Table:
    """Return the weighted quantiles of each parameter that is a number: a row for each."""
    rows = []
    for name in fitted.column_names:
        values = numbers(fitted[name])
        if np.isfinite(values).any() and not pa.types.is_boolean(fitted[name].type):
            found = weighted_quantiles(values, weights, list(POSTERIOR_QUANTILES.values()))
            rows.append({"parameter": name} | dict(zip(POSTERIOR_QUANTILES, found.tolist(), strict=True)))
    fields = [pa.field("parameter", pa.string()), *(pa.field(name, pa.float64()) for name in POSTERIOR_QUANTILES)]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def weighted_quantiles(values: Floats, weights: Floats, at: Sequence[float]) -> Floats:
    """Return the least values up to which the weights sum to the share ``at`` of all weights; NaN without weights."""
    counts = np.isfinite(values) & (weights > 0)
    if not counts.any():
        return np.full(len(at), np.nan)
    found: Floats = np.quantile(values[counts], at, weights=weights[counts], method="inverted_cdf")
    return found


def thinned(weights: Floats, most: int) -> Floats:
    """Return weights of which at most ``most`` are above 0: all of them, or a sample whose weights sum to 1."""
    if np.count_nonzero(weights) <= most:
        return weights
    # A systematic sample (Kitagawa 1996), which is always the same.
    ends = np.cumsum(weights)
    steps = (np.arange(most) + np.random.default_rng(0).random()) / most
    chosen = np.searchsorted(ends / ends[-1], steps, side="right")
    found: Floats = np.bincount(chosen, minlength=len(weights)) / most
    return found
