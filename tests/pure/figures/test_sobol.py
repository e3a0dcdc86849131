"""Sobol indices, against SALib and against the known indices of the function of Ishigami."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from SALib.analyze import sobol as salib
from SALib.sample import latin
from SALib.sample import sobol as sampling

from mops.figures.sobol import LEAST_BLOCKS, SaltelliDesign, saltelli_design, sobol

NAMES = ["x1", "x2", "x3"]
PROBLEM = {"num_vars": 3, "names": NAMES, "bounds": [[-math.pi, math.pi]] * 3}
V1, V2, V13 = (1 + 0.1 * math.pi**4 / 5) ** 2 / 2, 7**2 / 8, 0.1**2 * math.pi**8 * (1 / 18 - 1 / 50)
EXACT = np.array([[V1, V2, 0], [V1 + V13, V2, V13]]) / (V1 + V2 + V13)
"""The first-order and the total indices of the function of Ishigami."""


def sample(n: int = 64, *, second: bool = False, seed: int = 1) -> np.ndarray:
    return sampling.sample(PROBLEM, n, calc_second_order=second, seed=seed)


def ishigami(x: np.ndarray) -> np.ndarray:
    return np.sin(x[:, 0]) + 7 * np.sin(x[:, 1]) ** 2 + 0.1 * x[:, 2] ** 4 * np.sin(x[:, 0])


def table_of(points: np.ndarray, **more: Any) -> pa.Table:
    return pa.table({f"x{i + 1}": column for i, column in enumerate(points.T)} | more)


def measured(y: np.ndarray) -> pa.Table:
    """Return the measure of the sets that have one."""
    groups = np.flatnonzero(~np.isnan(y))
    return pa.table({"group": pa.array(groups, pa.int32()), "y": y[groups]})


def columns_of(design: SaltelliDesign, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices and the ends of their intervals: rows for first-order and total, a column a parameter."""
    found = sobol(design, measured(y), ["y"]).table
    assert found["order"].to_pylist() == ["first"] * 3 + ["total"] * 3
    assert found["parameter"].to_pylist() == NAMES * 2
    index, low, high = (np.array(found[name], float).reshape(2, 3) for name in ("index", "low", "high"))
    return index, low, high


def test_the_design_of_salib_is_found_and_constants_are_left_out(subtests: pytest.Subtests) -> None:
    for second in [False, True]:
        with subtests.test(second=second):
            points = sample(second=second)
            more = {"same": [3] * len(points), "text": ["a"] * len(points), "none": pa.nulls(len(points), pa.int64())}
            assert saltelli_design(table_of(points, **more)) == SaltelliDesign(tuple(NAMES), 64, 8 if second else 5)


def test_two_parameters_with_second_order_are_a_design_after_equal_sets_were_joined() -> None:
    """For two parameters, the sets that SALib adds for second-order indices repeat others; mops runs each once."""
    problem = {"num_vars": 2, "names": ["a", "b"], "bounds": [[0, 1]] * 2}
    points = sampling.sample(problem, 16, calc_second_order=True, seed=1)
    assert len(points) == 96
    unique = np.array(list(dict.fromkeys(map(tuple, points.tolist()))))
    found = saltelli_design(pa.table({"a": unique[:, 0], "b": unique[:, 1]}))
    assert found == SaltelliDesign(("a", "b"), 16, 4)


def test_no_other_sets_are_a_design() -> None:
    points = sample()
    one_value, one_set_less = points.copy(), points[:-1]
    one_value[7, 2] += 1e-12
    rng = np.random.default_rng(1)
    others = [one_value, one_set_less, points[::-1], np.sort(points, axis=0), rng.permutation(points)]
    others += [latin.sample(PROBLEM, 320, seed=1), points[:0], points[:1], np.ones((10, 3)), points[:, :1]]
    # The sets of each block of this grid are A, both mixtures, and B.
    others += [np.array([(x, y) for y, x in product(range(8), range(2))], float)]
    assert [saltelli_design(table_of(each)) for each in others] == [None] * len(others)
    assert saltelli_design(pa.table({})) is None


def test_the_indices_are_those_of_salib(subtests: pytest.Subtests) -> None:
    for second in [False, True]:
        with subtests.test(second=second):
            points = sample(512, second=second)
            design = saltelli_design(table_of(points))
            assert design is not None
            y = 1e3 + ishigami(points)
            index, low, high = columns_of(design, y)
            # Only second-order indices need the others.
            own = np.delete(y.reshape(-1, design.size), slice(4, -1), axis=1).ravel()
            theirs = salib.analyze(PROBLEM, own, calc_second_order=False, num_resamples=1_000, seed=2)
            np.testing.assert_allclose(index, [theirs["S1"], theirs["ST"]], rtol=1e-9, atol=1e-12)
            half = np.array([theirs["S1_conf"], theirs["ST_conf"]])
            np.testing.assert_allclose((high - low) / 2, half, rtol=0.15)


def test_the_indices_of_ishigami_are_known() -> None:
    points = sample(4096)
    design = saltelli_design(table_of(points))
    assert design is not None
    index, low, high = columns_of(design, ishigami(points))
    np.testing.assert_allclose(index, EXACT, atol=0.01)
    assert ((low <= EXACT) & (high >= EXACT)).all()


def test_a_block_with_a_set_without_a_value_is_left_out() -> None:
    points = sample(64, second=True)
    design = saltelli_design(table_of(points))
    assert design is not None
    y = ishigami(points)
    whole = np.delete(y.reshape(64, 8), [3, 40, 63], axis=0).ravel()
    y[3 * 8], y[40 * 8 + 5], y[63 * 8 + 7] = math.nan, math.inf, math.nan
    index, low, high = columns_of(design, y)
    own = whole.reshape(-1, 8)[:, [0, 1, 2, 3, 7]].ravel()
    theirs = salib.analyze(PROBLEM, own, calc_second_order=False, seed=1)
    np.testing.assert_allclose(index, [theirs["S1"], theirs["ST"]], rtol=1e-9, atol=1e-12)
    assert (low < index).all()
    assert (index < high).all()
    caption = sobol(design, measured(y), ["y"]).caption("y")
    assert "over 61 blocks of 8 parameter sets" in caption
    assert "3 of the 64 blocks are left out" in caption


def test_equal_data_give_equal_intervals_also_for_another_unit() -> None:
    points = sample(32)
    design = saltelli_design(table_of(points))
    assert design is not None
    first = columns_of(design, ishigami(points))
    np.testing.assert_array_equal(first, columns_of(design, ishigami(points)))
    np.testing.assert_allclose(first, columns_of(design, ishigami(points) * 1e300), rtol=1e-9)


def test_a_measure_that_does_not_vary_has_no_indices(subtests: pytest.Subtests) -> None:
    for y in [np.zeros(320), np.full(320, 0.1) * 3, np.full(320, math.nan)]:
        with subtests.test(y=y):
            design = SaltelliDesign(tuple(NAMES), 64, 5)
            assert np.isnan(columns_of(design, y)).all()


def test_few_blocks_give_no_indices() -> None:
    for n, has in ((LEAST_BLOCKS - 1, False), (LEAST_BLOCKS, True)):
        points = sample(LEAST_BLOCKS)[: 5 * n]
        index, *_ = columns_of(SaltelliDesign(tuple(NAMES), n, 5), ishigami(points))
        assert np.isfinite(index).all() == has


def test_the_intervals_cover_the_known_indices_in_about_95_of_100_cases() -> None:
    rng, n, cases = np.random.default_rng(5), 256, 150
    inside = np.zeros((2, 3))
    for _ in range(cases):
        a, b = rng.uniform(-math.pi, math.pi, (2, n, 1, 3))
        points = np.concatenate([a, np.where(np.eye(3, dtype=bool), b, a), b], axis=1).reshape(-1, 3)
        design = saltelli_design(table_of(points))
        assert design is not None
        _, low, high = columns_of(design, ishigami(points))
        inside += (low <= EXACT) & (high >= EXACT)
    assert 0.91 < inside.mean() / cases < 0.98
