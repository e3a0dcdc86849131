"""Sobol indices of the parameters, if the parameter sets are a Saltelli design.

References
----------
Saltelli, A. (2002). Making best use of model evaluations to compute sensitivity indices. Computer Physics
Communications 145, 280-297. (The design.)

Saltelli, A., Annoni, P., Azzini, I., Campolongo, F., Ratto, M., Tarantola, S. (2010). Variance based sensitivity
analysis of model output. Design and estimator for the total sensitivity index. Computer Physics Communications 181,
259-270. (The first-order index: table 2, row b.)

Jansen, M. J. W. (1999). Analysis of variance designs for model output. Computer Physics Communications 117, 35-43.
(The total index.)

Archer, G. E. B., Saltelli, A., Sobol', I. M. (1997). Sensitivity measures, ANOVA-like techniques and the use of
bootstrap. Journal of Statistical Computation and Simulation 58, 99-120. (The intervals.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.columns import Floats, Integers, nullable, numbers
from mops.units import counted

LEAST_BLOCKS = 8  # the fewest blocks with which mops calculates indices; with fewer, the intervals would mean nothing

RESAMPLES = 1_000
_ORDERS = ("first", "total")
_EQUAL = 1e-12  # a smaller relative difference of values, or a smaller relative variance, is a rounding error
# If a greater share of the bootstrap resamples has no variance, a measure has no intervals.
_MOST_EQUAL_RESAMPLES = 0.01


@dataclass(frozen=True)
class SaltelliDesign:
    """Parameter sets in blocks of A, AB_1 to AB_d, and B, for ``d`` parameters."""

    # A and B are independent random parameter sets, and AB_i is A with parameter ``i`` of B. A block may also have BA_1
    # to BA_d before B: BA_i is B with parameter ``i`` of A. mops does not use BA_i for the indices.
    parameters: tuple[str, ...]  # that vary, in the order of the sets of a block
    n_blocks: int
    size: int  # the sets of a block: ``d + 2`` or ``2 d + 2``


def saltelli_design(parameters: pa.Table) -> SaltelliDesign | None:
    """Return the Saltelli design of the parameters of groups 0, 1, ...; None: they are no such design."""
    codes = {name: _codes(parameters[name]) for name in parameters.column_names}
    varying = tuple(name for name, code in codes.items() if len(code) and code.max() > 0)
    d, n = len(varying), len(parameters)
    for size in (d + 2, 2 * d + 2):
        if d > 1 and n and n % size == 0:
            blocks = np.column_stack([codes[name] for name in varying]).reshape(-1, size, d)
            if _is_saltelli(blocks):
                return SaltelliDesign(varying, n // size, size)
    return None


def _codes(column: pa.ChunkedArray) -> Integers:
    """Return a number for each value; equal values have equal numbers, from 0."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    found: Integers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _is_saltelli(blocks: Integers) -> bool:
    n, size, d = blocks.shape
    a, b, is_i = blocks[:, :1], blocks[:, -1:], np.eye(d, dtype=bool)
    ab, ba = blocks[:, 1 : d + 1], blocks[:, d + 1 : -1]
    if not np.array_equal(ab, np.where(is_i, b, a)):
        return False
    if size > d + 2 and not np.array_equal(ba, np.where(is_i, a, b)):
        return False
    # The sets of a grid can form these blocks too, but the values of a random design hardly repeat.
    return all(len(np.unique(blocks[:, [0, -1], i])) > n for i in range(d))


@dataclass(frozen=True)
class Sobol:
    """The Sobol indices of each parameter for each measure."""

    design: SaltelliDesign
    # Two rows for each measure and parameter. ``order`` is ``first``: the share of the variance of the measure that the
    # parameter causes alone, or ``total``: together with the other parameters. ``index`` is null if the measure does
    # not vary, or has fewer than 8 complete blocks. ``low`` and ``high`` are the ends of the 95 % interval; null if
    # ``index`` is null, or if more than 1 % of the bootstrap resamples have no variance. ``blocks`` counts the complete
    # blocks, in which each set has a finite value.
    table: pa.Table

    @property
    def measures(self) -> list[str]:
        """The measures that have indices."""
        found: list[str] = self.table.filter(self.table["index"].is_valid())["measure"].unique().to_pylist()
        return found

    @property
    def notes(self) -> list[str]:
        """Which measures have no indices."""
        names = [name for name in self.table["measure"].unique().to_pylist() if name not in self.measures]
        why = "because the values do not vary, or too few blocks are complete"
        return [f"No indices, {why}: {', '.join(names)}."] if names else []

    def caption(self, measure: str) -> str:
        """Return what the figure of a measure shows."""
        rows = self.table.filter(pc.equal(self.table["measure"], measure))
        n = rows["blocks"][0].as_py()
        every = self.design.n_blocks
        left_out = (
            f" {every - n:,} of the {every:,} blocks are left out, because a set of them has no value. If these sets "
            "are not a random choice, the indices are biased."
            if n < every
            else ""
        )
        return (
            f"First-order indices (Saltelli et al. 2010) and total indices (Jansen 1999) over {counted(n, 'block')} of "
            f"{self.design.size} parameter sets{_interval_note(rows)}{left_out}"
        )


def sobol(design: SaltelliDesign, sets: pa.Table, measures: Sequence[str], resamples: int = RESAMPLES) -> Sobol:
    """Return the Sobol indices of each parameter for each measure: a column of ``sets``, next to ``group``."""
    groups = sets["group"].to_numpy()
    tables = [_EMPTY.empty_table()]
    for measure in measures:
        values = np.full(design.n_blocks * design.size, np.nan)
        values[groups] = numbers(sets[measure])
        blocks = values.reshape(design.n_blocks, design.size)
        complete = blocks[np.isfinite(blocks).all(axis=1)]
        tables.append(_of_measure(design, measure, complete, resamples))
    return Sobol(design, pa.concat_tables(tables))


_EMPTY = pa.schema(
    [
        pa.field("measure", pa.string()),
        pa.field("parameter", pa.string()),
        pa.field("order", pa.string()),
        pa.field("index", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("blocks", pa.int64()),
    ]
)


def _of_measure(design: SaltelliDesign, measure: str, blocks: Floats, resamples: int) -> pa.Table:
    d = len(design.parameters)
    index = low = high = np.full(2 * d, np.nan)
    terms = _terms(blocks, d)
    if terms is not None:
        index = _indices(terms.mean(axis=0))
        low, high = _interval(terms, resamples)
    columns = [
        pa.array([measure] * 2 * d, pa.string()),
        pa.array([name for _ in _ORDERS for name in design.parameters], pa.string()),
        pa.array([order for order in _ORDERS for _ in design.parameters], pa.string()),
        nullable(index),
        nullable(low),
        nullable(high),
        pa.array([len(blocks)] * 2 * d, pa.int64()),
    ]
    return pa.table(columns, schema=_EMPTY)


def _terms(blocks: Floats, d: int) -> Floats | None:
    """Return the terms of each block, or None if there are too few blocks or no variance."""
    scale = np.abs(blocks).max(initial=0.0)
    if len(blocks) < LEAST_BLOCKS or scale == 0:
        return None
    scaled = blocks / scale
    # This makes the first-order index more exact.
    scaled -= scaled.mean()
    a, b = scaled[:, :1], scaled[:, -1:]
    spread = np.ptp(np.concatenate([a, b]))
    if spread <= _EQUAL:
        return None
    a, b, ab = a / spread, b / spread, scaled[:, 1 : d + 1] / spread
    # An index is the mean of its terms over the blocks, divided by the variance V of all ``a`` and ``b``. The
    # first-order index of parameter ``i`` is ``mean(b (ab_i - a)) / V``, and its total index is ``mean((a - ab_i)²) /
    # (2 V)``. The last two columns are the mean and the mean square of A and B.
    found: Floats = np.hstack([b * (ab - a), (a - ab) ** 2 / 2, (a + b) / 2, (a**2 + b**2) / 2])
    return found


def _indices(means: Floats) -> Floats:
    """Return the first-order indices, then the total indices."""
    found: Floats = means[:-2] / _variance(means)
    return found


def _variance(means: Floats) -> float:
    return float(means[-1] - means[-2] ** 2)


def _interval(terms: Floats, resamples: int) -> tuple[Floats, Floats]:
    """Return the ends of the interval of each index; NaN if too many bootstrap resamples have no variance."""
    # The points of a Sobol sequence are more even than random points, so the intervals tend to be too wide.
    rng, n = np.random.default_rng(0), len(terms)
    counts = (np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(resamples))
    found = [_indices(means) for count in counts if _variance(means := count @ terms / n) > _EQUAL]
    if len(found) < (1 - _MOST_EQUAL_RESAMPLES) * resamples:
        nothing = np.full(terms.shape[1] - 2, np.nan)
        return nothing, nothing
    low, high = np.quantile(found, (0.025, 0.975), axis=0)
    return low, high


def _interval_note(rows: pa.Table) -> str:
    """Return the end of the sentence that says which intervals the indices of a measure have."""
    if rows["index"].null_count or not rows["low"].null_count:
        return ", with 95 % bootstrap intervals."
    return (
        ". They have no intervals, because too few blocks have different values: more than 1 % of the bootstrap "
        "resamples of the blocks have no variance."
    )
