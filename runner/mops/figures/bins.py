"""Divides the values of a column into bins: each value, equal widths, or equal ratios."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.columns import Floats, Integers, is_number, numbers

MOST_BINS = 20
MOST_NUMBERS = 12  # a column with at most this many different numbers has a bin for each of them

# Numbers that differ by less, as a part of the greater one, differ by rounding only, and are equal in all figures.
ROUNDING = 1e-12

OTHER_VALUES = "other values"

_EXACT_INTEGERS = 2.0**51  # up to here, a float tells an integer from the next half

LEAST_RATIO = 10.0  # between the greatest and the least value, for bins of equal ratios


@dataclass(frozen=True)
class Bins:
    """The bins of a column."""

    name: str
    # ``values``: a bin for each value. ``linear``, ``log``: bins of equal widths, or of equal ratios. A bin has its
    # lower edge and not its upper edge; the last bin has both.
    kind: Literal["values", "linear", "log"]
    values: tuple[Any, ...] = ()  # if ``kind`` is ``values``; the last one may be OTHER_VALUES of a text
    # one more than there are bins, or none if ``kind`` is ``values``; between two integers if the values are integers
    edges: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    ends: tuple[float, float] = (0.0, 0.0)  # the least and the greatest value; (0, 0) if ``kind`` is ``values``
    is_integer: bool = False  # of the values

    def __len__(self) -> int:
        return len(self.values) if self.kind == "values" else len(self.edges) - 1

    def index(self, column: pa.ChunkedArray | pa.Array) -> Integers:
        """Return the bin of each value; -1 for null, NaN, an infinity, and a value outside of the bins."""
        if self.kind == "values":
            return self._index_of_values(column)
        values = numbers(column)
        inside = (values >= self.edges[0]) & (values <= self.edges[-1])
        at = np.searchsorted(self.edges, np.where(inside, values, self.edges[0]), side="right") - 1
        return np.where(inside, np.minimum(at, len(self) - 1), -1).astype(np.int64)

    def _index_of_values(self, column: pa.ChunkedArray | pa.Array) -> Integers:
        if is_number(column.type):
            return self._index_of_numbers(numbers(column))
        found: Any = pa.nulls(len(column), pa.int32())
        if self.values:
            found = pc.index_in(column, pa.array(self.values, column.type))
        found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        at: Integers = np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
        if self.values and self.values[-1] == OTHER_VALUES:
            valid: Any = column.is_valid()
            valid = valid.combine_chunks() if isinstance(valid, pa.ChunkedArray) else valid
            at = np.where((at < 0) & valid.to_numpy(zero_copy_only=False), len(self) - 1, at)
        return at

    def _index_of_numbers(self, values: Floats) -> Integers:
        """Return the bin with the nearest value; -1 for a value that differs from it by more than rounding."""
        known = np.array(self.values, dtype=np.float64)
        if not len(known):
            return np.full(len(values), -1, np.int64)
        after = np.clip(np.searchsorted(known, values), 0, len(known) - 1)
        before = np.maximum(after - 1, 0)
        with np.errstate(invalid="ignore", over="ignore"):
            at = np.where(np.abs(values - known[before]) <= np.abs(known[after] - values), before, after)
            is_equal = np.abs(values - known[at]) <= 1_000 * ROUNDING * np.abs(values)  # merged values are a chain
        return np.where(np.isfinite(values) & is_equal, at, -1).astype(np.int64)

    @property
    def middles(self) -> Floats:
        """Where to draw each bin: the middle of its edges, its value, or the number of the bin for other values."""
        if self.kind == "linear":
            return self.edges[:-1] / 2 + self.edges[1:] / 2
        if self.kind == "log":
            return np.exp(np.log(self.edges[:-1]) / 2 + np.log(self.edges[1:]) / 2)
        if self.is_text:
            return np.arange(len(self), dtype=np.float64)
        return np.array(self.values, dtype=np.float64)

    @property
    def is_text(self) -> bool:
        """Whether the bins are texts or booleans, which have no place on an axis of numbers."""
        return self.kind == "values" and not all(type(value) in (int, float) for value in self.values)

    def labels(self) -> list[str]:
        """Return the text of each bin: its value, or ``0.1 to 0.2``."""
        if self.kind == "values":
            return list(map(self._value_label, self.values))
        if self.has_integer_edges:
            ends = zip(self.edges[:-1] + 0.5, self.edges[1:] - 0.5, strict=True)
            return [f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}" for low, high in ends]
        return [f"{low:.4g} to {high:.4g}" for low, high in zip(self.edges[:-1], self.edges[1:], strict=True)]

    def _value_label(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, float):
            return f"{value:.0f}" if self.is_integer else f"{value:.6g}"
        return str(value)

    @property
    def has_integer_edges(self) -> bool:
        """Whether the edges are between two integers."""
        return self.kind != "values" and self.is_integer

    def table(self) -> pa.Table:
        """Return a row for each bin: ``bin`` (int32), ``label`` (string), ``low`` and ``high`` (float64)."""
        if self.kind == "values":
            # The edges. They are both the value of a bin for one number, and null for other values.
            low = high = [None if self.is_text else float(value) for value in self.values]
        else:
            low, high = self.edges[:-1].tolist(), self.edges[1:].tolist()
        columns = {
            "bin": pa.array(range(len(self)), pa.int32()),
            "label": pa.array(self.labels(), pa.string()),
            "low": pa.array(low, pa.float64()),
            "high": pa.array(high, pa.float64()),
        }
        return pa.table(columns)


def bins_of(
    name: str, column: pa.ChunkedArray | pa.Array, most: int = MOST_BINS, weights: Floats | None = None
) -> Bins:
    """Return at most ``most`` bins, at least 2, for the finite values of a column; the weights choose the texts."""
    if not is_number(column.type):
        # A bin for each value. If texts have more values, the most frequent ones, or those with the greatest weights,
        # have a bin, and one bin has all others.
        return Bins(name, "values", _texts(column, most, weights))
    values = numbers(column)
    values = values[np.isfinite(values)] + 0.0
    is_integer = bool(pa.types.is_integer(column.type)) and np.abs(values).max(initial=0) < _EXACT_INTEGERS
    # Numbers that differ by rounding only are one.
    different = _different(values)
    if len(different) <= min(MOST_NUMBERS, most):
        return Bins(name, "values", tuple(different.tolist()), is_integer=is_integer)
    # Bins of equal width, or of equal ratio if is_log says so. Bins of equal width of integers have room for equally
    # many integers; the last one may end above the greatest value, and is then partly empty. Bins of equal ratio of
    # integers begin and end between two integers.
    low, high = float(values.min()), float(values.max())
    return bins_between(name, low, high, most, is_log=is_log(values), is_integer=is_integer)


def bins_between(name: str, low: float, high: float, most: int, *, is_log: bool, is_integer: bool) -> Bins:
    """Return bins for all numbers between two different ends, as :func:`bins_of` does for the values of a column."""
    low, high = float(low), float(high)
    is_integer = is_integer and max(abs(low), abs(high)) < _EXACT_INTEGERS
    if is_integer and high - low < min(MOST_NUMBERS, most):
        return Bins(name, "values", tuple(np.arange(low, high + 1).tolist()), is_integer=True)
    if is_log:
        edges = np.exp(np.linspace(np.log(low), np.log(high), most + 1))
        edges[0], edges[-1] = low, high
        if is_integer:
            edges = np.unique(np.append(np.ceil(edges[:-1]) - 0.5, high + 0.5))
            return Bins(name, "log", edges=edges, ends=(low, high), is_integer=True)
        return Bins(name, "log", edges=np.clip(edges, low, high), ends=(low, high))
    if is_integer:
        width = -(-(high - low + 1) // most)
        n_bins = int(-(-(high - low + 1) // width))
        edges = low - 0.5 + width * np.arange(n_bins + 1.0)
        return Bins(name, "linear", edges=edges, ends=(low, high), is_integer=True)
    edges = np.linspace(low / 2, high / 2, most + 1) * 2  # `high - low` may be too large for a float
    edges[0], edges[-1] = low, high
    return Bins(name, "linear", edges=np.clip(edges, low, high), ends=(low, high))


PAIR_BINS = 12  # the most bins of each parameter of a pair


def pair_bins_for(n: int) -> int:
    """Return the number of bins for each of two parameters, so that n values leave some in most cells."""
    return bins_for(n, PAIR_BINS, 1 / 3)


def bins_for(n: int, most: int, power: float = 0.5) -> int:
    """Return the number of bins for n values: their square root or another power of n, from 4 to ``most``."""
    return int(min(max(round(n**power), 4), most))


def is_constant(values: Floats) -> bool:
    """Tell whether all values are equal, or differ by rounding only."""
    return bool(len(values)) and float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())


def _different(values: Floats) -> Floats:
    """Return the different values, sorted. Of those that differ by rounding only, the least."""
    found = np.unique(values)
    is_new = np.diff(found, prepend=-np.inf) > ROUNDING * np.abs(found)
    different: Floats = found[is_new]
    return different


def is_log(values: Floats) -> bool:
    """Tell whether finite values need a logarithmic scale: the one rule for the scales and the bins of all figures."""
    if not len(values) or values.min() <= 0 or values.max() / LEAST_RATIO < values.min():
        return False
    # The median must be nearer to the geometric than to the arithmetic mean of the least and the greatest value, by its
    # logarithm. So values that are even on a logarithmic scale have one, and values that are even on a linear scale
    # have not.
    low, high = np.log(values.min()), np.log(values.max())
    arithmetic = high + np.log((1 + np.exp(low - high)) / 2)
    return bool(np.log(np.median(values)) < ((low + high) / 2 + arithmetic) / 2)


def _texts(column: pa.ChunkedArray | pa.Array, most: int, weights: Floats | None) -> tuple[Any, ...]:
    weight = pa.array(np.ones(len(column)) if weights is None else weights)
    sums = pa.table({"value": column, "weight": weight}).group_by("value").aggregate([("weight", "sum")])
    total = dict(zip(sums["value"].to_pylist(), sums["weight_sum"].to_pylist(), strict=True))
    total.pop(None, None)
    if len(total) <= most:
        return tuple(sorted(total))
    greatest = sorted(total, key=lambda value: (-total[value], value))[: most - 1]
    return (*sorted(greatest), OTHER_VALUES)


def cells(x: Integers, y: Integers, x_bins: int, y_bins: int) -> tuple[Integers, Integers]:
    """Return which rows have a bin on both axes, and the number of the cell of each of them: ``y * x_bins + x``."""
    rows = np.flatnonzero((x >= 0) & (y >= 0) & (x < x_bins) & (y < y_bins))
    return rows, y[rows] * x_bins + x[rows]


def cell_columns(x: Bins, y: Bins, numbers: Integers) -> dict[str, pa.Array]:
    """Return the columns that name cells by the numbers of :func:`cells`: two parameters, and the bin of each."""
    n = max(len(x), 1)
    return {
        "x": pa.array([x.name] * len(numbers), pa.string()),
        "y": pa.array([y.name] * len(numbers), pa.string()),
        "x_bin": pa.array(numbers % n, pa.int32()),
        "y_bin": pa.array(numbers // n, pa.int32()),
    }


def best_in(cell: Integers, n_cells: int, losses: Floats) -> tuple[Integers, Floats, Integers]:
    """Return for each cell the number of rows, the least loss, and its first row; NaN and -1: the cell is empty."""
    n = np.bincount(cell, minlength=n_cells).astype(np.int64)
    least, rows = np.full(n_cells, np.nan), np.full(n_cells, -1, np.int64)
    order = np.lexsort((np.arange(len(cell)), losses, cell))
    found, first = np.unique(cell[order], return_index=True)
    least[found], rows[found] = losses[order[first]], order[first]
    return n, least, rows
