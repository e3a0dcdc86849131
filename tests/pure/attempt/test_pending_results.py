"""Age and bytes of results that are finished and not yet durable."""

from __future__ import annotations

from clocks import Clock
from mops.attempt.commit import PendingResults


def test_the_lag_is_the_age_of_the_oldest_result_that_is_not_durable() -> None:
    clock = Clock()
    pending = PendingResults(clock)
    assert (pending.lag_s, pending.bytes) == (0.0, 0)
    for n_bytes in (10, 20, 30):
        pending.add(n_bytes)
        clock.now += 5
    assert (pending.lag_s, pending.bytes) == (15.0, 60)
    pending.remove_oldest(2)
    assert (pending.lag_s, pending.bytes) == (5.0, 30)
    pending.remove_oldest(1)
    assert (pending.lag_s, pending.bytes) == (0.0, 0)


def test_parts_count_when_they_are_stored() -> None:
    pending = PendingResults()
    for n_bytes in (100, 23):
        pending.add_written(n_bytes)
    assert pending.written_bytes == 123
