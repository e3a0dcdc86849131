"""How a result is spread over simulations: a column of an output with one row for each simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, bins_for, bins_of
from mops.figures.columns import Flags, Floats, numbers
from mops.figures.fan import sets_text
from mops.figures.row_keys import FigureRows, check_one_row, division_text, places_of_divisions
from mops.units import counted, number

LEAST_VALUES = 5  # a histogram of fewer values would look like a distribution


_WHOLE = 1e9  # from here on, also a whole number has three digits


@dataclass(frozen=True)
class Strip:
    """The values of a division. All values are one strip if the figure is not divided."""

    division: str | None  # the value of the parameter that divides the figure; None: the sets without one, or all sets
    n: int  # its simulations with a finite value
    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class Spread:
    """How a column is spread over simulations."""

    output: str
    y: str
    bins: Bins  # of all strips
    # the bins of each strip: ``division``, ``n`` (simulations) and ``share`` (of the simulations of the strip)
    table: pa.Table
    strips: tuple[Strip, ...]  # those with at least 5 values, sorted by the names of the divisions
    few: Mapping[str | None, int]  # the values of each division that has 1 to 4, and so no strip
    by: str | None  # the parameter that divides the figure; None: it is not divided
    n_sets: int  # that have run
    n_sets_read: int  # those in the sample
    n_sets_shown: int  # those in the sample that have values
    n_left_out: int  # the values that are null, NaN or infinite

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal, up to rounding."""
        return len(self.bins) == 1

    @property
    def caption(self) -> str:
        """The caption of the figure."""
        n = sum(strip.n for strip in self.strips) + sum(self.few.values())
        over = f"{counted(n, 'simulation')} of {sets_text(self.n_sets_shown, self.n_sets_read, self.n_sets)}"
        by = f", for each value of {self.by!r}" if self.by else ""
        scale = ", in bins of equal ratio" if self.bins.kind == "log" else ""
        left_out = f" {counted(self.n_left_out, 'value')} left out, not finite." if self.n_left_out else ""
        return f"{self.y!r} of {over}{by}{scale}. Each simulation counts once. {self._reading()}{left_out}"

    def _reading(self) -> str:
        if self.by is None:
            (one,) = self.strips
            least, median, greatest = map(_text, (one.least, one.median, one.greatest))
            return f"The least is {least}, the median {median}, the greatest {greatest}."
        line = "" if self.bins.kind == "values" else " A line is a median."
        names = (f"{division_text(self.by, name)} ({counted(n, 'value')})" for name, n in self.few.items())
        few = f" Too few values for a strip: {', '.join(names)}." if self.few else ""
        return f"The bars of a strip add up to 100 %.{line}{few}"


def _text(value: float) -> str:
    """Return a value with three digits, but whole numbers with all of them."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < _WHOLE else number(value)


def spreads(source: FigureRows) -> list[Spread]:
    """Return how each column with at least 5 finite values is spread. UsageError: a simulation has several rows."""
    check_one_row(source.rows, [], source.output)
    found = (_spread(source, y) for y in source.ys)
    return [spread for spread in found if spread is not None]


def _spread(source: FigureRows, y: str) -> Spread | None:
    groups, values = source.rows["group"].to_numpy(), numbers(source.rows[y])
    is_finite = np.isfinite(values)
    if is_finite.sum() < LEAST_VALUES:
        return None
    names, place = places_of_divisions(source.divisions, len(values))
    n_of = np.bincount(place[is_finite], minlength=len(names))
    is_divided = source.by is not None and int((n_of >= LEAST_VALUES).sum()) > 1
    if not is_divided:
        names, place = [None], np.zeros(len(values), np.int64)
        n_of = np.array([is_finite.sum()])
    is_shown = is_finite & (n_of[place] >= LEAST_VALUES)
    shown = [i for i, n in enumerate(n_of) if n >= LEAST_VALUES]
    bins = bins_of(y, source.rows[y].filter(pa.array(is_shown)), bins_for(int(is_shown.sum()) // len(shown), 30, 0.6))
    strips, tables = [], []
    for i in shown:
        of_strip = is_shown & (place == i)
        strips.append(_strip(names[i], values[of_strip]))
        tables.append(_table(names[i], bins, source.rows[y], of_strip))
    return Spread(
        source.output,
        y,
        bins,
        pa.concat_tables(tables),
        tuple(strips),
        {names[i]: int(n) for i, n in enumerate(n_of) if 0 < n < LEAST_VALUES},
        source.by if is_divided else None,
        source.n_sets,
        source.n_sets_read,
        len(np.unique(groups[is_finite])),
        int((~is_finite).sum()),
    )


def _strip(division: str | None, values: Floats) -> Strip:
    least, median, greatest = np.quantile(values, (0.0, 0.5, 1.0)).tolist()
    return Strip(division, len(values), least, median, greatest)


def _table(division: str | None, bins: Bins, column: pa.ChunkedArray, rows: Flags) -> pa.Table:
    n = np.bincount(bins.index(column.filter(pa.array(rows))), minlength=len(bins)).astype(np.int64)
    table = bins.table().add_column(0, "division", pa.array([division] * len(bins), pa.string()))
    table = table.append_column("n", pa.array(n, pa.int64()))
    return table.append_column("share", pa.array(n / n.sum(), pa.float64()))
