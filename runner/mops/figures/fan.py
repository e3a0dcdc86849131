"""The course of an output: the median and bands over the simulations of many parameter sets.

Exact quantiles need all values, so a fan chart of a large job shows a sample of its parameter sets, which bounds the
memory. The sample is the same at each call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.calibration import weighted_quantiles
from mops.figures.columns import Flags, Floats, Integers, is_number, nullable, numbers
from mops.figures.row_keys import FigureRows, check_one_row, placed, places_of_divisions, several_rows
from mops.study.casts import converted
from mops.units import counted

MOST_SETS = 2_000
MOST_VALUES = 2_000_000  # the most values of one column that are held: 16 bytes each

MOST_OVERLAID = 2  # more divisions on the same axes have no bands of 90 %, which would hide each other

MOST_X = 500
X_BINS = 200

_VISIBLE_SHARE = 0.01  # of the height of an axis

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BAND_COLUMNS = ("low90", "low50", "median", "high50", "high90")


@dataclass(frozen=True)
class Fan:
    """The median and the bands of a column along another one."""

    output: str
    x: str
    y: str
    # A row for each value of ``x`` and each division, sorted: ``division`` (string; null: the fan is not divided),
    # ``x`` (float64, a date or a timestamp), ``n`` (int64: simulations), ``low90``, ``low50``, ``median``, ``high50``,
    # ``high90`` (float64): the quantiles 5, 25, 50, 75 and 95 %. Each simulation with a finite value counts once, by
    # numpy's rule ``linear``. If the sets have weights, the simulations of a set at an ``x`` share its weight equally,
    # and the quantiles are those of weighted_quantiles in figures/calibration.py.
    table: pa.Table
    by: str | None  # the parameters and the columns of the output that divide the fan; None: it is not divided
    n_sets: int  # that have run
    n_sets_read: int  # those in the sample
    n_sets_shown: int  # those in the sample that have values
    n_simulations: int  # that count
    n_left_out: int  # the values that are null, NaN or infinite
    # Whether ``x`` is the middle of one of 200 bins, because it has more than 500 values. The value of a simulation in
    # a bin is the mean of its values there.
    is_binned: bool
    # the sets, the simulations and the values left out of each division
    sizes: Mapping[str | None, tuple[int, int, int]] = field(default_factory=dict)
    is_part: bool = False  # whether the fan is one division of several
    keys: tuple[str, ...] = ()  # those of ``by`` that are columns of the output

    @property
    def caption(self) -> str:
        """What the figure shows, of how many simulations and sets, and what is left out."""
        of = sets_text(self.n_sets_shown, self.n_sets_read, self.n_sets)
        if self.is_part:
            of = counted(self.n_sets_shown, "parameter set")
            if self.n_sets_read < self.n_sets:
                of += f", in a random sample of {self.n_sets_read:,} of {self.n_sets:,}"
        over = f"{counted(self.n_simulations, 'simulation')} of {of}"
        is_overlaid = len(self.table["division"].unique()) <= MOST_OVERLAID
        bands = "50 % and 90 % (bands)" if is_overlaid else "50 % (band)"
        text = f"Median (line) and the middle {bands} of {over}, each with the same weight."
        if self.is_binned:
            text += f" {self.x!r} is in {X_BINS} bins, in which each simulation has its mean."
        left_out = f" {counted(self.n_left_out, 'value')} left out, not finite." if self.n_left_out else ""
        return f"{text}{left_out}"

    def divided(self) -> list[Fan]:
        """Return a fan for each division."""
        divisions = self.table["division"].unique().to_pylist()
        return [self._part(name) for name in divisions] if len(divisions) > 1 else [self][: len(divisions)]

    def _part(self, name: str | None) -> Fan:
        n_sets, n_simulations, n_left_out = self.sizes[name]
        return replace(
            self,
            table=_of(self.table, name),
            n_sets_shown=n_sets,
            n_simulations=n_simulations,
            n_left_out=n_left_out,
            is_part=True,
        )

    @property
    def shown(self) -> Floats:
        """All values in the figure."""
        return np.concatenate([numbers(self.table[name]) for name in BAND_COLUMNS])


def sets_text(n_shown: int, n_read: int, n_sets: int) -> str:
    """Return as text the parameter sets with values, those in the sample, and those that have run."""
    text, missing = counted(n_shown, "parameter set"), n_read - n_shown
    if missing:
        have = "has" if missing == 1 else "have"
        text = f"{n_shown:,} of {counted(n_read, 'parameter set')} ({missing:,} {have} no rows here)"
    return f"{text}, a random sample of {n_sets:,}" if n_read < n_sets else text


def _of(table: pa.Table, division: str | None) -> pa.Table:
    column = table["division"]
    return table.filter(pc.is_null(column) if division is None else pc.equal(column, division))


def needs_decades(bands: pa.Table) -> bool:
    """Tell whether a fan needs a logarithmic axis: on a linear one, half of a median line would not be seen."""
    shown = np.concatenate([numbers(bands[name]) for name in BAND_COLUMNS])
    if not np.isfinite(shown).any() or np.nanmin(shown) < 0:
        return False
    medians, divisions = numbers(bands["median"]), np.array(bands["division"].to_pylist(), dtype=object)
    typical = [np.median(some) for name in set(divisions) if len(some := medians[(divisions == name) & (medians > 0)])]
    # Half of the medians above 0 in a division are less than a hundredth of the greatest quantile of all divisions.
    return bool(typical) and float(min(typical)) < _VISIBLE_SHARE * float(np.nanmax(shown))


def have_decades(fans_of_output: Sequence[Fan]) -> bool:
    """Tell whether the figures of an output have logarithmic axes: all have the same kind, to be compared."""
    # Columns without a value above 0 do not count.
    counted_fans = [one for one in fans_of_output if np.any(numbers(one.table["high90"]) > 0)]
    return bool(counted_fans) and all(needs_decades(one.table) for one in counted_fans)


def linear_below(shown: Floats) -> float | None:
    """Return the end of the linear part of a logarithmic axis of values from 0; None: all of it is logarithmic."""
    # If some values are 0, or less than a billionth of the greatest value, the axis has a linear part.
    least = max(float(shown[shown > 0].min()), float(np.nanmax(shown)) / 1e9)
    return None if float(np.nanmin(shown)) >= least else float(f"1e{math.floor(math.log10(least))}")


def sample_of_sets(groups: Integers, n_rows: int, most: int = MOST_SETS, values: int = MOST_VALUES) -> Integers:
    """Return the groups whose rows a figure reads, sorted: all of them, or a random sample that is always the same."""
    # ``n_rows``: about how many rows the groups have in all
    # ``most``: the most groups
    # ``values``: about the most rows of the groups in the sample, which has at least one group
    fitting = int(values * len(groups) / n_rows) if n_rows else len(groups)
    n = min(len(groups), most, max(fitting, 1))
    if n == len(groups):
        return np.sort(groups)
    return np.sort(np.random.default_rng(0).choice(groups, n, replace=False))


def fans(
    source: FigureRows,
    x: str,
    weights: Mapping[int, float] | None = None,  # of each group; None: each simulation counts the same
) -> list[Fan]:
    """Return a fan for each of the ``ys``. UsageError: a simulation has several rows for an ``x`` and a division."""
    is_placed = pa.array(placed(source.rows, [x]))
    rows = source.rows.filter(is_placed)
    divisions = None if source.divisions is None else source.divisions.filter(is_placed)
    check_one_row(rows, [x], source.output, source.by, divisions)
    n_simulations = rows.group_by(["group", "replicate"]).aggregate([]).num_rows
    at, is_binned = _places(rows[x])
    names, division = places_of_divisions(divisions, len(rows))
    group, replicate = (rows[name].to_numpy().astype(np.int64) for name in ("group", "replicate"))
    columns = _Columns(group, replicate, at, division, names)
    counts = (source.n_sets, source.n_sets_read, len(rows["group"].unique()), n_simulations)
    found = []
    for y in source.ys:
        values = numbers(rows[y])
        points, of_points = _points(columns, values)
        table = _bands(points, of_points, weights)
        is_left_out = ~np.isfinite(values)
        sizes = columns.sizes(is_left_out)
        n_left_out = int(is_left_out.sum())
        found.append(Fan(source.output, x, y, table, source.by, *counts, n_left_out, is_binned, sizes))
    return found


@dataclass(frozen=True)
class _Columns:
    """The rows of all fans of an output: ``division`` has places in ``names``."""

    group: Integers
    replicate: Integers
    x: pa.ChunkedArray
    division: Integers
    names: list[str | None]

    @cached_property
    def place(self) -> Integers:
        """The place of each row's x among all values of x."""
        _, place = np.unique(self.x.to_numpy(), return_inverse=True)
        found: Integers = place.reshape(-1)
        return found

    @cached_property
    def simulations(self) -> tuple[Integers, Integers]:
        """A row of each simulation of each division, and the simulation of each row."""
        group = self.division * (self.group.max(initial=0) + 1) + self.group
        _, first, which = np.unique(
            group * (self.replicate.max(initial=0) + 1) + self.replicate, return_index=True, return_inverse=True
        )
        return first, which.reshape(-1)

    def sizes(self, is_left_out: Flags) -> dict[str | None, tuple[int, int, int]]:
        """Return the sets, the simulations and the values left out of each division."""
        first, _ = self.simulations
        _, first_of_set = np.unique(np.column_stack([self.division, self.group]), axis=0, return_index=True)
        rows = (first_of_set, first, np.flatnonzero(is_left_out))
        n_sets, n_simulations, n_left_out = (
            np.bincount(self.division[some], minlength=len(self.names)).tolist() for some in rows
        )
        return dict(zip(self.names, zip(n_sets, n_simulations, n_left_out, strict=True), strict=True))

    def of(self, rows: Integers) -> _Columns:
        return _Columns(
            self.group[rows], self.replicate[rows], self.x.take(pa.array(rows)), self.division[rows], self.names
        )

    def named(self, rows: Integers) -> pa.Array:
        return pa.array([self.names[i] for i in self.division[rows].tolist()], pa.string())


def _places(x: pa.ChunkedArray) -> tuple[pa.ChunkedArray, bool]:
    """Return where each row is on the axis: its x, or the middle of its bin."""
    if not is_number(x.type):
        return x, False
    values = numbers(x)
    different = np.unique(values)
    if len(different) <= MOST_X:
        return pa.chunked_array([values]), False
    edges = np.linspace(different[0], different[-1], X_BINS + 1)
    at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, X_BINS - 1)
    return pa.chunked_array([(edges[:-1] / 2 + edges[1:] / 2)[at]]), True


def _points(columns: _Columns, values: Floats) -> tuple[_Columns, Floats]:
    """Return one value for each simulation at each x, sorted by division, simulation and x."""
    finite = np.flatnonzero(np.isfinite(values))
    keys = (columns.division, columns.group, columns.replicate, columns.place)
    order = finite[np.lexsort([key[finite] for key in reversed(keys)])]
    starts = _starts(*(key[order] for key in keys))
    n = np.diff(starts, append=len(order))
    # Only a bin has several values of a simulation.
    means = np.add.reduceat(values[order], starts) / n if len(order) else np.empty(0)
    return columns.of(order[starts]), np.where(n == 1, values[order[starts]], means)


def _bands(points: _Columns, values: Floats, weights: Mapping[int, float] | None) -> pa.Table:
    order = np.lexsort((points.place, points.division))
    starts = _starts(points.division[order], points.place[order])
    ends = np.append(starts[1:], len(order))[: len(starts)]
    spans = [order[i:j] for i, j in zip(starts, ends, strict=True)]
    if weights is None:
        bands = [np.quantile(values[span], QUANTILES) for span in spans]
    else:
        bands = [weighted_quantiles(values[span], _shared(weights, points.group[span]), QUANTILES) for span in spans]
    found = np.array(bands).reshape(len(starts), len(QUANTILES))
    table = {
        "division": points.named(order[starts]),
        "x": points.x.take(pa.array(order[starts])),
        "n": pa.array(ends - starts, pa.int64()),
    }
    return pa.table(table | {name: nullable(found[:, i]) for i, name in enumerate(BAND_COLUMNS)})


def _starts(*keys: Integers) -> Integers:
    """Return the first row of each run of rows with equal keys, which are not negative."""
    return np.flatnonzero(np.any([np.diff(key, prepend=-1) != 0 for key in keys], axis=0))


def _shared(weights: Mapping[int, float], groups: Integers) -> Floats:
    """Return the weight of each value: the values of a group share its weight."""
    different, which, n = np.unique(groups, return_inverse=True, return_counts=True)
    found: Floats = (np.array([weights[group] for group in different.tolist()]) / n)[which.reshape(-1)]
    return found


def last_values(rows: pa.Table, output: str, x: str | None, ys: Sequence[str]) -> pa.Table:
    """Return the last value of each column for each parameter set, the mean over its replicates."""
    # ``x``: the last value is that at the greatest x; None: each simulation has one row
    at = numbers(_numeric(rows[x])) if x is not None else np.zeros(len(rows))
    group, replicate = rows["group"].to_numpy(), rows["replicate"].to_numpy()
    known = np.flatnonzero(~np.isnan(at))
    order = known[np.lexsort((at[known], replicate[known], group[known]))]  # stable
    is_last = (np.diff(group[order], append=-1) != 0) | (np.diff(replicate[order], append=-1) != 0)
    is_equal = ~is_last[:-1] & is_last[1:] & (np.diff(at[order]) == 0)
    if is_equal.any():
        # None of them is the last one.
        raise several_rows(output, [] if x is None else [x])
    last = order[is_last]
    groups, which = np.unique(group[last], return_inverse=True)
    columns = {"group": pa.array(groups, pa.int32())}
    for y in ys:
        values = numbers(rows[y])[last]
        # A replicate whose last value is not finite does not count. If none counts, the value is null.
        finite = np.isfinite(values)
        n = np.bincount(which[finite], minlength=len(groups))
        total = np.bincount(which[finite], weights=values[finite], minlength=len(groups))
        columns[y] = nullable(np.where(n > 0, total / np.maximum(n, 1), np.nan))
    return pa.table(columns)


def _numeric(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates and timestamps as numbers, which keep their order."""
    if pa.types.is_date(column.type):
        column = converted(column, pa.timestamp("ms"))
    return converted(column, pa.int64()) if pa.types.is_timestamp(column.type) else column
