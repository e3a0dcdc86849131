"""The losses of a job in a few numbers: how each is spread, and the best parameter sets."""

from __future__ import annotations

from dataclasses import dataclass

from mops.figures.losses import TOTAL, ScoredSets, distribution, shown_sets
from mops.jobs.data import JobData
from mops.jobs.plots.figure_data import scored_without_parameters

# mops reads all losses for a summary. Up to this number, that takes less time than the start of the command.
MOST_LOSSES = 100_000


@dataclass(frozen=True)
class LossSpread:
    """The smallest, the middle and the largest of one loss."""

    label: str  # the loss; `loss`: the only one
    title: str  # what the table calls the loss
    n: int  # the number of parameter sets that have the loss
    least: float
    median: float
    greatest: float


@dataclass(frozen=True)
class BestSet:
    """A parameter set with one of the smallest losses."""

    param_id: str
    group: int
    loss: float
    ranked_by: str  # the title of the loss


@dataclass(frozen=True)
class LossSummary:
    """The committed losses of a job."""

    n_losses: int
    spreads: list[LossSpread] | None  # each loss; None: the job has more than `MOST_LOSSES` losses
    best: list[BestSet] | None  # by the first loss, the best first, then those by the next one; None as for `spreads`


def loss_summary_of(data: JobData, n_best: int = 5, most_losses: int = MOST_LOSSES) -> LossSummary:
    """Return the summary of a job's losses; it reads the losses only if there are at most ``most_losses``."""
    n_losses = data.dataset("losses").count_rows()
    if n_losses > most_losses:
        return LossSummary(n_losses, None, None)
    scored = scored_without_parameters(data)
    spreads = [spread for label in scored.shown_labels if (spread := _spread(scored, label))]
    return LossSummary(n_losses, spreads, [best for one in scored.criteria() for best in _best(one, n_best)])


def _best(scored: ScoredSets, n: int) -> list[BestSet]:
    rows = shown_sets(scored, TOTAL, n, 0).table.select(["param_id", "group", TOTAL]).to_pylist()
    return [BestSet(row["param_id"], row["group"], row[TOTAL], scored.title(TOTAL)) for row in rows]


def _spread(scored: ScoredSets, label: str) -> LossSpread | None:
    found = distribution(scored, label)
    if found.quantiles is None:
        return None
    least, _, median, _, greatest = found.quantiles
    return LossSpread(label, found.title, found.n, least, median, greatest)
