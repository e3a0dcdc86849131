"""Bins of a column: every finite value is in exactly one, and they are numpy's."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.figures.bins import MOST_NUMBERS, OTHER_VALUES, ROUNDING, best_in, bins_of, cells, is_log
from mops.figures.losses import ScoredSets, distribution
from mops.figures.profiles import profile

FLOATS = st.one_of(st.none(), st.floats(), st.floats(0.001, 1000))


@given(st.lists(FLOATS, max_size=60), st.integers(2, 20))
def test_each_finite_number_is_in_one_bin_and_the_edges_tell_which(values: list[float | None], most: int) -> None:
    bins = bins_of("x", pa.array(values, pa.float64()), most)
    index = bins.index(pa.array(values, pa.float64()))
    assert len(bins) <= max(most, MOST_NUMBERS)
    for value, at in zip(values, index.tolist(), strict=True):
        if value is None or not np.isfinite(value):
            assert at == -1
        elif bins.kind == "values":
            assert at >= 0
            assert bins.values[at] == pytest.approx(value, rel=1_000 * ROUNDING, abs=0)
        else:
            assert bins.edges[at] <= value <= bins.edges[at + 1]
    assert bins.kind == "values" or (bins.edges[0] == np.nanmin(finite(values)) and len(bins) == most)


def finite(values: list[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None and np.isfinite(value)])


@given(st.lists(st.floats(-1e6, 1e6), min_size=30, max_size=200, unique=True))
def test_the_counts_are_those_of_numpy(values: list[float]) -> None:
    column = pa.array(values, pa.float64())
    bins = bins_of("x", column, 10)
    counts = np.bincount(bins.index(column), minlength=len(bins))
    assert counts.tolist() == np.histogram(values, bins.edges)[0].tolist()


@given(st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=60), st.integers(2, 6))
def test_texts_have_a_bin_each_or_share_the_last_one(values: list[str | None], most: int) -> None:
    bins = bins_of("x", pa.array(values, pa.string()), most)
    assert len(bins) <= most
    for value, at in zip(values, bins.index(pa.array(values, pa.string())).tolist(), strict=True):
        assert at == -1 if value is None else bins.values[at] in (value, OTHER_VALUES)


def test_texts_with_the_greatest_weights_have_a_bin() -> None:
    column, weights = pa.array(["a", "a", "b", "c", None]), np.array([0.1, 0.1, 0.2, 0.5, 0.9])
    assert bins_of("x", column, 2, weights).values == ("c", OTHER_VALUES)
    assert bins_of("x", column, 2).values == ("a", OTHER_VALUES)
    assert bins_of("x", column, 3, weights).values == ("a", "b", "c")


def test_few_numbers_and_booleans_have_a_bin_each() -> None:
    assert bins_of("x", pa.array([3, 1, None, 3, 2])).values == (1.0, 2.0, 3.0)
    assert bins_of("x", pa.array([3, 1])).index(pa.chunked_array([[1, 3], [2, None]])).tolist() == [0, 1, -1, -1]
    both = bins_of("x", pa.array([True, False, None]))
    assert both.values == (False, True)
    assert both.index(pa.array([True, None, False])).tolist() == [1, -1, 0]
    assert both.middles.tolist() == [0.0, 1.0]


def test_numbers_that_differ_by_rounding_are_one() -> None:
    """Two equal losses had a bin each, too narrow to be seen, and an axis from 0.03249999999999999."""
    column = pa.array([0.1 + 0.2, 0.3, 1e-300, 2e-300, None, float("nan"), 0.30000001])
    bins = bins_of("x", column)
    assert bins.values == (1e-300, 2e-300, 0.3, 0.30000001)
    assert bins.index(column).tolist() == [2, 2, 0, 1, -1, -1, 3]
    many = pa.array([value + noise for value in range(1, 40) for noise in (0.0, 1e-14)])
    assert (bins_of("x", many).index(many) >= 0).all()


def test_both_zeros_are_in_one_bin(subtests: pytest.Subtests) -> None:
    """Arrow tells them apart, and numpy keeps either."""
    for values in [[0.0, -0.0, 1.0], [-0.0, 0.0, 1.0], [-0.0, 1.0]]:
        with subtests.test(values=values):
            column = pa.array(values)
            bins = bins_of("x", column)
            assert bins.labels() == ["0", "1"]
            assert bins.index(column).tolist() == [int(value) for value in values]


def test_figures_of_both_zeros_have_all_sets() -> None:
    table = pa.table(
        {
            "param_id": ["a", "b", "c"],
            "group": pa.array([0, 1, 2], pa.int32()),
            "loss": [0.0, -0.0, 1.0],
            "fit": [0.0, -0.0, 1.0],
            "x": [-0.0, 0.0, 2.0],
        }
    )
    scored = ScoredSets(table, ("fit",), ("x",))
    assert distribution(scored).table["n"].to_pylist() == [2, 1]
    found = profile(scored, "x")
    assert (found.n, found.n_missing, found.table["n"].to_pylist()) == (3, 0, [2, 1])


def test_a_column_without_values_has_no_bins(subtests: pytest.Subtests) -> None:
    for kind in [pa.float64(), pa.string(), pa.bool_(), pa.int64()]:
        with subtests.test(kind=kind):
            bins = bins_of("x", pa.nulls(3, kind))
            assert len(bins) == 0
            assert bins.index(pa.nulls(3, kind)).tolist() == [-1, -1, -1]
            assert bins.table().num_rows == 0


def test_numbers_that_are_even_in_their_logarithm_have_bins_of_equal_ratio() -> None:
    assert is_log(np.geomspace(0.001, 10, 50))
    assert not is_log(np.linspace(0.001, 10, 50))
    assert not is_log(np.linspace(1, 50, 50))
    even = np.exp(np.random.default_rng(2).uniform(np.log(0.1015), np.log(9.931), 256))
    assert is_log(even), "97.9-fold, once below a limit of 100"
    assert not is_log(np.random.default_rng(2).uniform(0.1015, 9.931, 256))
    bins = bins_of("x", pa.array(np.geomspace(0.001, 10, 50)), 4)
    assert bins.kind == "log"
    assert bins.edges == pytest.approx([0.001, 0.01, 0.1, 1, 10])
    assert bins.middles == pytest.approx([10**power for power in (-2.5, -1.5, -0.5, 0.5)])


@given(st.sets(st.integers(-500, 500), min_size=13, max_size=80), st.integers(2, 20))
def test_bins_of_integers_have_equally_many_integers(values: set[int], most: int) -> None:
    """Bins of a width of 2.4 have two or three integers, which a histogram showed as a comb."""
    column = pa.array(sorted(values), pa.int64())
    bins = bins_of("x", column, most)
    assert len(bins) <= max(most, MOST_NUMBERS)
    if bins.kind == "values":
        return
    assert (bins.edges % 1 == 0.5).all()
    widths = np.diff(bins.edges)
    assert (widths > 0).all()
    assert bins.ends == (min(values), max(values))
    assert bins.edges[0] + 0.5 == min(values)
    if bins.kind == "linear":
        assert set(widths) == {widths[0]}
        assert bins.edges[-2] < max(values) < bins.edges[-1]
    else:
        assert is_log(np.array(sorted(values), float))
        assert bins.edges[-1] - 0.5 == max(values)
    counts = np.bincount(bins.index(column), minlength=len(bins)).tolist()
    assert counts == [sum(a < value < b for value in values) for a, b in pairwise(bins.edges)]
    ends = [[int(end) for end in re.findall(r"-?\d+", label)] for label in bins.labels()]
    assert [(one[0] - 0.5, one[-1] + 0.5) for one in ends] == list(pairwise(bins.edges))


def test_the_last_bin_of_integers_is_as_wide_as_the_others() -> None:
    """Of 0 to 20, the last bin was narrower than the others."""
    bins = bins_of("x", pa.array(range(21), pa.int64()), 12)
    assert bins.edges.tolist() == [2 * i - 0.5 for i in range(12)]
    assert bins.labels()[-1] == "20 to 21"
    assert bins.ends == (0, 20)


def test_integers_that_a_float_does_not_hold_have_bins_too() -> None:
    values = [2**60 + i * 2**40 for i in range(30)]
    bins = bins_of("x", pa.array(values, pa.int64()), 10)
    assert not bins.is_integer
    assert (bins.index(pa.array(values, pa.int64())) >= 0).all()


def test_the_labels_of_large_integers_tell_them_apart() -> None:
    assert bins_of("x", pa.array([1_000_001, 1_000_002])).labels() == ["1000001", "1000002"]


def test_the_ends_of_floats_do_not_overflow() -> None:
    values = [-1.7e308, *range(20), 1.7e308]
    assert bins_of("x", pa.array(values, pa.float64()), 4).edges == pytest.approx(
        [-1.7e308, -8.5e307, 0, 8.5e307, 1.7e308]
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40))
def test_the_best_of_each_cell_is_its_least_loss_and_of_equal_ones_the_first(rows: list[tuple[int, int]]) -> None:
    cell, losses = np.array([c for c, _ in rows], int), np.array([loss for _, loss in rows], float)
    n, least, at = best_in(cell, 6, losses)
    for i in range(6):
        inside = [(loss, row) for row, (c, loss) in enumerate(rows) if c == i]
        assert n[i] == len(inside)
        assert (least[i], at[i]) == min(inside) if inside else (np.isnan(least[i]) and at[i] == -1)


def test_a_cell_needs_a_bin_on_both_axes() -> None:
    rows, cell = cells(np.array([0, 1, -1, 2]), np.array([1, 0, 1, -1]), 3, 2)
    assert (rows.tolist(), cell.tolist()) == ([0, 1], [3, 1])
