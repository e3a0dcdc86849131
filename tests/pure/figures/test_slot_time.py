"""The time of a slot for each simulation."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from mops.figures.timeline import slot_time


def points(rates: list[float], slots: list[int]) -> pa.Table:
    n = len(rates)
    columns = {
        "attempt": pa.array([1] * n, pa.int32()),
        "running_seconds": pa.array([10.0 * i for i in range(n)]),
        "rate": pa.array(rates),
        "slots": pa.array(slots, pa.int32()),
        "samples": pa.array([1] * n, pa.int32()),
    }
    return pa.table(columns)


def test_it_is_the_slots_divided_by_the_rate() -> None:
    found = slot_time(points([0.0, 2.0, 8.0], [4, 4, 4]))
    assert found.table["running_seconds"].to_pylist() == [10.0, 20.0]
    assert found.table["seconds"].to_pylist() == [2.0, 0.5]
    # In 10 s each: 20 simulations of 2 s and 80 of 0.5 s.
    assert found.mean == pytest.approx((20 * 2.0 + 80 * 0.5) / 100)


def test_a_job_without_a_rate_has_none() -> None:
    found = slot_time(points([0.0], [2]))
    assert found.table.num_rows == 0
    assert math.isnan(found.mean)
