"""The best loss over each parameter and each pair of parameters, and parallel coordinates of the best sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, best_in, bins_for, bins_of, cell_columns, cells, pair_bins_for
from mops.figures.columns import Floats, Integers, nullable, numbers
from mops.figures.losses import TOTAL, ScoredSets, ShownSets, shown_sets
from mops.figures.sensitivity import ranks

MOST_PARAMETERS = 6
MOST_AXES = 12


@dataclass(frozen=True)
class Profile:
    """The best loss in each bin of a parameter."""

    title: str  # of the loss
    bins: Bins
    # The bins with ``n`` (int64): their sets; ``best`` and ``median`` (float64): the least loss and the median, null
    # without sets; ``group`` (int32): the set with the least loss.
    table: pa.Table
    n: int  # the sets in the bins
    n_missing: int  # those that have the loss and no value of the parameter
    is_log: bool  # whether the loss needs a logarithmic scale


def profile(scored: ScoredSets, parameter: str) -> Profile:
    """Return the best loss in each bin of a parameter. The bins are those of all sets that have the loss."""
    ranked = scored.ranked
    bins = bins_of(parameter, ranked[parameter], bins_for(len(ranked), 20))
    index = bins.index(ranked[parameter])
    is_inside = index >= 0
    index, losses, groups = index[is_inside], numbers(ranked[TOTAL])[is_inside], ranked["group"].to_numpy()[is_inside]
    n, best, at = best_in(index, len(bins), losses)
    medians = [np.median(losses[index == i]) if n[i] else np.nan for i in range(len(bins))]
    table = bins.table()
    table = table.append_column("n", pa.array(n))
    table = table.append_column("best", nullable(best))
    table = table.append_column("median", nullable(np.array(medians)))
    table = table.append_column("group", pa.array(groups).take(pa.array(at, mask=at < 0)))
    n_missing = len(ranked) - len(losses)
    return Profile(scored.title(TOTAL), bins, table, len(losses), n_missing, scored.is_log())


@dataclass(frozen=True)
class Pairs:
    """The best loss over each pair of parameters."""

    title: str  # of the loss
    parameters: tuple[str, ...]  # at most 6: those that telling_parameters chooses, in their order
    left_out: tuple[str, ...]  # the others; those with one value in all sets are never shown
    bins: dict[str, Bins]
    # Of each pair, a row for each cell with sets: ``x``, ``y`` (string: the parameters), ``x_bin``, ``y_bin`` (int32),
    # ``n`` (int64: sets), ``best`` (float64: the least loss), ``group`` (int32: its set).
    cells: dict[tuple[str, str], pa.Table]
    n_sets: int  # with the loss


def pairs(scored: ScoredSets, parameters: Sequence[str]) -> Pairs:
    """Return the best loss over each pair of these parameters."""
    ranked = scored.ranked
    losses, groups = numbers(ranked[TOTAL]), ranked["group"].to_numpy()
    bins = {name: bins_of(name, ranked[name], pair_bins_for(len(ranked))) for name in parameters}
    index = {name: of.index(ranked[name]) for name, of in bins.items()}
    found = {}
    for x, y in combinations(parameters, 2):
        n_x, n_y = len(bins[x]), len(bins[y])
        rows, cell = cells(index[x], index[y], n_x, n_y)
        n, best, at = best_in(cell, n_x * n_y, losses[rows])
        full = np.flatnonzero(n)
        group = pa.array(groups[rows[at[full]]])
        of_cells = {"n": pa.array(n[full]), "best": nullable(best[full]), "group": group}
        found[x, y] = pa.table(cell_columns(bins[x], bins[y], full) | of_cells)
    left_out = tuple(name for name in scored.parameters if name not in parameters)
    return Pairs(scored.title(TOTAL), tuple(parameters), left_out, bins, found, len(ranked))


@dataclass(frozen=True)
class Parallel:
    """The lines and axes of parallel coordinates."""

    sets: ShownSets
    # An axis for each parameter, then for the loss: its bins have the kind of the scale (``values`` of texts, ``log``
    # or ``linear``), and their ends are the ends of the axis.
    axes: tuple[Bins, ...]
    # those with one value in all sets, and those beyond 12 that telling_parameters does not choose
    left_out: tuple[str, ...]


def parallel(scored: ScoredSets, best: int, others: int) -> Parallel:
    """Return parallel coordinates of the ``best`` sets and ``others`` of the other ones."""
    shown, ranked = telling_parameters(scored, MOST_AXES), scored.ranked
    axes = tuple(bins_of(name, ranked[name]) for name in (*shown, TOTAL))
    left_out = tuple(name for name in scored.parameters if name not in shown)
    return Parallel(shown_sets(scored, best, others), axes, left_out)


def telling_parameters(scored: ScoredSets, most: int = MOST_PARAMETERS) -> tuple[str, ...]:
    """Return the parameters that tell most about the loss, in their order."""
    ranked = scored.ranked
    shares: dict[str, float] = {}
    for name in scored.parameters:
        column = ranked[name]
        if len(column.drop_null().unique()) > 1:
            index = bins_of(name, column, bins_for(len(ranked), 20)).index(column)
            # This also counts influences that rise and fall again, and parameters that are texts.
            shares[name] = explained_share(index, numbers(ranked[TOTAL]))
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
