"""Parallel coordinates: the sets with the least loss and a part of the others, with an axis for each parameter."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mops.figures.bins import Bins, bins_of
from mops.figures.losses import TOTAL, ScoredSets, ShownSets, shown_sets
from mops.figures.profiles import telling_parameters

MOST_AXES = 12


@dataclass(frozen=True)
class Parallel:
    """The lines and axes of parallel coordinates."""

    sets: ShownSets
    # An axis for each parameter, then for the loss: its bins have the kind of the scale (``values`` of texts, ``log``
    # or ``linear``), and their ends are the ends of the axis.
    axes: tuple[Bins, ...]
    # those with one value in all sets, and those beyond 12 that telling_parameters does not choose
    left_out: tuple[str, ...]


def parallel(scored: ScoredSets, label: str = TOTAL, best: int = 100, others: int = 400) -> Parallel:
    """Return parallel coordinates of the ``best`` sets and ``others`` of the other ones."""
    shown = telling_parameters(scored, label, MOST_AXES)
    rows = scored.table.take(pa.array(scored.ranked(label)))
    axes = tuple(bins_of(name, rows[name]) for name in (*shown, label))
    left_out = tuple(name for name in scored.parameters if name not in shown)
    return Parallel(shown_sets(scored, label, best, others), axes, left_out)
