"""What ran, where, for how long, what failed, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mops.jobs.following.wait import cause_of
from mops.jobs.status import ALL_FAILED
from mops.report.content import Tile
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.report.sections.answer import Answer, answers
from mops.report.tones import Tone, tone_of
from mops.storage.joblog.records import Claim
from mops.units import bytes_text, counted, duration, moment, rate, shortened

# The states that a report calls otherwise.
_STATES = {"submitted": "not started", "cancelled": "stopped", "partial": "finished with failures"}

_ADVICE = {
    "error": "Repair the code{place}.",
    "invalid_output": "Repair what the code returns{place}.",
    "timeout": "Give simulations more time with MODELOPS_JOB_SIM_TIMEOUT, or find out why these are slow.",
    "oom": "Give simulations more memory with MODELOPS_JOB_SIM_MEMORY, or run fewer at the same time.",
    "crashed": "Run one of these simulations alone, to see where its process dies.",
    "lost": "Check the memory and the logs of the workers on which these simulations ran.",
}
_CHANGED_BY_CODE = ("error", "invalid_output", "crashed")
_CHANGED_BY_LIMIT = ("timeout", "oom")
_HEADLINE_CHARACTERS = 300
_FIXED_SHOWN = 20


@dataclass(frozen=True)
class Step:
    """One thing to do, and the command for it; empty: there is none."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    """The head of a report."""

    state: str
    tone: Tone
    headline: str
    answers: list[Answer]
    segments: list[tuple[str, int, str]]  # the parts of the progress bar: class, number and text
    total: int
    tiles: list[Tile]
    steps: list[Step]
    about: list[tuple[str, str]]  # names and values


def verdict(facts: Facts) -> Verdict:
    """Return the head of the report of a job."""
    state = facts.status.state
    return Verdict(
        state=ALL_FAILED if facts.status.all_failed else _STATES.get(state, state),
        tone=tone_of(state, facts.status.counts.simulations, facts.status.counts.simulations_failed),
        headline=_headline(facts),
        answers=answers(facts),
        segments=_segments(facts),
        total=max(facts.status.n_simulations, 1),
        tiles=list(_tiles(facts)),
        steps=list(_steps(facts)),
        about=[(name, value) for name, value in _about(facts) if value],
    )


def command(facts: Facts, verb: str, *more: str) -> str:
    """Return a command for the job. It names the storage, because a report is read anywhere."""
    return shlex.join(["mops", "jobs", verb, facts.data.name, *more, "--storage", facts.data.files.url])


def percent_of(n: int, of: int) -> str:
    """Return a part of a number in percent: 100 % only if it is all of it, and never 0 %."""
    percent = 100 * n / of
    if percent < 1:
        return "less than 1 %"
    return "more than 99 %" if n < of and percent > 99 else f"{percent:.0f} %"


def _headline(facts: Facts) -> str:
    state, counts, total = facts.status.state, facts.status.finished, facts.status.n_simulations
    done = f"{counts.simulations:,} of {counted(total, 'simulation')}"
    is_whole = facts.status.attempt == 1  # `seconds` are those of the last attempt
    after = f" after {duration(facts.status.seconds)}" if is_whole and facts.status.seconds is not None else ""
    if state == "succeeded":
        return f"Finished{after}. All {counted(total, 'simulation')} are good."
    if facts.status.all_failed:
        return f"{ALL_FAILED.capitalize()}{_first_cause(facts)}."
    if state == "partial":
        return f"Finished{after}. {_failed(facts)}"
    if state == "running":
        return f"{done} have finished{after}{_left(facts)}. {_failed(facts)}".strip()
    if state == "failed":
        _, cause = cause_of(facts.data.files, facts.data.record.paths, facts.status.attempt)
        why = shortened(cause, _HEADLINE_CHARACTERS).rstrip(".")
        return f"The job stopped{after}{': ' if why else ''}{why}. {done} have finished."
    if state == "submitted":
        return f"{counted(total, 'simulation')} wait for a runner."
    return f"{done} have finished{after}. The others have not run. {_failed(facts)}".strip()


def _first_cause(facts: Facts) -> str:
    if not isinstance(facts.causes, list) or not facts.causes:
        return ""
    first = facts.causes[0]
    place = f" at {first['place']}" if first["place"] else ""
    return f": {shortened(first['cause'], _HEADLINE_CHARACTERS).rstrip('.')}{place}"


def _failed(facts: Facts) -> str:
    """Say what failed: first the sets, then simulations and scores."""
    failures = _failures(facts)
    lacking = facts.n_without_loss
    if not failures or not lacking:
        return failures
    n_run = facts.scored.n_run
    lack = "lacks" if lacking == 1 else "lack"
    return f"{lacking:,} of {counted(n_run, 'parameter set')} ({percent_of(lacking, n_run)}) {lack} a loss. {failures}"


def _failures(facts: Facts) -> str:
    counts = facts.status.finished
    n_scores = counts.scores_failed
    if counts.simulations_failed:
        percent = percent_of(counts.simulations_failed, counts.simulations)
        scores = f", and {counted(n_scores, 'score')} of targets" if n_scores > 0 else ""
        return f"{counted(counts.simulations_failed, 'simulation')} failed ({percent}){scores}."
    return f"{counted(n_scores, 'score')} of targets failed, and no simulation." if n_scores > 0 else ""


def _left(facts: Facts) -> str:
    text = facts.status.to_go(facts.data.time_s)
    return f", {text}" if text else ""


def _segments(facts: Facts) -> list[tuple[str, int, str]]:
    counts = facts.status.finished
    left = facts.status.n_simulations - counts.simulations
    parts = [
        ("good", counts.simulations_good, "good"),
        ("failed", counts.simulations_failed, "failed"),
        ("left", left, "not run" if facts.has_ended else "to run"),
    ]
    return [part for part in parts if part[1] > 0]


def _tiles(facts: Facts) -> Iterator[Tile]:
    status, counts, live = facts.status, facts.status.finished, facts.data.last_live
    yield Tile("parameter sets", f"{status.groups:,}", f"of {status.n_groups:,} committed")
    yield Tile("simulations", f"{counts.simulations:,}", f"{counts.simulations_failed:,} failed")
    if counts.targets_good or counts.targets_failed:
        yield Tile("scores of targets", f"{counts.targets_good:,}", counts.targets_text.partition(" scored, ")[2])
    if status.seconds is not None:
        attempts = "in one attempt" if status.attempt == 1 else f"in the last of {status.attempt} attempts"
        yield Tile("run time", duration(status.seconds), attempts)
        if status.attempt == 1 and not status.parent and counts.simulations and status.seconds:
            now = f"now {rate(live.rate)}" if status.live and live and live.rate else "on average"
            yield Tile("simulations per second", rate(counts.simulations / status.seconds), now)
    if status.peak_bytes:
        note = "all processes of the runner"
        if live is not None and live.limit_bytes:
            note = f"of {bytes_text(live.limit_bytes)} on {live.host}"
        yield Tile("peak memory", bytes_text(status.peak_bytes), note)


def _steps(facts: Facts) -> Iterator[Step]:
    state = facts.status.state
    if state == "failed":
        yield Step("Read why the job stopped.", command(facts, "logs", "--tail", "50"))
        yield Step("After the repair, run the rest.", command(facts, "resume"))
    elif state in ("interrupted", "cancelled", "submitted"):
        yield Step("Run the rest." if state != "submitted" else "Start the job.", command(facts, "resume"))
    elif state == "running":
        yield Step("Follow the job.", command(facts, "watch"))
    if isinstance(facts.causes, list) and facts.causes:
        yield from _repairs(facts, facts.causes)
    if state in ("succeeded", "partial") and not facts.status.all_failed:
        yield Step("Write the results to files.", command(facts, "results", "--to", "FOLDER"))


def _repairs(facts: Facts, causes: list[dict[str, Any]]) -> Iterator[Step]:
    first = causes[0]
    place = f" at {first['place']}" if first["place"] else ""
    yield Step(f"Most frequent failure: {first['verdict']}. {_ADVICE[first['verdict']].format(place=place)}")
    yield Step("See every cause, each with a command that runs one failed simulation.", command(facts, "failures"))
    if facts.status.state == "partial":
        yield _next(facts, causes)


def _next(facts: Facts, causes: list[dict[str, Any]]) -> Step:
    """Say how the failed sets run again."""
    verdicts = {cause["verdict"] for cause in causes}
    by_code, by_limit = not verdicts.isdisjoint(_CHANGED_BY_CODE), not verdicts.isdisjoint(_CHANGED_BY_LIMIT)
    retry = command(facts, "retry", "--verdict", ",".join(sorted(verdicts)), *(["--with-new-code"] if by_code else []))
    after = "After a repair, run" if by_code else "Run"
    limits = " It keeps the limits of this job: set larger ones in the environment of this command." if by_limit else ""
    return Step(f"{after} the failed sets again, in a new job that takes over all other results.{limits}", retry)


def _about(facts: Facts) -> Iterator[tuple[str, str]]:
    record, live = facts.data.record, facts.data.last_live
    yield "study", record.study_file or record.study
    yield "model", record.spec.model
    yield "targets", ", ".join(record.spec.targets)
    yield "scenario", record.spec.scenario
    yield ("fixed parameters" if record.n_groups > 1 else "parameters"), _fixed(facts)
    yield "derived from", facts.status.parent or ""
    yield "mixed code", ", ".join(facts.status.mixed_code)
    yield "submitted", moment(record.created)
    if _claims(facts):
        yield "started", _moment(_claims(facts)[-1].time)
    if (end := facts.data.view.end) is not None:
        yield "ended", _moment(end.time)
    yield "ran on", ", ".join(dict.fromkeys(claim.host for claim in _claims(facts)))
    yield "at once", counted(live.slots, "simulation") if live and live.slots else ""
    yield "storage", facts.data.files.url


def _claims(facts: Facts) -> list[Claim]:
    return [mark for mark in facts.data.view.marks if isinstance(mark, Claim)]


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
