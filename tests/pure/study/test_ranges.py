"""Sets of group numbers as intervals, compared with sets of Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mops.study.ranges import Ranges

numbers = st.sets(st.integers(0, 60))
intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def is_normal(ranges: Ranges) -> bool:
    """Tell whether the intervals are sorted, not empty, and do not touch."""
    flat = [end for interval in ranges.intervals for end in interval]
    return flat == sorted(set(flat)) and len(flat) == 2 * len(ranges.intervals)


@given(numbers)
def test_a_set_holds_its_numbers_in_order(given: set[int]) -> None:
    ranges = Ranges.of(given)
    assert is_normal(ranges)
    assert list(ranges) == sorted(given)
    assert len(ranges) == len(given)
    assert bool(ranges) == bool(given)
    assert {n for n in range(-2, 63) if n in ranges} == given


@given(st.lists(st.integers(0, 60)))
def test_order_and_repetition_do_not_matter(given: list[int]) -> None:
    assert Ranges.of(given) == Ranges.of(sorted(set(given)))
    assert hash(Ranges.of(given)) == hash(Ranges.of(reversed(given)))


@given(intervals)
def test_intervals_may_overlap_touch_or_be_empty(given: list[tuple[int, int]]) -> None:
    ranges = Ranges.joined(given)
    assert is_normal(ranges)
    assert set(ranges) == {n for start, stop in given for n in range(start, stop)}


@given(numbers, numbers)
def test_union_intersection_and_overlap_are_those_of_sets(one: set[int], other: set[int]) -> None:
    union, shared = Ranges.of(one) | Ranges.of(other), Ranges.of(one) & Ranges.of(other)
    assert is_normal(union)
    assert is_normal(shared)
    assert (set(union), set(shared)) == (one | other, one & other)
    assert Ranges.of(one).overlaps(Ranges.of(other)) == bool(one & other)


@given(numbers, st.integers(0, 70))
def test_the_complement_is_what_is_missing_from_a_range(given: set[int], total: int) -> None:
    """A total below a number of the set once gave wrong intervals."""
    complement = Ranges.of(given).complement(total)
    assert is_normal(complement)
    assert set(complement) == set(range(total)) - given


def test_a_million_numbers_in_a_row_are_one_interval() -> None:
    ranges = Ranges.of(range(1_000_000))
    assert ranges.intervals == ((0, 1_000_000),)
    assert 999_999 in ranges
    assert 1_000_000 not in ranges
