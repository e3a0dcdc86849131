"""What is finished and not durable: its age and its bytes."""

from __future__ import annotations

from clocks import Clock
from mops.attempt.checkpoint.pending_results import PendingResults


def test_the_lag_is_the_age_of_the_oldest_outcome_that_is_not_durable() -> None:
    clock = Clock()
    backlog = PendingResults(clock)
    assert (backlog.lag_s, backlog.bytes) == (0.0, 0)
    for n_bytes in (10, 20, 30):
        backlog.came(n_bytes)
        clock.now += 5
    assert (backlog.lag_s, backlog.bytes) == (15.0, 60)
    backlog.durable(2)
    assert (backlog.lag_s, backlog.bytes) == (5.0, 30)
    backlog.durable(1)
    assert (backlog.lag_s, backlog.bytes) == (0.0, 0)


def test_parts_count_when_they_are_stored() -> None:
    backlog = PendingResults()
    for n_bytes in (100, 23):
        backlog.wrote(n_bytes)
    assert backlog.written_bytes == 123
