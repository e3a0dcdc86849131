"""The losses of parameter sets: a table with a row for each set, distributions, and the sets that a figure shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mops.figures.bins import Bins, bins_for, bins_of, is_constant, is_log
from mops.figures.columns import Floats, Integers, nullable, numbers
from mops.units import counted

TOTAL = "loss"  # the column with the loss by which sets are ranked: the only one, or the weighted sum

_SUM = "weighted sum of losses"


@dataclass(frozen=True)
class ScoredSets:
    """The parameter sets of a job that have a loss, with their losses and parameters."""

    # A row for each set, sorted by group: ``param_id`` (string), ``group`` (int32), ``loss`` (float64; null if the set
    # lacks a loss, and in all rows if not ``has_total``), a column for each label (float64; null: the set lacks it),
    # then a column for each parameter (a parameter with the name of another column is called ``param.NAME``).
    table: pa.Table
    labels: tuple[str, ...]  # as in ``Job.best``
    parameters: tuple[str, ...]
    sets_run: int | None = None  # also those without any loss; None: as many as have a loss
    weights: Mapping[str, float] | None = None  # of each loss that counts in ``loss``; None: none was given

    @property
    def has_total(self) -> bool:
        """Whether one number ranks the sets. Several losses without weights may have different units, and no sum."""
        return len(self.labels) == 1 or self.weights is not None

    def criteria(self) -> list[ScoredSets]:
        """Return these sets for each ranking: one if there is a total, else one for each loss, which is its total."""
        return [self] if self.has_total else [self.only(label) for label in self.labels]

    def only(self, label: str) -> ScoredSets:
        """Return these sets with one loss as their total."""
        table = self.table.set_column(self.table.column_names.index(TOTAL), TOTAL, self.table[label])
        return replace(self, table=table, weights={label: 1.0})

    @property
    def n_complete(self) -> int:
        """The number of sets that have all losses."""
        lacks = [np.isnan(numbers(self.table[label])) for label in self.labels]
        return int((~np.any(lacks, axis=0)).sum()) if lacks else 0

    @property
    def n_run(self) -> int:
        """The number of sets that have run."""
        return len(self.table) if self.sets_run is None else self.sets_run

    def losses(self, label: str = TOTAL) -> Floats:
        """Return the losses of a label, or their sum; NaN: the set lacks it."""
        return numbers(self.table[label])

    def ranked(self, label: str = TOTAL) -> Integers:
        """Return the rows that have this loss, the least loss first; of equal losses, the smaller group first."""
        losses = self.losses(label)
        order = np.argsort(losses, kind="stable")
        return order[np.isfinite(losses[order])]

    def is_log(self, label: str = TOTAL) -> bool:
        """Tell whether a loss has a logarithmic scale, in all figures: :func:`mops.figures.bins.is_log`."""
        losses = self.losses(label)
        return is_log(losses[np.isfinite(losses)])

    def is_constant(self, label: str = TOTAL) -> bool:
        """Tell whether several sets have this loss, and it is the same for all of them: none is better than another."""
        losses = self.losses(label)
        finite = losses[np.isfinite(losses)]
        return len(finite) > 1 and is_constant(finite)

    @property
    def shown_labels(self) -> tuple[str, ...]:
        """The total, if there is one, then each loss that is not the total."""
        counts = tuple(self.weights) if self.weights is not None else self.labels
        others = tuple(label for label in self.labels if counts != (label,))
        return (TOTAL, *others) if self.has_total else others

    def title(self, label: str) -> str:
        """Return what a label is called in figures."""
        if label != TOTAL:
            return label
        counts = tuple(self.weights) if self.weights is not None else self.labels
        return _SUM if len(counts) > 1 else "".join(counts) or "loss"


def named(title: str) -> str:
    """Return a title of a loss in a sentence: ``weighted sum of losses``, ``loss 'fit'``."""
    return title if title in (_SUM, "loss") else f"loss {title!r}"


def wide_losses(
    losses: pa.Table, labels: Mapping[str, tuple[str, str]], weights: Mapping[str, float] | None = None
) -> pa.Table:
    """Return the table of ScoredSets without the parameters."""
    # ``losses``: the columns ``param_id``, ``group``, ``target``, ``name`` and ``loss``
    # ``labels``: the target and the name of each label
    groups, first = np.unique(losses["group"].to_numpy(), return_index=True)
    at = np.searchsorted(groups, losses["group"].to_numpy())
    targets, names = losses["target"].to_numpy(), losses["name"].to_numpy()
    values = numbers(losses["loss"])
    of_label: dict[str, Floats] = {}
    for label, (target, name) in labels.items():
        rows = (targets == target) & (names == name)
        column = np.full(len(groups), np.nan)
        column[at[rows]] = values[rows]
        of_label[label] = column
    counts = weights if weights is not None else dict.fromkeys(labels, 1.0) if len(labels) == 1 else {}
    # A set that lacks any loss has no total, also if the loss that it lacks has no weight.
    every = [counts.get(label, 0.0) * column for label, column in of_label.items()] if counts else []
    total = np.sum(every, axis=0) if every else np.full(len(groups), np.nan)
    columns = {
        "param_id": losses["param_id"].take(pa.array(first)),
        "group": pa.array(groups, pa.int32()),
        TOTAL: nullable(total),
        **{label: nullable(column) for label, column in of_label.items()},
    }
    return pa.table(columns)


@dataclass(frozen=True)
class Distribution:
    """How one loss is spread over the parameter sets."""

    label: str  # ``loss``: the total
    title: str
    bins: Bins
    table: pa.Table  # the bins with ``n`` (int64): the sets in each
    n: int  # the sets that have this loss
    n_missing: int  # those that have run and lack it
    # The least loss, the quantiles 25 %, 50 % and 75 % (linear between values), and the greatest loss. None: no set has
    # this loss.
    quantiles: tuple[float, float, float, float, float] | None


def distribution(scored: ScoredSets, label: str = TOTAL, most: int | None = None) -> Distribution:
    """Return how a loss is spread over the parameter sets, in at most ``most`` bins; None: by the number of sets."""
    losses = scored.losses(label)
    finite = losses[np.isfinite(losses)]
    bins = bins_of(label, pa.array(finite), most or bins_for(len(finite), 30, 0.6))
    n = np.bincount(bins.index(pa.array(finite)), minlength=len(bins)).astype(np.int64)
    table = bins.table().append_column("n", pa.array(n, pa.int64()))
    spread = np.quantile(finite, (0.0, 0.25, 0.5, 0.75, 1.0)).tolist() if len(finite) else None
    quantiles = None if spread is None else (spread[0], spread[1], spread[2], spread[3], spread[4])
    n_missing = scored.n_run - len(finite)
    return Distribution(label, scored.title(label), bins, table, len(finite), n_missing, quantiles)


@dataclass(frozen=True)
class ShownSets:
    """The sets that a figure shows as points or lines: the best ones, and a part of the others."""

    label: str
    title: str
    table: pa.Table  # ``n_best + n_others`` rows with the columns of ScoredSets, the best first
    ranks: Integers  # of each row, from 1
    n_best: int  # if all losses are equal, none is best
    n_others: int  # evenly over their ranks
    n_sets: int  # all sets with this loss
    is_log: bool  # whether the loss needs a logarithmic scale

    @property
    def table_with_ranks(self) -> pa.Table:
        """The table with the ranks in its first column: ``rank``, or ``set.rank`` if another column has this name."""
        name = "rank"
        while name in self.table.column_names:
            name = f"set.{name}"
        return self.table.add_column(0, name, pa.array(self.ranks))

    @property
    def caption(self) -> str:
        """Which sets the figure shows."""
        shown = f"The {counted(self.n_best, 'set')} with the least {named(self.title)}"
        if self.n_best + self.n_others == self.n_sets:
            every = f"All {self.n_sets:,} parameter sets" if self.n_sets > 1 else "The parameter set"
            return f"{every} with the {named(self.title)}."
        if not self.n_others:
            return f"{shown}, of {self.n_sets:,}."
        if not self.n_best:
            return f"{self.n_others:,} of {self.n_sets:,} parameter sets, which have the same {named(self.title)}."
        others = self.n_sets - self.n_best
        return f"{shown}, and {self.n_others:,} of the other {others:,}, evenly over their ranks."


def shown_sets(scored: ScoredSets, label: str = TOTAL, best: int = 100, others: int = 400) -> ShownSets:
    """Return the ``best`` sets by a loss, and ``others`` of the other sets, evenly over their ranks."""
    order = scored.ranked(label)
    best, others = (0, best + others) if scored.is_constant(label) else (best, others)
    n_best, n_rest = min(best, len(order)), max(len(order) - best, 0)
    n_others = min(others, n_rest)
    spread = (
        np.linspace(n_best, len(order) - 1, n_others).round().astype(np.int64) if n_others else np.empty(0, np.int64)
    )
    at = np.concatenate([np.arange(n_best), spread]).astype(np.int64)
    table = scored.table.take(pa.array(order[at]))
    return ShownSets(label, scored.title(label), table, at + 1, n_best, n_others, len(order), scored.is_log(label))
