"""Figures of parameter sets and their losses, against plain loops over the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mops.figures.bins import ROUNDING
from mops.figures.failures import failure_bins
from mops.figures.losses import ScoredSets, distribution, shown_sets, wide_losses
from mops.figures.profiles import explained_share, pairs, parallel, profile, telling_parameters
from mops.figures.sensitivity import sensitivity, spearman

LABELS = {"fit": ("model:fit", "loss"), "both.low": ("model:both", "low")}
WEIGHTS = {"fit": 2.0, "both.low": 1.0}
VALUES = st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(-100, 100))
ROWS = st.lists(
    st.tuples(VALUES, VALUES, st.one_of(st.none(), st.floats(0.01, 10)), st.sampled_from([None, "a", "b"])), max_size=60
)


def scored(rows: list[tuple[Any, ...]]) -> ScoredSets:
    """Make sets with two losses, a number, a text, and a constant."""
    losses = [
        {"param_id": f"p{i}", "group": i, "target": target, "name": name, "loss": value}
        for i, row in enumerate(rows)
        for (target, name), value in zip(LABELS.values(), row, strict=False)
        if value is not None
    ]
    fields = {
        "param_id": pa.string(),
        "group": pa.int32(),
        "target": pa.string(),
        "name": pa.string(),
        "loss": pa.float64(),
    }
    wide = wide_losses(pa.Table.from_pylist(losses, pa.schema(list(fields.items()))), LABELS, WEIGHTS)
    groups = wide["group"].to_pylist()
    table = wide.append_column("x", pa.array([rows[g][2] for g in groups], pa.float64()))
    table = table.append_column("kind", pa.array([rows[g][3] for g in groups], pa.string()))
    table = table.append_column("same", pa.array([1] * len(groups), pa.int64()))
    return ScoredSets(table, tuple(LABELS), ("x", "kind", "same"), weights=WEIGHTS)


def with_total(rows: list[tuple[Any, ...]], label: str) -> ScoredSets:
    """Make sets whose total is a loss, or the weighted sum."""
    return scored(rows) if label == "loss" else scored(rows).only(label)


@given(ROWS)
def test_a_set_has_a_row_if_it_has_a_loss_and_a_sum_if_it_has_all(rows: list[tuple[Any, ...]]) -> None:
    table = scored(rows).table.to_pylist()
    assert [row["group"] for row in table] == [i for i, row in enumerate(rows) if row[:2] != (None, None)]
    for row in table:
        fit, low = rows[row["group"]][:2]
        assert (row["fit"], row["both.low"]) == (fit, low)
        assert row["loss"] == (None if fit is None or low is None else 2 * fit + low)


@given(ROWS)
def test_without_weights_several_losses_have_no_sum_and_each_ranks_the_sets(rows: list[tuple[Any, ...]]) -> None:
    """Regression: losses of different units were added without a word."""
    sets = replace(scored(rows), weights=None)
    assert not sets.has_total
    assert [one.title("loss") for one in sets.criteria()] == list(LABELS)
    for label, one in zip(LABELS, sets.criteria(), strict=True):
        assert one.has_total
        known = [(row[label], row["group"]) for row in sets.table.to_pylist() if row[label] is not None]
        assert one.ranked["group"].to_pylist() == [group for _, group in sorted(known)]
    assert scored(rows).criteria()[0].title("loss") == "weighted sum of losses"
    assert sets.n_complete == len(scored(rows).ranked)


@given(ROWS, st.sampled_from(["loss", "fit", "both.low"]), st.integers(0, 5), st.integers(0, 5))
def test_shown_sets_are_the_best_ones_and_others_evenly_over_their_ranks(
    rows: list[tuple[Any, ...]], label: str, best: int, others: int
) -> None:
    sets = with_total(rows, label)
    ranked = sorted((row[label], row["group"]) for row in sets.table.to_pylist() if row[label] is not None)
    found = shown_sets(sets, best, others)
    shown, ranks = found.table.to_pylist(), found.ranks.tolist()
    assert [(row[label], row["group"]) for row in shown] == [ranked[rank - 1] for rank in ranks]
    n_best = 0 if sets.is_constant() else min(best, len(ranked))
    assert ranks[: found.n_best] == list(range(1, n_best + 1))
    assert len(set(ranks)) == len(shown) == min(best + others, len(ranked))
    assert found.n_sets == len(ranked)
    if 0 < others < len(ranked) - best and others > 1:
        assert ranks[-1] == len(ranked)


def test_a_parameter_may_be_called_rank() -> None:
    columns = {"group": pa.array([0, 1], pa.int32()), "loss": [2.0, 1.0], "rank": [7.0, 8.0], "is_best": [0, 1]}
    found = shown_sets(ScoredSets(pa.table(columns), ("fit",), ("rank", "is_best")), 2, 0)
    assert found.table["rank"].to_pylist() == [8.0, 7.0]
    assert found.table_with_ranks.column_names == ["set.rank", "group", "loss", "rank", "is_best"]
    assert found.table_with_ranks["set.rank"].to_pylist() == [1, 2]


@given(ROWS, st.sampled_from(["loss", "fit"]))
def test_a_distribution_counts_each_set_once(rows: list[tuple[Any, ...]], label: str) -> None:
    sets = scored(rows)
    values = [row[label] for row in sets.table.to_pylist() if row[label] is not None]
    found = distribution(sets, label)
    assert sum(found.table["n"].to_pylist()) == found.n == len(values)
    assert found.n + found.n_missing == len(sets.table)
    if values:
        assert found.quantiles == pytest.approx(np.percentile(values, [0, 50, 100]).tolist())
    else:
        assert found.quantiles is None


@given(ROWS, st.sampled_from(["x", "kind", "same"]), st.sampled_from(["loss", "fit"]))
def test_a_profile_has_the_best_and_the_median_loss_of_each_bin(
    rows: list[tuple[Any, ...]], parameter: str, label: str
) -> None:
    sets = with_total(rows, label)
    found = profile(sets, parameter)
    counted = 0
    with_loss = [row for row in sets.table.to_pylist() if row[label] is not None]
    for i, row in enumerate(found.table.to_pylist()):
        inside = [r for r in with_loss if is_inside(found.bins, i, r[parameter])]
        counted += len(inside)
        assert row["n"] == len(inside)
        if inside:
            assert (row["best"], row["group"]) == min((r[label], r["group"]) for r in inside)
            assert row["median"] == pytest.approx(median(r[label] for r in inside))
        else:
            assert (row["best"], row["median"], row["group"]) == (None, None, None)
    assert counted == found.n == len(with_loss) - found.n_missing


def is_inside(bins: Any, i: int, value: Any) -> bool:
    if value is None:
        return False
    if bins.kind == "values":
        if isinstance(value, float):  # numbers that differ by rounding have the same bin
            return math.isclose(bins.values[i], value, rel_tol=ROUNDING)
        return bool(bins.values[i] == value)
    last = i == len(bins) - 1
    return bool(bins.edges[i] <= value < bins.edges[i + 1] or (last and value == bins.edges[-1]))


@given(ROWS)
def test_pairs_have_the_best_loss_of_each_cell(rows: list[tuple[Any, ...]]) -> None:
    sets = with_total(rows, "fit")
    found = pairs(sets, ["x", "kind", "same"])
    with_loss = [row for row in sets.table.to_pylist() if row["fit"] is not None]
    expected: dict[tuple[str, str, int, int], list[tuple[float, int]]] = {}
    for row in with_loss:
        at = {name: [i for i in range(len(bins)) if is_inside(bins, i, row[name])] for name, bins in found.bins.items()}
        for x, y in combinations(found.bins, 2):
            for i in at[x]:
                for j in at[y]:
                    expected.setdefault((x, y, i, j), []).append((row["fit"], row["group"]))
    every = [cell for table in found.cells.values() for cell in table.to_pylist()]
    cells = {(c["x"], c["y"], c["x_bin"], c["y_bin"]): c for c in every}
    assert cells.keys() == expected.keys()
    for key, inside in expected.items():
        assert (cells[key]["n"], cells[key]["best"], cells[key]["group"]) == (len(inside), *min(inside))


def test_parameters_that_tell_most_are_chosen_and_constant_ones_never() -> None:
    n = 40
    noise = np.random.default_rng(1).random(n)
    columns = {
        "group": pa.array(range(n), pa.int32()),
        "loss": [float(i) for i in range(n)],
        "weak": noise + np.arange(n) / n,
        "same": [3] * n,
        "kind": ["a", "b"] * (n // 2),
        "strong": [-i for i in range(n)],
    }
    sets = ScoredSets(pa.table(columns), ("fit",), ("weak", "same", "kind", "strong"))
    assert telling_parameters(sets) == ("weak", "kind", "strong")
    assert telling_parameters(sets, most=2) == ("weak", "strong")
    assert telling_parameters(sets, most=1) == ("strong",)
    lines = parallel(sets, best=5, others=5)
    assert [axis.name for axis in lines.axes] == ["weak", "kind", "strong", "loss"]
    assert lines.left_out == ("same",)
    assert lines.sets.ranks.tolist()[:6] == [1, 2, 3, 4, 5, 6]
    assert lines.sets.caption.startswith("The 5 sets with the least loss 'fit', and 5 of the other 35")


def test_parameters_with_a_hump_and_texts_come_before_a_weak_slope() -> None:
    rng = np.random.default_rng(5)
    n = 400
    hump, text, weak, noise = rng.random(n), rng.choice(["a", "b", "c"], n), rng.random(n), rng.random(n)
    losses = 20 * (hump - 0.5) ** 2 + (text == "b") * 3 + 2 * weak + 0.1 * rng.random(n)
    columns = {"group": pa.array(range(n), pa.int32()), "loss": losses, "noise": noise, "weak": weak}
    columns |= {"hump": hump, "text": text}
    sets = ScoredSets(pa.table(columns), ("fit",), ("noise", "weak", "hump", "text"))
    assert abs(stats.spearmanr(hump, losses)[0]) < abs(stats.spearmanr(weak, losses)[0])
    assert telling_parameters(sets, most=2) == ("hump", "text")
    assert telling_parameters(sets, most=3) == ("weak", "hump", "text")


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 9)), max_size=60))
def test_the_explained_share_is_that_of_scipys_kruskal_wallis_test_and_of_pandas(rows: list[tuple[int, int]]) -> None:
    index, values = np.array([i for i, _ in rows], np.int64), np.array([v for _, v in rows], np.float64)
    frame = pd.DataFrame({"bin": index, "value": values})[index >= 0]
    n, k = len(frame), frame["bin"].nunique()
    found = explained_share(index, values)
    if n - k < 1 or frame["value"].nunique() < 2:
        assert found == 0
        return
    frame["rank"] = frame["value"].rank()
    within = frame["rank"] - frame.groupby("bin")["rank"].transform("mean")
    unexplained = (within**2).sum() / (n - k) / frame["rank"].var(ddof=1)
    assert found == pytest.approx(1 - unexplained, abs=1e-12)
    if k > 1:
        h = stats.kruskal(*(some["value"] for _, some in frame.groupby("bin"))).statistic
        assert found == pytest.approx(1 - (1 - h / (n - 1)) * (n - 1) / (n - k), abs=1e-9)


def test_more_bins_do_not_raise_the_explained_share_of_noise() -> None:
    rng = np.random.default_rng(3)
    shares = [explained_share(rng.integers(0, 20, 60), rng.random(60)) for _ in range(2_000)]
    assert abs(np.mean(shares)) < 0.01


PAIRS = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), max_size=30)


@given(PAIRS)
def test_rank_correlations_are_those_of_scipy(rows: list[tuple[int, int]]) -> None:
    x, y = np.array([a for a, _ in rows], float), np.array([b for _, b in rows], float)
    rho, n = spearman(x, y)
    assert n == len(rows)
    if len(rows) < 2 or len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(rho)
    else:
        assert rho == pytest.approx(stats.spearmanr(x, y).statistic)


def test_results_that_do_not_vary_are_named() -> None:
    """They had no figure, and no note said so."""
    found = sensitivity(pa.table({"x": [1, 2, 3, 4], "y": [1, 2, 3, 5], "same": [1] * 4}), ["x"], ["y", "same"])
    assert found.known().table["measure"].to_pylist() == ["y"]
    assert found.notes == ["No correlation, because the values do not vary: same."]
    assert found.known().notes == []


def test_a_rank_correlation_leaves_out_what_is_missing_in_one_of_the_two() -> None:
    sets = pa.table(
        {
            "x": [1.0, 2.0, None, 4.0, 5.0, math.inf],
            "on": [True, False, True, None, False, True],
            "name": ["a", "b", "c", "d", "e", "f"],
            "loss": [1.0, math.nan, 3.0, 4.0, 2.0, 9.0],
        }
    )
    found = sensitivity(sets, ["x", "on", "name"], ["loss"])
    assert found.left_out == ("name",)
    rows = found.table.to_pylist()
    assert [(row["parameter"], row["n"]) for row in rows] == [("x", 3), ("on", 4)]
    assert rows[0]["rho"] == pytest.approx(stats.spearmanr([1, 4, 5], [1, 4, 2]).statistic)
    assert rows[1]["rho"] == pytest.approx(stats.spearmanr([1, 1, 0, 1], [1, 3, 2, 9]).statistic)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 1), st.sampled_from("ab")), max_size=50))
def test_failed_sets_are_counted_in_each_bin_of_the_sets_that_have_run(
    rows: list[tuple[bool, bool, float, str]],
) -> None:
    parameters = pa.table({"x": pa.array([r[2] for r in rows], pa.float64()), "k": pa.array([r[3] for r in rows])})
    if not rows:
        parameters = pa.table({"x": pa.array([], pa.float64()), "k": pa.array([], pa.string())})
    has_run = np.array([r[0] for r in rows], bool)
    groups = np.array([i for i, r in enumerate(rows) if r[0] and r[1]], np.int64)
    odd = np.array([g for g in groups if g % 2], np.int64)
    found = failure_bins([("any", groups), ("odd", odd)], parameters, has_run)
    assert (found.n_failed, found.n_sets) == (len(groups), int(has_run.sum()))
    for row in found.table.to_pylist():
        bins = found.bins[row["parameter"]]
        column = 2 if row["parameter"] == "x" else 3
        inside = [i for i, r in enumerate(rows) if r[0] and is_inside(bins, row["bin"], r[column])]
        members = {0: groups, 1: groups, 2: odd}[row["cause"]].tolist()
        failed = [i for i in inside if i in members]
        assert (row["failed"], row["sets"]) == (len(failed), len(inside))
        assert row["share"] == (len(failed) / len(inside) if inside else None)


def test_any_failure_has_the_sets_of_all_causes() -> None:
    n = 200
    x, y = np.random.default_rng(5).random((2, n))
    causes = [(f"cause {i}", np.arange(10 * i, 10 * i + 10)) for i in range(12)]
    parameters, has_run = pa.table({"x": x, "y": y}), np.ones(n, bool)
    found = failure_bins(causes, parameters, has_run)
    assert (found.n_failed, len(found.causes)) == (120, 12)
    assert set(found.table["cause"].to_pylist()) == set(range(9))
    bars = [row["failed"] for row in found.table.to_pylist() if (row["cause"], row["parameter"]) == (0, "x")]
    assert sum(bars) == 120


def test_a_set_that_has_run_without_any_loss_lacks_each_loss() -> None:
    """7 sets lacked a loss by the caption, where 61 of 256 did: 54 had none at all."""
    fit = np.array([*range(195), *[np.nan] * 7], float)
    columns = {"group": range(202), "loss": pa.array(fit, from_pandas=True), "fit": pa.array(fit, from_pandas=True)}
    sets = ScoredSets(pa.table(columns | {"low": [1.0] * 202}), ("fit", "low"), (), 256, {"fit": 1.0, "low": 1.0})
    assert [(of.n, of.n_missing) for of in (distribution(sets), distribution(sets, "low"))] == [(195, 61), (202, 54)]


def test_a_parameter_with_one_value_has_no_failure_bins() -> None:
    found = failure_bins([], pa.table({"x": [1, 1, 2]}), np.array([True, True, False]))
    assert (found.bins, len(found.table), found.n_sets) == ({}, 0, 2)
