"""Rank correlations of parameters with losses and with results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.columns import Floats, nullable, numbers

LEAST_SETS = 8  # a correlation of fewer parameter sets would mislead


@dataclass(frozen=True)
class Sensitivity:
    """Spearman's rank correlation of each parameter with each measure."""

    # A row for each parameter and measure. ``rho`` is the correlation, null if one of the two has fewer than two
    # values. ``n`` counts the sets with both.
    table: pa.Table
    left_out: tuple[str, ...]  # the parameters that are texts
    n_sets: int

    def known(self) -> Sensitivity:
        """Return the measures that vary, so that at least one parameter has a correlation with them."""
        measures = self.table.filter(pc.is_valid(self.table["rho"]))["measure"].unique()
        return replace(self, table=self.table.filter(pc.is_in(self.table["measure"], measures)))

    @property
    def notes(self) -> list[str]:
        """Which measures have no correlation."""
        known = set(self.known().table["measure"].to_pylist())
        names = [name for name in self.table["measure"].unique().to_pylist() if name not in known]
        return [f"No correlation, because the values do not vary: {', '.join(names)}."] if names else []

    @property
    def texts(self) -> list[str]:
        """Which parameters have no ranks, because they are texts."""
        return [f"Texts have no ranks: {', '.join(self.left_out)}."] if self.left_out else []


def sensitivity(sets: pa.Table, parameters: Sequence[str], measures: Sequence[str]) -> Sensitivity:
    """Return the rank correlation of each parameter with each measure, which are columns of ``sets``."""
    ranked = [name for name in parameters if not pa.types.is_string(sets.schema.field(name).type)]
    columns = {name: numbers(sets[name]) for name in (*ranked, *measures)}
    found = [(p, m, *spearman(columns[p], columns[m])) for p in ranked for m in measures]
    table = {
        "parameter": pa.array([p for p, *_ in found], pa.string()),
        "measure": pa.array([m for _, m, *_ in found], pa.string()),
        "rho": nullable(np.array([rho for *_, rho, _ in found], dtype=np.float64)),
        "n": pa.array([n for *_, n in found], pa.int64()),
    }
    return Sensitivity(pa.table(table), tuple(name for name in parameters if name not in ranked), len(sets))


def spearman(x: Floats, y: Floats) -> tuple[float, int]:
    """Return Spearman's rank correlation over the finite pairs, and their number; NaN if x or y is constant."""
    both = np.isfinite(x) & np.isfinite(y)
    n = int(both.sum())
    if n < 2:
        return float("nan"), n
    a, b = ranks(x[both]), ranks(y[both])
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return (float(np.clip(a @ b / scale, -1, 1)) if scale > 0 else float("nan")), n


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values have the mean of their ranks."""
    lowest, highest = (pc.rank(pa.array(values), tiebreaker=of_equal).to_numpy() for of_equal in ("min", "max"))
    found: Floats = (lowest + highest) / 2
    return found
