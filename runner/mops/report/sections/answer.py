"""The result of a job in a sentence: its best set, and the state of its calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from mops.figures.losses import TOTAL, ScoredSets
from mops.figures.profiles import MOST_PARAMETERS, telling_parameters
from mops.report.damage import READING_FAULTS, damage_of
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.report.sections.losses import MOST_RANKINGS
from mops.study.ids_and_seeds import short_id
from mops.units import shortened


@dataclass(frozen=True)
class Answer:
    """A sentence, and the anchor of the section with its figures."""

    text: str
    anchor: str
    link: str


def answers(facts: Facts) -> list[Answer]:
    """Return the result in sentences; empty: there are no losses, or they cannot be read, as their section says."""
    try:
        return [*_best_set(facts), *_posterior(facts)]
    except READING_FAULTS as fault:
        damage_of(facts.data, fault)  # raises a fault of another kind
        return []


def _best_set(facts: Facts) -> Iterator[Answer]:
    if not facts.data.record.spec.targets or not facts.scored.n_complete:
        return
    for scored in facts.scored.criteria()[:MOST_RANKINGS]:
        yield from _best_by(scored)


def _best_by(scored: ScoredSets) -> Iterator[Answer]:
    if not (n := len(scored.ranked())):
        return
    row = scored.table.slice(int(scored.ranked()[0]), 1).to_pylist()[0]
    title = scored.title(TOTAL) if len(scored.labels) > 1 else "loss"
    if scored.is_constant():
        text = f"All {n:,} sets with a loss have the same {title}, {cell(row[TOTAL])}, so none of them is the best."
        yield Answer(text, "losses", "Losses")
        return
    candidates = _varying(scored) if n > 1 else scored.parameters
    named = telling_parameters(scored) or candidates[:MOST_PARAMETERS]
    at = ", ".join(f"{shortened(name, 30)} {shortened(cell(row[name]), 30)}" for name in named)
    where = f" at {at}" if at else ""
    more = ", and others" if at and len(named) < len(candidates) else ""
    which = "Best set" if n > 1 else "Set"
    yield Answer(f"{which} {short_id(row['param_id'])}: {title} {cell(row[TOTAL])}{where}{more}.", "losses", "Losses")


def _varying(scored: ScoredSets) -> list[str]:
    """Return the parameters with several values in the sets that have all losses."""
    rows = scored.table.take(pa.array(scored.ranked()))
    return [name for name in scored.parameters if len(rows[name].drop_null().unique()) > 1]


def _posterior(facts: Facts) -> Iterator[Answer]:
    found = facts.calibration
    if found is None or not found.has_weights:
        return
    size = f"The posterior of calibration {found.name} has an effective sample size of {found.ess:.3g}"
    if found.is_rough:
        advice = f"less than the {found.least_ess:g} wanted, so its intervals are rough: run more rounds"
    else:
        advice = "enough for a usable posterior"
    yield Answer(f"{size}, {advice}.", "calibration", "Calibration")
