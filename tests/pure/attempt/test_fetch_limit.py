"""How many results a runner fetches at once."""

from __future__ import annotations

from mops.attempt.tasks import FetchLimit

MIB = 1 << 20


def limit_after(*sizes: int) -> FetchLimit:
    limit = FetchLimit(16 * MIB)
    for size in sizes:
        limit.add_size(size)
    return limit


def test_the_first_result_is_fetched_alone() -> None:
    assert limit_after().take(200) == 1


def test_as_many_results_are_fetched_as_there_is_room_for() -> None:
    limit = limit_after(MIB, 4 * MIB)
    assert limit.take(3) == 3
    assert limit.take(3) == 1, "the room of four results of the largest size"
    limit.give_back(2)
    assert limit.take(3) == 2


def test_a_result_that_is_larger_than_the_room_is_fetched_alone() -> None:
    assert limit_after(99 * MIB).take(3) == 1


def test_after_small_results_only_some_are_fetched_at_once() -> None:
    """The next ones may be large: 200 results of 200 MB would be in memory before the first of them is measured."""
    assert limit_after(*[2_000] * 16).take(200) == 32
