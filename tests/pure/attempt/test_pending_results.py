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
    (one,) = {TaskResult(done=frozenset({group}), seconds=0.0, reference=None).nbytes for group in range(3)}
    for group in range(3):
        pending.put(TaskResult(done=frozenset({group}), seconds=0.0, reference=None), Counts())
        clock.now += 5
    assert (pending.lag_s, pending.bytes) == (15.0, 3 * one)
    pending.durable(2)
    assert (pending.lag_s, pending.bytes) == (5.0, one)
    pending.durable(1)
    assert (pending.lag_s, pending.bytes) == (0.0, 0)
