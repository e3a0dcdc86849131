"""What ``mops jobs status`` prints of losses: a row for each, and a bar for each of the best parameter sets."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from mops.cli import job_text, terminal
from mops.cli.job_screen import bar
from mops.jobs.status import JobState, Status
from mops.study.ids_and_seeds import short_id

if TYPE_CHECKING:
    from mops.jobs.figure_data import BestSet, LossSpread, LossSummary

_BAR_COLUMNS = 24
_LEAST_WIDTH_WITH_BARS = 60


def loss_fields(job: JobState, now: Status, summary: LossSummary | None) -> Iterator[tuple[str, str]]:
    """Yield the number of losses, or the command that shows them; None: the user did not ask for a summary."""
    if summary is None:
        if now.counts.targets_good:
            yield "losses", f"{job_text.command('status', job)} --losses"
    elif summary.spreads is None:
        yield "losses", f"{summary.n_losses:,}, too many to summarize here"
        yield "best sets", f"{job_text.command('results', job)} --best 5"
    else:
        yield "losses", f"{summary.n_losses:,}"


def print_losses(spreads: Sequence[LossSpread], best: Sequence[BestSet]) -> None:
    """Print a row for each loss, then a row for each of the best parameter sets by each loss."""
    head = ("loss", "sets", "least", "median", "greatest")
    rows = [(one.title, f"{one.n:,}", *map(_number, (one.least, one.median, one.greatest))) for one in spreads]
    terminal.data("")
    terminal.data_table(head, rows, right=head[1:])
    for _, ranked in itertools.groupby(best, lambda one: one.ranked_by):
        terminal.data("")
        _print_best(list(ranked))
    if not best:
        terminal.data("")
        terminal.data("no parameter set has a loss")


def _print_best(best: Sequence[BestSet]) -> None:
    low, high = min(0.0, best[0].loss), best[-1].loss  # a zero far above all losses would leave every bar empty
    head = ["best sets", best[0].ranked_by]
    rows = [[short_id(one.param_id), _number(one.loss)] for one in best]
    if _has_bars():
        head.append(f"{_number(low)} to {_number(high)}")
        for row, one in zip(rows, best, strict=True):
            row.append(bar(_share(one.loss, low, high), _BAR_COLUMNS))
    terminal.data_table(head, rows, right=[best[0].ranked_by])


def _share(loss: float, low: float, high: float) -> float:
    """Return where a loss is between two numbers, as a part of 1. Their difference may be too large for a float."""
    return (loss / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0


def _has_bars() -> bool:
    console = Console()
    is_wide = not sys.stdout.isatty() or console.width >= _LEAST_WIDTH_WITH_BARS
    return is_wide and not console.options.ascii_only


def _number(value: float) -> str:
    return f"{value:.4g}"
