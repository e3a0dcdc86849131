"""Figures of a calibration, against plain loops over its trials."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.figures import calibration as module
from mops.figures.bins import bins_between, bins_of
from mops.figures.calibration import (
    Prior,
    marginal,
    pair_weights,
    posterior_quantiles,
    thinned,
    trials,
    weighted_quantiles,
)

KINDS = pa.array(["low", "high"])
TRIALS = st.lists(
    st.tuples(st.integers(1, 3), st.one_of(st.none(), st.floats(-10, 10)), st.floats(0.01, 1), st.floats(0, 5)),
    max_size=60,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    total = sum(weight for _, loss, weight, _ in rows if loss is not None)
    columns = {
        "round": pa.array([row[0] for row in rows], pa.int32()),
        "failure": pa.array(["error" if row[1] is None else None for row in rows], pa.string()),
        "loss": pa.array([row[1] for row in rows], pa.float64()),
        "weight": pa.array([None if row[1] is None else row[2] / total for row in rows], pa.float64()),
        "beta": pa.array([row[3] for row in rows], pa.float64()),
        "kind": pa.array(["low" if row[3] < 2 else "high" for row in rows], pa.string()),
    }
    return pa.table(columns)


@given(TRIALS, st.integers(1, 40))
def test_trials_show_each_improvement(rows: list[tuple[Any, ...]], most: int) -> None:
    table = table_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TRIALS", most)
        found = trials(table)
    best, improvements, so_far = math.inf, [], []
    for number, (_, loss, *_) in enumerate(rows, 1):
        if loss is not None and loss < best:
            best = loss
            improvements.append(number)
        so_far.append(None if best == math.inf else best)
    points = found.points.to_pylist()
    shown = [point["trial"] for point in points]
    assert set(improvements) <= set(shown)
    assert len(shown) <= most + len(improvements) + 1
    for point in points:
        row = rows[point["trial"] - 1]
        assert (point["round"], point["loss"], point["best"]) == (row[0], row[1], so_far[point["trial"] - 1])


@given(TRIALS)
def test_a_round_begins_after_the_trials_of_all_rounds_before_it(rows: list[tuple[Any, ...]]) -> None:
    ks = [k for k, *_ in rows]
    assert trials(table_of(rows)).n_before.tolist() == [sum(k < of for k in ks) for of in sorted(set(ks))]


@given(TRIALS)
def test_a_posterior_adds_the_weights_of_the_trials_in_each_bin(rows: list[tuple[Any, ...]]) -> None:
    table = table_of(rows)
    weights = np.array([weight or 0.0 for weight in table["weight"].to_pylist()])
    bins = {"beta": bins_between("beta", 0, 5, 5, is_log=False, is_integer=False), "kind": bins_of("kind", KINDS)}
    priors = {name: Prior(of, np.full(len(of), 1 / len(of))) for name, of in bins.items()}
    for name, prior in priors.items():
        index = bins[name].index(table[name]).tolist()
        assert -1 not in index
        for row in marginal(table, weights, name, prior).to_pylist():
            inside = [weight for weight, at in zip(weights, index, strict=True) if at == row["bin"]]
            assert row["trials"] == len(inside)
            assert row["weight"] == pytest.approx(sum(inside))
            assert row["prior"] == 1 / len(bins[name])
    pairs = pair_weights(table, weights, bins["beta"], bins["kind"]).to_pylist()
    assert sum(row["weight"] for row in pairs) == pytest.approx(sum(weights))
    for row in pairs:
        assert (row["x"], row["y"]) == ("beta", "kind")
        kind = bins["kind"].values[row["y_bin"]]
        low, high = bins["beta"].edges[row["x_bin"] : row["x_bin"] + 2]
        last = row["x_bin"] == 4
        inside = [
            weight
            for weight, (_, _, _, beta) in zip(weights, rows, strict=True)
            if (low <= beta < high or (last and beta == high)) and ("low" if beta < 2 else "high") == kind
        ]
        assert row["weight"] == pytest.approx(sum(inside))
    quantiles = posterior_quantiles(table.select(["beta", "kind"]), weights)
    assert quantiles["parameter"].to_pylist() == (["beta"] if rows else [])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=12), st.floats(0.001, 1))
def test_a_weighted_quantile_is_that_of_values_repeated_by_their_weights(
    rows: list[tuple[int, int]], at: float
) -> None:
    values, weights = (np.array(column, float) for column in zip(*rows, strict=True))
    (found,) = weighted_quantiles(values, weights, [at])
    repeated = np.sort(np.repeat(values, weights.astype(int)))
    shares = np.arange(1, len(repeated) + 1) / len(repeated)
    candidates = {repeated[np.searchsorted(shares, q)] for q in (at - 1e-12, min(at + 1e-12, 1.0))}
    assert found in candidates


def test_without_weights_there_are_no_quantiles() -> None:
    assert np.isnan(weighted_quantiles(np.array([1.0]), np.array([0.0]), [0.5])).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60).filter(any), st.integers(1, 60))
def test_a_sample_draws_each_set_as_often_as_its_weight_says(weights: list[float], most: int) -> None:
    """Of systematic resampling, the number of draws of a set differs by less than 1 from its expectation."""
    every = np.array(weights)
    found = thinned(every, most)
    if np.count_nonzero(every) <= most:
        assert found.tolist() == weights
        return
    assert np.count_nonzero(found) <= most
    assert found.sum() == pytest.approx(1)
    assert not found[every == 0].any()
    assert (np.abs(found * most - every / every.sum() * most) < 1 + 1e-9).all()
