"""A job over time, from its samples."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.figures import timeline as module
from mops.figures.timeline import timeline
from mops.storage.progress_record import Progress
from mops.storage.samples import as_table
from mops.verdicts import Counts

ATTEMPTS = st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50)), min_size=1, max_size=40), max_size=4)


def samples_of(attempts: list[list[tuple[int, int]]]) -> pa.Table:
    """Make samples: for each attempt, the seconds since the sample before and the new simulations."""
    at, done, rows = 1_000.0, 0, []
    for number, steps in enumerate(attempts, 1):
        for seconds, new in steps:
            at, done = at + seconds, done + new
            finished, memory = Counts(done, new), {"memory_bytes": 1000 + new, "runner_bytes": 100 + new}
            rows.append((number, Progress(at, finished, durable=Counts(done), rate=float(new), slots=2, **memory)))
        at += 3_600
    return as_table(rows)


@given(ATTEMPTS, st.integers(1, 30))
def test_points_keep_the_ends_the_maxima_and_the_mean_rate(attempts: list[list[tuple[int, int]]], most: int) -> None:
    samples = samples_of(attempts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_POINTS", most)
        found = timeline(samples, 1_000)
    points = found.points.to_pylist()
    assert len(points) <= most + len(attempts)
    assert sum(point["samples"] for point in points) == len(samples)
    rows, at, attempt = samples.to_pylist(), 0, 0
    for point in points:
        mine = rows[at : at + point["samples"]]
        at += point["samples"]
        assert {row["attempt"] for row in mine} == {point["attempt"]}
        assert point["time"] == mine[-1]["time"]
        assert point["simulations"] == mine[-1]["simulations_good"] + mine[-1]["simulations_failed"]
        assert point["memory_bytes"] == max(row["memory_bytes"] for row in mine)
        assert point["runner_bytes"] == max(row["runner_bytes"] for row in mine)
        is_start = point["attempt"] != attempt
        rates, attempt = [row["rate"] for row in mine[is_start:]], point["attempt"]
        if rates:
            assert point["rate"] == pytest.approx(sum(rates) / len(rates))
        else:
            assert point["rate"] is None
        assert point["seconds"] == (mine[-1]["time"] - rows[0]["time"]).total_seconds()
    assert all(a["running_seconds"] <= b["running_seconds"] for a, b in pairwise(points))


def test_pauses_between_attempts_do_not_count_as_running_time() -> None:
    found = timeline(samples_of([[(0, 5), (10, 5)], [(0, 5), (10, 5)]]), 20)
    assert found.points["seconds"].to_pylist() == [0, 10, 3_610, 3_620]
    assert found.points["running_seconds"].to_pylist() == [0, 10, 10, 20]
    assert found.starts.tolist() == [0, 10]


def test_a_clock_that_goes_back_does_not_bend_the_running_time() -> None:
    found = timeline(samples_of([[(0, 1), (10, 1), (-5, 1), (10, 1)]]), 4)
    assert found.points["running_seconds"].to_pylist() == [0, 10, 10, 20]


def test_a_job_without_samples_has_an_empty_timeline() -> None:
    found = timeline(as_table([]), 10)
    assert (len(found.points), len(found.starts)) == (0, 0)
    assert found.points.schema.equals(timeline(samples_of([[(0, 1)]]), 10).points.schema)
