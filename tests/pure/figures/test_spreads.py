"""Histograms of results, against counts of the values themselves."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import UsageError
from mops.figures.row_keys import FigureRows
from mops.figures.spreads import LEAST_VALUES, Spread, spreads

VALUES = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(0, 5).map(float), st.sampled_from([math.nan, math.inf]))
KINDS = {0: "a", 1: "b", 2: "a", 3: None}


def source(values: list[Any], kinds: dict[int, str | None] | None = None, kind: pa.DataType | None = None) -> Any:
    """Return values of simulations: value i is replicate i // 4 of group i % 4."""
    n = len(values)
    columns = {
        "group": pa.array([i % 4 for i in range(n)], pa.int32()),
        "replicate": pa.array([i // 4 for i in range(n)], pa.int32()),
        "y": pa.chunked_array([pa.array(values, kind or pa.float64())]),
    }
    of = None if kinds is None else pa.chunked_array([[kinds[i % 4] for i in range(n)]], pa.string())
    return FigureRows(pa.table(columns), "output", ["y"], 4, 4, None if kinds is None else "kind", of)


def one(values: list[Any], kinds: dict[int, str | None] | None = None) -> Spread:
    (found,) = spreads(source(values, kinds))
    return found


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


@given(st.lists(VALUES, max_size=120), st.booleans())
def test_each_finite_value_counts_once_in_the_strip_of_its_set(values: list[float | None], is_divided: bool) -> None:
    found = spreads(source(values, KINDS if is_divided else None))
    finite = [(KINDS[i % 4], value) for i, value in enumerate(values) if is_finite(value)]
    if len(finite) < LEAST_VALUES:
        assert found == []
        return
    (spread,) = found
    assert spread.n_left_out == len(values) - len(finite)
    assert spread.n_sets_shown == len({i % 4 for i, value in enumerate(values) if is_finite(value)})
    of_kind = Counter(kind for kind, _ in finite)
    large = {kind for kind, n in of_kind.items() if n >= LEAST_VALUES}
    parts = large if is_divided and len(large) > 1 else {None}
    assert spread.by == ("kind" if parts == large and is_divided and len(large) > 1 else None)
    assert {strip.division for strip in spread.strips} == parts
    for strip in spread.strips:
        expected = [value for kind, value in finite if spread.by is None or kind == strip.division]
        assert (strip.n, strip.least, strip.greatest) == (len(expected), min(expected), max(expected))
        assert strip.median == pytest.approx(median(expected), abs=1e-9)
        rows = [row for row in spread.table.to_pylist() if row["division"] == strip.division]
        assert len(rows) == len(spread.bins)
        assert sum(row["n"] for row in rows) == len(expected)
        assert sum(row["share"] for row in rows) == pytest.approx(1)
    if spread.by:
        assert spread.few == {kind: n for kind, n in of_kind.items() if n < LEAST_VALUES}


def test_the_counts_are_those_between_the_edges() -> None:
    values = np.random.default_rng(1).normal(size=200).tolist()
    rows = one(values).table.to_pylist()
    expected = [sum(row["low"] <= value < row["high"] for value in values) for row in rows]
    expected[-1] += 1  # the greatest value
    assert [row["n"] for row in rows] == expected


def test_fewer_than_five_values_have_no_figure(subtests: pytest.Subtests) -> None:
    for n, has_figure in [(0, False), (4, False), (5, True)]:
        with subtests.test(n=n, has_figure=has_figure):
            assert bool(spreads(source([*map(float, range(n)), math.nan, None]))) == has_figure


def test_a_text_has_no_figure() -> None:
    assert spreads(source(["a"] * 20, kind=pa.string())) == []


def test_equal_values_are_constant() -> None:
    assert one([0.1 + 0.2, 0.3] * 5).is_constant, "up to rounding"
    assert not one([0.1, 0.3] * 5).is_constant


def test_bins_have_equal_ratios_by_the_rule_of_all_figures() -> None:
    found = one(np.geomspace(0.01, 100, 60).tolist())
    assert found.bins.kind == "log"
    assert "4 parameter sets, in bins of equal ratio. Each simulation counts once." in found.caption


def test_integers_stay_integers() -> None:
    (found,) = spreads(source(list(range(100)), kind=pa.int64()))
    assert found.bins.is_integer
    assert found.caption.endswith("The least is 0, the median 49.5, the greatest 99.")


def test_the_caption_says_what_counts() -> None:
    values = [*map(float, range(20)), math.inf]
    assert one(values).caption == (
        "'y' of 20 simulations of 4 parameter sets. Each simulation counts once. The least is 0, the median 9.50, the "
        "greatest 19. 1 value left out, not finite."
    )
    of_three = [value if i % 4 < 3 or i < 8 else math.nan for i, value in enumerate(values)]
    assert one(of_three, KINDS).caption == (
        "'y' of 17 simulations of 4 parameter sets, for each value of 'kind'. Each simulation counts once. The bars of "
        "a strip add up to 100 %. A line is a median. Too few values for a strip: without kind (2 values). "
        "4 values left out, not finite."
    )


def test_a_sample_is_called_one() -> None:
    rows = source([1.0, 2.0, 3.0, 4.0] * 5).rows
    (found,) = spreads(FigureRows(rows, "output", ["y"], 90_000, 2_000))
    assert "of 4 of 2,000 parameter sets (1,996 have no rows here), a random sample of 90,000." in found.caption


def test_several_rows_of_a_simulation_are_refused() -> None:
    found = source([1.0, 2.0, 3.0])
    twice = replace(found, rows=pa.concat_tables([found.rows, found.rows.slice(0, 1)]))
    with pytest.raises(UsageError, match="simulations have several rows of 'output'"):
        spreads(twice)
