"""The head of a report: the job in words, its result in a sentence, and what ran."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from mops.figures.columns import cell
from mops.figures.losses import TOTAL, ScoredSets
from mops.figures.profiles import MOST_PARAMETERS, telling_parameters
from mops.jobs.summary import JobSummary
from mops.report.facts import Facts
from mops.report.losses import MOST_RANKINGS, varying
from mops.storage.joblog.records import Claim, End
from mops.study.ids_and_seeds import short_id
from mops.units import counted, moment, shortened

_FIXED_SHOWN = 20


@dataclass(frozen=True)
class Answer:
    """A sentence, and the anchor of the section with its figures."""

    text: str
    anchor: str
    link: str


@dataclass(frozen=True)
class Head:
    """The head of a report."""

    summary: JobSummary
    steps: list[tuple[str, str]]  # what to do, and the command; empty: there is none
    answers: list[Answer]
    about: list[tuple[str, str]]  # names and values


def head(facts: Facts) -> Head:
    """Return the head of the report of a job."""
    steps = facts.summary.todo(facts.data.name, "--storage", facts.data.files.url)
    return Head(
        facts.summary,
        [*steps, *_next_steps(facts)],
        [*_best_set(facts), *_posterior(facts)],
        [(name, value) for name, value in _about(facts) if value],
    )


def _next_steps(facts: Facts) -> list[tuple[str, str]]:
    """Return the next command of a calibration; empty: the job is no round of one."""
    found = facts.calibration
    if found is None or not facts.has_ended:
        return []
    where = ["--storage", facts.data.files.url]
    base = ["mops", "study", "calibrate", "SPACE", "--name", found.name]
    if found.has_posterior and not found.is_rough:
        text = "Write the trials and sets of the posterior, with the space and the options of the calibration."
        return [(text, shlex.join([*base, "--to", found.name, *where]))]
    more = str(len(found.rounds) + 3)
    text = "Run more rounds, with the space and the options of the calibration."
    return [(text, shlex.join([*base, "--rounds", more, *where]))]


def _best_set(facts: Facts) -> Iterator[Answer]:
    if not facts.data.record.spec.targets or not facts.scored.n_complete:
        return
    for scored in facts.scored.criteria()[:MOST_RANKINGS]:
        yield from _best_by(scored)


def _best_by(scored: ScoredSets) -> Iterator[Answer]:
    ranked = scored.ranked
    if not (n := len(ranked)):
        return
    row = ranked.slice(0, 1).to_pylist()[0]
    title = scored.title(TOTAL) if len(scored.labels) > 1 else "loss"
    if scored.is_constant():
        text = f"All {n:,} sets with a loss have the same {title}, {cell(row[TOTAL])}, so none of them is the best."
        yield Answer(text, "losses", "Losses")
        return
    candidates = varying(scored) if n > 1 else scored.parameters
    named = telling_parameters(scored) or candidates[:MOST_PARAMETERS]
    at = ", ".join(f"{shortened(name, 30)} {shortened(cell(row[name]), 30)}" for name in named)
    where = f" at {at}" if at else ""
    more = ", and others" if at and len(named) < len(candidates) else ""
    which = "Best set" if n > 1 else "Set"
    yield Answer(f"{which} {short_id(row['param_id'])}: {title} {cell(row[TOTAL])}{where}{more}.", "losses", "Losses")


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


def _about(facts: Facts) -> Iterator[tuple[str, str]]:
    record, live, view = facts.data.record, facts.data.last_live, facts.data.view
    claims = [mark for mark in view.marks if isinstance(mark, Claim)]
    ends = [mark for mark in view.marks if isinstance(mark, End) and mark.n == view.attempt]
    yield "study", record.study_file or record.study
    yield "model", record.spec.model
    yield "targets", ", ".join(record.spec.targets)
    yield "scenario", record.spec.scenario
    yield ("fixed parameters" if record.n_groups > 1 else "parameters"), _fixed(facts)
    yield "derived from", facts.data.status.parent or ""
    yield "mixed code", ", ".join(facts.data.status.mixed_code)
    yield "submitted", moment(record.created)
    if claims:
        yield "started", _moment(claims[-1].time)
    if ends:
        yield "ended", _moment(ends[-1].time)
    yield "ran on", ", ".join(dict.fromkeys(claim.host for claim in claims))
    yield "at once", counted(live.slots, "simulation") if live and live.slots else ""
    yield "storage", facts.data.files.url


def _fixed(facts: Facts) -> str:
    """Return the parameters that have one value in all sets, with this value."""
    parameters = facts.data.parameters.next_to(())
    columns = {name: parameters[name] for name in parameters.column_names}
    fixed = [
        f"{shortened(name, 40)} = {shortened(cell(column[0].as_py()), 40)}"
        for name, column in columns.items()
        if len(column) and column.null_count == 0 and len(column.unique()) == 1
    ]
    more = f", and {len(fixed) - _FIXED_SHOWN:,} others" if len(fixed) > _FIXED_SHOWN else ""
    return f"{', '.join(fixed[:_FIXED_SHOWN])}{more}"


def _moment(at: float) -> str:
    return moment(datetime.fromtimestamp(at).astimezone().isoformat())
