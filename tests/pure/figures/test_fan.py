"""Fan charts and last values, against numpy over the rows of each x."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import UsageError
from mops.figures.fan import (
    BAND_COLUMNS,
    QUANTILES,
    X_BINS,
    Fan,
    fans,
    have_decades,
    last_values,
    needs_decades,
    sample_of_sets,
)
from mops.figures.row_keys import FigureRows

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf]))
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3), VALUES),
    max_size=60,
    unique_by=lambda row: row[:3],
)
KINDS = {0: "a", 1: "b", 2: "a", 3: None, 4: "b"}


def batches(rows: list[tuple[Any, ...]], x: pa.DataType = pa.int64()) -> list[pa.RecordBatch]:  # noqa: B008
    kinds = (pa.int32(), pa.int32(), x, pa.float64())
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, ["group", "replicate", "day", "y"])
    return [whole.slice(0, 7), whole.slice(7)]


def fan_of(rows: list[tuple[Any, ...]], divisions: dict[int, str | None] | None = None) -> Fan:
    by = None if divisions is None else "kind"
    texts = None if divisions is None else divisions_of(rows, divisions)
    (found,) = fans(FigureRows(pa.Table.from_batches(batches(rows)), "daily", ["y"], 5, 5, by, texts), "day")
    return found


def divisions_of(rows: list[tuple[Any, ...]], divisions: dict[int, str | None]) -> pa.ChunkedArray:
    return pa.chunked_array([[divisions.get(row[0]) for row in rows]], pa.string())


@given(ROWS, st.booleans())
def test_the_bands_are_numpys_linear_quantiles_at_each_x(rows: list[tuple[Any, ...]], is_divided: bool) -> None:
    found = fan_of(rows, KINDS if is_divided else None)
    expected: dict[tuple[str | None, float], list[float]] = {}
    for group, _, day, y in rows:
        if y is not None and math.isfinite(y):
            expected.setdefault((KINDS[group] if is_divided else None, day), []).append(y)
    points = found.table.to_pylist()
    assert {(point["division"], point["x"]) for point in points} == expected.keys()
    assert len(points) == len(expected)
    for point in points:
        values = expected[point["division"], point["x"]]
        assert point["n"] == len(values)
        for name, q in zip(BAND_COLUMNS, QUANTILES, strict=True):
            assert point[name] == pytest.approx(np.quantile(values, q, method="linear"), rel=1e-9, abs=1e-9)
    assert found.n_simulations == len({row[:2] for row in rows})
    assert found.n_left_out == len(rows) - sum(map(len, expected.values()))


def test_dates_stay_dates() -> None:
    day = datetime.date(2024, 2, 29)
    rows = [(0, 0, day, 1.0), (0, 1, day, 3.0), (0, 0, None, 9.0)]
    (found,) = fans(FigureRows(pa.Table.from_batches(batches(rows, pa.date32())), "daily", ["y"], 1, 1), "day")
    (point,) = found.table.to_pylist()
    assert (point["x"], point["n"], point["median"]) == (day, 2, 2.0)


def test_an_x_with_many_values_is_put_into_bins() -> None:
    rows = [(0, 0, i, float(i)) for i in range(1_000)]
    found = fan_of(rows)
    assert found.is_binned
    assert len(found.table) == X_BINS
    assert found.table["n"].to_pylist() == [1] * X_BINS, "a simulation counts once, with its mean in the bin"
    edges = np.linspace(0, 999, X_BINS + 1)
    assert found.table["x"].to_numpy() == pytest.approx((edges[1:] + edges[:-1]) / 2)
    assert found.table["median"].to_pylist()[:2] == [2.0, 7.0]
    assert "in 200 bins" in found.caption


@given(st.integers(0, 500), st.integers(0, 10**7), st.integers(1, 100), st.integers(1, 10**4))
def test_a_sample_of_sets_is_bounded_and_always_the_same(n: int, rows: int, most: int, values: int) -> None:
    groups = np.arange(n) * 3
    found = sample_of_sets(groups, rows, most, values)
    assert found.tolist() == sorted(set(found.tolist()))
    assert set(found.tolist()) <= set(groups.tolist())
    assert min(n, 1) <= len(found) <= most
    assert n == 0 or len(found) == 1 or rows * len(found) / n <= values
    assert found.tolist() == sample_of_sets(groups, rows, most, values).tolist()


def test_the_caption_says_whether_sets_are_a_sample() -> None:
    many = [(group, replicate, 0, 1.0) for group in range(2) for replicate in range(5)]
    whole = fan_of([*many, (1, 5, 0, math.nan)])
    assert whole.caption == (
        "Median (line) and the middle 50 % and 90 % (bands) of 11 simulations of 2 of 5 parameter sets "
        "(3 have no rows here), each with the same weight. 1 value left out, not finite."
    )
    (partial,) = fans(FigureRows(pa.Table.from_batches(batches([(0, 0, 0, 1.0)])), "daily", ["y"], 9, 9), "day")
    assert partial.caption == (
        "Median (line) and the middle 50 % and 90 % (bands) of 1 simulation of 1 of 9 parameter sets "
        "(8 have no rows here), each with the same weight."
    )
    (sampled,) = fans(FigureRows(pa.Table.from_batches(batches([(0, 0, 0, 1.0)])), "daily", ["y"], 9, 1), "day")
    assert "of 1 simulation of 1 parameter set, a random sample of 9, each" in sampled.caption
    (lacking,) = fans(FigureRows(pa.Table.from_batches(batches([(0, 0, 0, 1.0)])), "daily", ["y"], 9, 4), "day")
    assert "of 1 of 4 parameter sets (3 have no rows here), a random sample of 9, each" in lacking.caption


def test_the_caption_of_a_division_counts_only_what_it_has() -> None:
    """Each of three figures said the simulations of all three."""
    rows = [(group, replicate, 0, 1.0) for group in range(4) for replicate in range(10)]
    source = pa.Table.from_batches(batches([*rows, (3, 10, 0, math.nan)]))
    divisions: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: None}
    texts = divisions_of([*rows, (3, 10)], divisions)
    (found,) = fans(FigureRows(source, "daily", ["y"], 4, 4, "kind", texts), "day")
    captions = [part.caption for part in found.divided()]
    assert "of 20 simulations of 2 parameter sets, each" in captions[0]
    assert "of 10 simulations of 1 parameter set, each" in captions[1]
    assert "of 11 simulations of 1 parameter set, each with the same weight. 1 value left" in captions[2]
    assert "of 41 simulations of 4 parameter sets" in found.caption


def test_a_divided_fan_has_a_part_for_each_division() -> None:
    found = fan_of([(group, 0, day, 1.0) for group in range(4) for day in range(2)], KINDS)
    parts = [part.table["division"].unique().to_pylist() for part in found.divided()]
    assert sorted(parts, key=str) == [["a"], ["b"], [None]]


WEIGHTED = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 1), st.integers(-9, 9)),
    min_size=1,
    max_size=40,
    unique_by=lambda row: row[:3],
)


@given(WEIGHTED)
def test_weights_count_a_set_by_its_weight_and_not_by_its_number_of_values(rows: list[tuple[int, ...]]) -> None:
    """The quantile is the least value up to which the weights sum to the share, computed here in fractions."""
    weights = {0: 3, 1: 1, 2: 7, 3: 2, 4: 5}
    table = pa.Table.from_batches(batches([(*row[:3], float(row[3])) for row in rows]))
    (found,) = fans(FigureRows(table, "daily", ["y"], 5, 5), "day", weights)
    for point in found.table.to_pylist():
        here = [(group, y) for group, _, day, y in rows if day == point["x"]]
        n_of = Counter(group for group, _ in here)
        shares = sorted((y, Fraction(weights[group], n_of[group])) for group, y in here)
        total = sum(share for _, share in shares)
        for name, q in zip(BAND_COLUMNS, QUANTILES, strict=True):
            near = [Fraction(q) * total + Fraction(sign, 10**12) for sign in (-1, 1)]  # the sums of floats are rounded
            ends = list(accumulate(share for _, share in shares))
            expected = {next((y for (y, _), end in zip(shares, ends, strict=True) if end >= at), None) for at in near}
            assert point[name] in expected


def test_a_fan_has_a_logarithmic_axis_if_a_linear_one_hides_half_of_a_median_line() -> None:
    def decades(values: dict[str, list[float]]) -> bool:
        """Tell it for a simulation with these values in each division."""
        rows = [(i, 0, x, y) for i, ys in enumerate(values.values()) for x, y in enumerate(ys)]
        return needs_decades(fan_of(rows, dict(enumerate(values))).table)

    growth = [2.0**i for i in range(16)]
    assert np.median(growth) < 0.01 * max(growth)
    assert decades({"a": growth})
    assert decades({"a": [0.0, *growth]})
    assert not decades({"a": [-1.0, *growth]})
    assert not decades({"a": [2.0**i for i in range(12)]})
    assert decades({"a": [1000.0, 900.0], "b": [3.0, 4.0]})
    assert not decades({"a": [1000.0, 900.0], "b": [13.0, 14.0]})
    assert not decades({"a": [0.0, 0.0]})
    assert not decades({})


def test_the_columns_of_an_output_have_the_same_kind_of_axis() -> None:
    """Three panels of one output had a linear, a logarithmic and a symlog axis."""

    def of(*columns: list[float]) -> list[Fan]:
        return [fan_of([(0, 0, x, y) for x, y in enumerate(ys)]) for ys in columns]

    growth, share = [2.0**i for i in range(16)], [i / 16 for i in range(16)]
    assert have_decades(of(growth, [0.0, *growth]))
    assert not have_decades(of(growth, share))
    assert have_decades(of(growth, [0.0] * 16)), "a column of zeros has no say"
    assert not have_decades(of([0.0] * 16))
    assert not have_decades([])


@given(ROWS)
def test_the_last_value_of_a_set_is_the_mean_of_its_replicates_at_their_greatest_x(rows: list[tuple[Any, ...]]) -> None:
    found = {
        row["group"]: row["y"]
        for row in last_values(pa.Table.from_batches(batches(rows)), "daily", "day", ["y"]).to_pylist()
    }
    last: dict[tuple[int, int], tuple[int, float | None]] = {}
    for group, replicate, day, y in rows:
        if (group, replicate) not in last or day >= last[group, replicate][0]:
            last[group, replicate] = day, y
    assert found.keys() == {group for group, _ in last}
    for group, mean in found.items():
        finite = [y for (g, _), (_, y) in last.items() if g == group and y is not None and math.isfinite(y)]
        assert mean == (pytest.approx(np.mean(finite)) if finite else None)


def test_without_x_each_simulation_has_one_row() -> None:
    """The last row of several was the result of a simulation."""
    rows = [(0, 0, 5, 1.0), (0, 1, 0, 4.0)]
    table = pa.Table.from_batches(batches(rows))
    assert last_values(table, "daily", None, ["y"]).to_pylist() == [{"group": 0, "y": 2.5}]
    for x in (None, "day"):
        with pytest.raises(UsageError, match="simulations have several rows of 'daily'"):
            last_values(pa.Table.from_batches(batches([*rows, (0, 0, 5, 9.0)])), "daily", x, ["y"])


def test_a_fan_never_pools_rows_of_a_simulation() -> None:
    """Case 32: the rows of three regions were counted as three simulations."""
    rows = pa.Table.from_batches(batches([(0, 0, 0, 1.0), (0, 0, 0, 3.0)]))
    source = FigureRows(rows, "daily", ["y"], 1, 1)
    with pytest.raises(UsageError, match="simulations have several rows of 'daily' for one 'day', and no column"):
        fans(source, "day")
    regions = pa.chunked_array([["north", "south"]])
    (found,) = fans(replace(source, by="region", divisions=regions), "day")
    assert found.table.select(["division", "n", "median"]).to_pylist() == [
        {"division": "north", "n": 1, "median": 1.0},
        {"division": "south", "n": 1, "median": 3.0},
    ]
    assert found.n_simulations == 1
    with pytest.raises(UsageError, match="several rows of 'daily' for one 'day' and one 'kind'"):
        fans(replace(source, by="kind", divisions=pa.chunked_array([["a", "a"]])), "day")
