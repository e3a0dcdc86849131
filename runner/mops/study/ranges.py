"""Sets of group numbers as intervals: a few numbers stand for a million committed groups."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter


@dataclass(frozen=True)
class Ranges:
    """An immutable set of integers as sorted, disjoint, half-open intervals that do not touch."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """Return the set of these numbers."""
        return cls.joined((number, number + 1) for number in numbers)

    @classmethod
    def joined(cls, intervals: Iterable[tuple[int, int]]) -> Ranges:
        """Return the union of half-open intervals, which may overlap."""
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(intervals):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            elif start < stop:
                joined.append((start, stop))
        return cls(tuple(joined))

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.joined((*self.intervals, *other.intervals))

    def __and__(self, other: Ranges) -> Ranges:
        return Ranges(tuple(shared for interval in self.intervals for shared in other._within(*interval)))

    def __sub__(self, other: Ranges) -> Ranges:
        return self & other.complement(self.intervals[-1][1] if self.intervals else 0)

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the set within one interval, by bisection."""
        begin = bisect_right(self.intervals, start, key=itemgetter(1))
        end = bisect_left(self.intervals, stop, key=itemgetter(0))
        for first, last in self.intervals[begin:end]:
            yield max(first, start), min(last, stop)

    def __contains__(self, number: int) -> bool:
        return any(self._within(number, number + 1))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.intervals)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.intervals:
            yield from range(start, stop)

    def overlaps(self, other: Ranges) -> bool:
        """Tell whether any number is in both."""
        return len(self | other) < len(self) + len(other)

    def complement(self, total: int) -> Ranges:
        """Return the numbers of ``range(total)`` that are not in the set."""
        missing, at = [], 0
        for start, stop in (*self._within(0, total), (total, total)):
            if at < start:
                missing.append((at, start))
            at = stop
        return Ranges(tuple(missing))
