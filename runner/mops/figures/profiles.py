"""The best loss over each parameter, and over each pair of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, best_in, bins_for, bins_of, cells, pair_bins_for
from mops.figures.columns import Floats, Integers, nullable
from mops.figures.losses import TOTAL, ScoredSets
from mops.figures.sensitivity import ranks

MOST_PARAMETERS = 6


@dataclass(frozen=True)
class Profile:
    """The best loss in each bin of a parameter."""

    parameter: str
    label: str
    title: str
    bins: Bins
    # The bins with ``n`` (int64): their sets; ``best`` and ``median`` (float64): the least loss and the median, null
    # without sets; ``group`` (int32): the set with the least loss.
    table: pa.Table
    n: int  # the sets in the bins
    n_missing: int  # those that have the loss and no value of the parameter
    is_log: bool  # whether the loss needs a logarithmic scale


def profile(scored: ScoredSets, parameter: str, label: str = TOTAL, most: int | None = None) -> Profile:
    """Return the best loss in each bin of a parameter. The bins are those of all sets that have the loss."""
    # ``most``: the most bins; None: by the number of sets, at most 20
    rows = scored.ranked(label)
    losses, column = scored.losses(label)[rows], scored.table[parameter].take(pa.array(rows))
    bins = bins_of(parameter, column, most or bins_for(len(rows), 20))
    index = bins.index(column)
    inside = np.flatnonzero(index >= 0)
    n, best, at = best_in(index[inside], len(bins), losses[inside])
    table = bins.table()
    table = table.append_column("n", pa.array(n))
    table = table.append_column("best", nullable(best))
    table = table.append_column("median", nullable(_medians(index[inside], len(bins), losses[inside])))
    table = table.append_column("group", _groups(scored, rows[inside], at))
    counts = (len(inside), len(rows) - len(inside))
    return Profile(parameter, label, scored.title(label), bins, table, *counts, scored.is_log(label))


@dataclass(frozen=True)
class Pairs:
    """The best loss over each pair of parameters."""

    label: str
    title: str
    parameters: tuple[str, ...]  # at most 6: those that telling_parameters chooses, in their order
    left_out: tuple[str, ...]  # the others; those with one value in all sets are never shown
    bins: dict[str, Bins]
    # A row for each cell with sets, of each pair: ``x``, ``y`` (string: the parameters), ``x_bin``, ``y_bin`` (int32),
    # ``n`` (int64: sets), ``best`` (float64: the least loss), ``group`` (int32: its set).
    cells: pa.Table
    n_sets: int  # with the loss


def pairs(
    scored: ScoredSets,
    label: str = TOTAL,
    parameters: Sequence[str] | None = None,  # to show; None: telling_parameters
    most: int = MOST_PARAMETERS,
    bins: int | None = None,  # the most bins of each parameter; None: by the number of sets, at most 12
) -> Pairs:
    """Return the best loss over each pair of parameters."""
    shown = tuple(parameters) if parameters is not None else telling_parameters(scored, label, most)
    rows = scored.ranked(label)
    losses, table = scored.losses(label)[rows], scored.table.take(pa.array(rows))
    n_bins = bins or pair_bins_for(len(rows))
    of = {name: bins_of(name, table[name], n_bins) for name in shown}
    index = {name: of[name].index(table[name]) for name in shown}
    found = [_pair(scored, rows, losses, (of[x], index[x]), (of[y], index[y])) for x, y in combinations(shown, 2)]
    left_out = tuple(name for name in scored.parameters if name not in shown)
    joined = pa.concat_tables([CELLS.empty_table(), *found])
    return Pairs(label, scored.title(label), shown, left_out, of, joined, len(rows))


CELLS = pa.schema(
    [
        pa.field("x", pa.string()),
        pa.field("y", pa.string()),
        pa.field("x_bin", pa.int32()),
        pa.field("y_bin", pa.int32()),
        pa.field("n", pa.int64()),
        pa.field("best", pa.float64()),
        pa.field("group", pa.int32()),
    ]
)


def _pair(
    scored: ScoredSets, rows: Integers, losses: Floats, x: tuple[Bins, Integers], y: tuple[Bins, Integers]
) -> pa.Table:
    (x_bins, x_index), (y_bins, y_index) = x, y
    inside, cell = cells(x_index, y_index, len(x_bins), len(y_bins))
    n, best, at = best_in(cell, len(x_bins) * len(y_bins), losses[inside])
    full = np.flatnonzero(n)
    columns = [
        pa.array([x_bins.name] * len(full), pa.string()),
        pa.array([y_bins.name] * len(full), pa.string()),
        pa.array(full % max(len(x_bins), 1), pa.int32()),
        pa.array(full // max(len(x_bins), 1), pa.int32()),
        pa.array(n[full]),
        nullable(best[full]),
        _groups(scored, rows[inside], at[full]),
    ]
    return pa.table(columns, schema=CELLS)


def telling_parameters(scored: ScoredSets, label: str = TOTAL, most: int = MOST_PARAMETERS) -> tuple[str, ...]:
    """Return the parameters that tell most about a loss, in their order."""
    rows = scored.ranked(label)
    losses = scored.losses(label)[rows]
    shares: dict[str, float] = {}
    for name in scored.parameters:
        column = scored.table[name].take(pa.array(rows))
        if len(column.drop_null().unique()) > 1:
            index = bins_of(name, column, bins_for(len(rows), 20)).index(column)
            # This also counts influences that rise and fall again, and parameters that are texts.
            shares[name] = explained_share(index, losses)
    chosen = sorted(shares, key=lambda name: -shares[name])[:most]
    return tuple(name for name in shares if name in chosen)


def explained_share(index: Integers, values: Floats) -> float:
    """Return the share of the variance of ranks between bins, corrected for their number; bin -1 does not count."""
    inside = index >= 0
    n = int(inside.sum())
    _, at = np.unique(index[inside], return_inverse=True)
    counts = np.bincount(at.reshape(-1))
    if n - len(counts) < 1:
        return 0.0
    centred = ranks(values[inside]) - (n + 1) / 2
    total = float(centred @ centred)
    if total == 0:
        return 0.0
    sums = np.bincount(at.reshape(-1), weights=centred)
    # The squared correlation ratio of the ranks, eta² = H / (n - 1), with the statistic H of Kruskal and Wallis (1952).
    # More bins increase eta² also without any influence. The corrected share is Kelley's (1935) epsilon² = 1 - (1 -
    # eta²) (n - 1) / (n - k) for n values in k bins, which is 0 on average without influence and may be negative.
    eta_squared = float((sums**2 / counts).sum()) / total
    return 1 - (1 - eta_squared) * (n - 1) / (n - len(counts))


def _medians(index: Integers, n_bins: int, losses: Floats) -> Floats:
    return np.array([np.median(losses[index == i]) if (index == i).any() else np.nan for i in range(n_bins)])


def _groups(scored: ScoredSets, rows: Integers, at: Integers) -> pa.Array:
    """Return the groups of rows; null for -1."""
    groups = scored.table["group"].to_numpy()
    return pa.array([int(groups[rows[i]]) if i >= 0 else None for i in at.tolist()], pa.int32())
