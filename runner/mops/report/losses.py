"""The losses: the best sets, how losses are spread, and how they depend on the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from mops.figures import charts
from mops.figures.columns import cell
from mops.figures.losses import TOTAL, ScoredSets, distribution, named
from mops.figures.profiles import Parallel, pairs, parallel, profile, telling_parameters
from mops.report.content import Block, Figure, Gallery, Section, csv_address
from mops.report.facts import Facts
from mops.study.ids_and_seeds import short_id
from mops.units import counted, shortened

MOST_RANKINGS = 3  # how many losses rank the sets in a report, if several have no weights

_ROWS_SHOWN = 20
_PAIR_PARAMETERS = 4
_EQUAL = 0.02  # of the greatest loss shown: a smaller spread is no bar
_DISTRIBUTIONS = 6
_COLUMNS_OF_LOSSES = 6
_FEWEST_BEST, _MOST_BEST, _OTHERS = 20, 100, 400  # sets that are lines


def losses(facts: Facts) -> Section | None:
    """Return the section about losses; None: the study has no targets."""
    if not facts.data.record.spec.targets:
        return None
    scored, n = facts.scored, facts.scored.n_complete
    if not n:
        return Section(
            "losses", "Losses", [Block("note", f"No parameter set has all losses{'' if facts.has_ended else ' yet'}.")]
        )
    parts = [] if scored.has_total else _without_weights(scored)
    for one in scored.criteria()[:MOST_RANKINGS]:
        parts += _ranked(one, has_distributions=scored.has_total)
    return Section("losses", "Losses", parts, _intro(facts))


def by_loss(scored: ScoredSets) -> str:
    """Return which of several losses ranks the sets; empty: there is no choice."""
    of_several = len(scored.labels) > 1 and scored.weights is not None and len(scored.weights) == 1
    return f" by {shortened(scored.title(TOTAL), 40)}" if of_several else ""


def _without_weights(scored: ScoredSets) -> list[Gallery | Block]:
    """Say that each loss ranks the sets, and show how each is spread."""
    names = ", ".join(shortened(label, 40) for label in scored.labels)
    weights = " ".join(f"--weight {label}=1" for label in scored.labels[:MOST_RANKINGS])
    text = f"Each loss ranks the sets, because the losses have no weights: {names}."
    if len(scored.labels) > MOST_RANKINGS:
        text += f" The rankings of the first {MOST_RANKINGS} are below; --target shows those of one target."
    text += f" To rank by a weighted sum, add weights to the command of the report, such as {weights}."
    return [
        Block("note", text),
        Gallery([_distribution(scored, label) for label in scored.shown_labels[:_DISTRIBUTIONS]]),
    ]


def _ranked(scored: ScoredSets, *, has_distributions: bool) -> list[Gallery | Block]:
    """Return the figures of one ranking."""
    n = len(scored.ranked)
    if not n:
        return [Block("note", f"No parameter set has the {named(scored.title(TOTAL))}.")]
    lines = parallel(scored, best=min(max(n // 10, _FEWEST_BEST), _MOST_BEST), others=_OTHERS)
    labels = scored.shown_labels[:_DISTRIBUTIONS] if has_distributions else ()
    figures = [_distribution(scored, label) for label in labels]
    shown = telling_parameters(scored)
    by = by_loss(scored)
    for name in shown:
        found = profile(scored, name)
        figures.append(Figure(charts.profile(found, by=by), found.table))
    crossed = pairs(scored, telling_parameters(scored, _PAIR_PARAMETERS))
    parts: list[Gallery | Block] = []
    if len(lines.axes) > 1:
        parts.append(Block("parallel", _parallel(lines, by)))
    parts.append(Block("ranking", _ranking(scored, lines)))
    if n > 1 and figures:
        parts.append(Gallery(figures))
    parts += _not_shown(scored, shown, crossed.parameters)
    if len(crossed.parameters) > 1:
        drawn = [charts.pair(scored, crossed, x, y) for x, y in combinations(crossed.parameters, 2)]
        parts.append(Gallery([Figure(chart, data, height=260) for chart, data in drawn]))
    return parts


def _intro(facts: Facts) -> str:
    """Say how many sets have all losses, of those that have run."""
    scored, n, n_run, n_all = facts.scored, facts.scored.n_complete, facts.scored.n_run, facts.data.record.n_groups
    title = f"The {named(scored.title(TOTAL))} says" if scored.has_total else "The losses say"
    text = f"{title} how far a set is from the data: less is better."
    run = "" if n_run == n_all else " that have run"
    text = f"{text} {_scored_of_all(n, n_run, run, len(scored.labels))}"
    if n_run == n_all:
        return text
    return f"{text} {n_run:,} of {counted(n_all, 'set')} have run{'' if facts.has_ended else ' so far'}."


def _scored_of_all(n: int, n_run: int, run: str, n_losses: int) -> str:
    losses = "all losses" if n_losses > 1 else "a loss"
    if n == n_run:
        return f"All {n:,} parameter sets{run} have {losses}." if n > 1 else f"One parameter set has {losses}."
    have, missing = "has" if n == 1 else "have", n_run - n
    lack = "lacks" if missing == 1 else "lack"
    return f"{n:,} of {counted(n_run, 'parameter set')}{run} {have} {losses}; {missing:,} {lack} one."


def _not_shown(scored: ScoredSets, profiles: Sequence[str], crossed: Sequence[str]) -> list[Gallery | Block]:
    """Return a note that names the parameters without a profile or without pairs, and says how mops chooses."""
    texts = [
        f"{what}: {', '.join(shortened(name, 40) for name in missing)}."
        for what, shown in (("Without a profile", profiles), ("Without pairs", crossed))
        if (missing := [name for name in varying(scored) if name not in shown])
    ]
    chosen = "The figures have the parameters whose bins explain most of the variance of the ranks of the loss."
    return [Block("note", " ".join([chosen, *texts]))] if texts else []


def varying(scored: ScoredSets) -> list[str]:
    """Return the parameters with several values in the sets that have all losses."""
    rows = scored.ranked
    return [name for name in scored.parameters if len(rows[name].drop_null().unique()) > 1]


def _ranking(scored: ScoredSets, lines: Parallel) -> dict[str, Any]:
    labels = [label for label in scored.labels if label != scored.title(TOTAL)][:_COLUMNS_OF_LOSSES]
    names = [axis.name for axis in lines.axes if axis.name != TOTAL]
    rows = lines.sets.table.to_pylist()
    shown = [row[TOTAL] for row in rows[:_ROWS_SHOWN]]
    least, most = min(shown), max(shown)
    has_meters = most - least > _EQUAL * abs(most)
    return {
        "by": by_loss(scored),
        "head": [scored.title(TOTAL), *names, *labels],
        "rows": [
            {
                "group": row["group"],
                "rank": rank,
                "id": short_id(row["param_id"]),
                "meter": 100 * (row[TOTAL] - least) / (most - least) if has_meters else None,
                "cells": [cell(row[name]) for name in (TOTAL, *names, *labels)],
            }
            for rank, row in zip(lines.sets.ranks.tolist(), rows, strict=True)
        ],
        "shown": _ROWS_SHOWN,
        "has_meters": has_meters,
        "csv": csv_address(lines.sets.table_with_ranks),
        "n": lines.sets.n_sets,
    }


def _parallel(lines: Parallel, by: str) -> dict[str, Any]:
    n_shown, n = lines.sets.n_best + lines.sets.n_others, lines.sets.n_sets
    note = f" The page has only {n_shown:,} of the sets." if n_shown < n else ""
    data = lines.sets.table_with_ranks
    figure = Figure(charts.parallel(lines, by), data, "whole", 330, note, is_live=True)
    return {"figure": figure, "n": n, "file": f"sets{by.replace(' ', '-')}.csv"}


def _distribution(scored: ScoredSets, label: str) -> Figure:
    found = distribution(scored, label)
    return Figure(charts.distribution(found), found.table)
