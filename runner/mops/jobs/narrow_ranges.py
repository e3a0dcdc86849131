"""Finds parameters whose range in some parameter sets is clearly narrower than in all of them.

A range is narrow if so few of all sets have a value in it that, with random sets instead of those that failed, a range
with at most as many sets has a probability of at most 5 %. A single value is also named if all sets with it failed, and
no other set did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, lgamma
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.study.ranges import Ranges

_CHANCE = 0.05
_MOST_SHARE = 2 / 3  # of all sets; a wider range tells a person little
_MOST_VALUES = 1_000  # different texts of a parameter: with more, it is a name and not a setting
_VALUES_SHOWN = 4

Groups = npt.NDArray[np.int32]
Chunks = Callable[[], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class NarrowRange:
    """The values of a parameter in some sets and in all sets."""

    parameter: str
    some: tuple[Any, ...]  # numbers: the least and the greatest; otherwise: each value
    all: tuple[Any, ...]
    share: float  # of all sets that have a value of `some`
    is_number: bool
    is_exact: bool  # whether each set with a value of `some` failed

    def __str__(self) -> str:
        """Return it for people: ``beta: 0.41 to 0.5 (all sets: 0.01 to 0.5)``."""
        text = f"{self.parameter}: {self._text(self.some)} (all sets: {self._text(self.all)})"
        return f"{text}; every such set fails" if self.is_exact else text

    def _text(self, values: tuple[Any, ...]) -> str:
        if self.is_number:
            low, high = (_number(value) for value in values)
            return low if low == high else f"{low} to {high}"
        shown = ", ".join(map(str, values[:_VALUES_SHOWN]))
        more = len(values) - _VALUES_SHOWN
        return f"{shown} and {more:,} more" if more > 0 else shown


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"


def narrow_ranges(
    chunks: Chunks,  # returns the parameter sets: the column `group`, and one for each parameter; called twice
    some: Sequence[Groups],  # the groups of each selection, sorted
    # The groups that have run. Only they are all sets, because sets often come in the order of a parameter.
    finished: Ranges,
) -> list[list[NarrowRange]]:
    """Return the narrow ranges of each selection of parameter sets, the narrowest first."""
    parameters: dict[str, _Parameter] = {}
    for step in (_Parameter.take, _Parameter.count):
        for chunk in chunks():
            first, n = chunk["group"][0].as_py(), len(chunk)
            has_run = _mask(finished, first, n)
            rows = [groups[slice(*np.searchsorted(groups, (first, first + n)))] - first for groups in some]
            for name in chunk.schema.names:
                if name != "group":
                    step(parameters.setdefault(name, _Parameter(name, len(some))), chunk[name], has_run, rows)
    found = [[parameter.narrow(i) for parameter in parameters.values()] for i in range(len(some))]
    return [sorted((one for one in each if one is not None), key=lambda one: one.share) for each in found]


def _mask(finished: Ranges, first: int, n: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(n, bool)
    for start, stop in (finished & Ranges(((first, first + n),))).intervals:
        mask[start - first : stop - first] = True
    return mask


@dataclass
class _Values:
    n: int = 0
    low: float = inf
    high: float = -inf
    texts: set[Any] = field(default_factory=set)
    n_all: int = 0  # how many of all sets have a value in the range

    def take(self, values: npt.NDArray[Any], *, is_number: bool) -> None:
        self.n += len(values)
        if is_number and len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        elif len(self.texts) <= _MOST_VALUES:
            self.texts.update(values.tolist())


class _Parameter:
    """One parameter in all sets and in each selection."""

    def __init__(self, name: str, n_selections: int):
        self._name = name
        self._all = _Values()
        self._some = [_Values() for _ in range(n_selections)]
        self._is_number = False

    def take(self, column: pa.Array, has_run: npt.NDArray[np.bool_], rows: list[Groups]) -> None:
        self._is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        values, is_there = _values(column)
        self._all.take(values[has_run & is_there], is_number=self._is_number)
        for some, its in zip(self._some, rows, strict=True):
            some.take(values[its][is_there[its]], is_number=self._is_number)

    def count(self, column: pa.Array, has_run: npt.NDArray[np.bool_], rows: list[Groups]) -> None:
        """Count the sets of a chunk that have a value in the range of each selection."""
        if len(self._all.texts) > _MOST_VALUES:
            return
        values, is_there = _values(column)
        there = values[has_run & is_there]
        for some in self._some:
            if self._is_number:
                some.n_all += int(((there >= some.low) & (there <= some.high)).sum())
            else:
                some.n_all += int(np.isin(there, [*some.texts]).sum())

    def narrow(self, selection: int) -> NarrowRange | None:
        some, every = self._some[selection], self._all
        if not 0 < some.n < every.n or len(every.texts) > _MOST_VALUES:
            return None
        is_exact = some.n_all == some.n > 1
        is_one_value = some.low == some.high if self._is_number else len(some.texts) == 1
        is_seldom = some.n_all <= _MOST_SHARE * every.n and self._chance(some) <= _CHANCE
        if not is_seldom and not (is_exact and is_one_value):
            return None
        share = some.n_all / every.n
        return NarrowRange(self._name, self._shown(some), self._shown(every), share, self._is_number, is_exact)

    def _shown(self, values: _Values) -> tuple[Any, ...]:
        return (values.low, values.high) if self._is_number else tuple(sorted(values.texts))

    def _chance(self, some: _Values) -> float:
        """Return the probability that as many random sets have values in a range with at most as many sets."""
        if self._is_number:
            return _chance_of_range(self._all.n, some.n, some.n_all)
        n_choices = exp(_log_ways(len(self._all.texts), len(some.texts)))
        return n_choices * _ratio(some.n_all, self._all.n, some.n)


def _chance_of_range(n_all: int, n: int, m: int) -> float:
    """Return the probability that ``n`` random ones of ``n_all`` things in a row are among ``m`` neighbours."""
    starts_early = (n_all - m) * exp(_log_ways(m - 1, n - 1) - _log_ways(n_all, n))
    return starts_early + _ratio(m, n_all, n)


def _values(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the values as numpy, and which of them are not null."""
    return column.to_numpy(zero_copy_only=False), column.is_valid().to_numpy(zero_copy_only=False)


def _ratio(m: int, n_all: int, n: int) -> float:
    return exp(_log_ways(m, n) - _log_ways(n_all, n))


def _log_ways(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if 0 <= k <= n else -inf
