"""The losses of parameter sets: a table with a row for each set, distributions, and the sets that a figure shows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

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
        """Return the finite losses of a label, or totals, in the order of the sets."""
        losses = numbers(self.table[label])
        return losses[np.isfinite(losses)]

    @cached_property
    def ranked(self) -> pa.Table:
        """The sets that have a total, the least first; of equal ones, the smaller group first."""
        losses = numbers(self.table[TOTAL])
        order = np.argsort(losses, kind="stable")
        return self.table.take(pa.array(order[np.isfinite(losses[order])]))

    def is_log(self) -> bool:
        """Tell whether the total has a logarithmic scale, in all figures: :func:`mops.figures.bins.is_log`."""
        return is_log(self.losses())

    def is_constant(self) -> bool:
        """Tell whether several sets have a total, and it is the same for all of them: none is better than another."""
        losses = self.losses()
        return len(losses) > 1 and is_constant(losses)

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
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(every, axis=0) if every else np.full(len(groups), np.nan)
    total = np.clip(total, -sys.float_info.max, sys.float_info.max)  # a very large loss is bad, and not missing
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

    title: str
    bins: Bins
    table: pa.Table  # the bins with ``n`` (int64): the sets in each
    n: int  # the sets that have this loss
    n_missing: int  # those that have run and lack it
    quantiles: tuple[float, ...] | None  # the least loss, the median and the greatest one; None: no set has this loss


def distribution(scored: ScoredSets, label: str = TOTAL) -> Distribution:
    """Return how a loss is spread over the parameter sets."""
    losses = scored.losses(label)
    bins = bins_of(label, pa.array(losses), bins_for(len(losses), 30, 0.6))
    n = np.bincount(bins.index(pa.array(losses)), minlength=len(bins)).astype(np.int64)
    table = bins.table().append_column("n", pa.array(n, pa.int64()))
    quantiles = tuple(np.quantile(losses, (0.0, 0.5, 1.0)).tolist()) if len(losses) else None
    return Distribution(scored.title(label), bins, table, len(losses), scored.n_run - len(losses), quantiles)


@dataclass(frozen=True)
class ShownSets:
    """The sets that a figure shows as points or lines: the best ones, and a part of the others."""

    title: str  # of the total
    table: pa.Table  # ``n_best + n_others`` rows with the columns of ScoredSets, the best first
    ranks: Integers  # of each row, from 1
    n_best: int  # if all losses are equal, none is best
    n_others: int  # evenly over their ranks
    n_sets: int  # all sets with a total

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


def shown_sets(scored: ScoredSets, best: int, others: int) -> ShownSets:
    """Return the ``best`` sets by their total, and ``others`` of the other sets, evenly over their ranks."""
    n = len(scored.ranked)
    best, others = (0, best + others) if scored.is_constant() else (best, others)
    n_best = min(best, n)
    n_others = min(others, n - n_best)
    spread = np.linspace(n_best, n - 1, n_others).round()
    at = np.concatenate([np.arange(n_best), spread]).astype(np.int64)
    return ShownSets(scored.title(TOTAL), scored.ranked.take(pa.array(at)), at + 1, n_best, n_others, n)
