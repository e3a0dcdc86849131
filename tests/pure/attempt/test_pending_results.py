"""Age and bytes of results that are finished and not yet durable."""

from __future__ import annotations

from clocks import Clock
from mops.attempt.commit import PendingResults
from mops.task import TaskResult
from mops.verdicts import Counts


def test_the_lag_is_the_age_of_the_oldest_result_that_is_not_durable() -> None:
    clock = Clock()
    pending = PendingResults(1 << 20, clock)
    assert (pending.lag_s, pending.bytes) == (0.0, 0)
    result = TaskResult(keys=(), done=frozenset({0}), seconds=0.0, reference=None)
    for _ in range(3):
        pending.add(result, Counts())
        clock.now += 5
    assert (pending.lag_s, pending.bytes) == (15.0, 3 * result.nbytes)
    pending.durable(2)
    assert (pending.lag_s, pending.bytes) == (5.0, result.nbytes)
    pending.durable(1)
    assert (pending.lag_s, pending.bytes) == (0.0, 0)


def test_results_without_finished_groups_are_not_waited_for() -> None:
    pending = PendingResults(1 << 20)
    pending.add(TaskResult(keys=(), done=frozenset(), seconds=0.0, reference=None), Counts())
    assert (pending.lag_s, pending.bytes) == (0.0, 0)
