"""A job in words: its state, its figures, and what to do next. Terminals, reports and the web page show the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mops.attempt.display import best_losses
from mops.jobs.status import ALL_FAILED, CANCEL_REQUESTED, OPEN_STATES, Status, seen_text
from mops.storage.progress_record import Progress
from mops.study.ids_and_seeds import short_id
from mops.units import bytes_text, counted, duration, rate, shortened, shortened_in_middle

Tone: TypeAlias = Literal["good", "warning", "bad", "neutral"]

# The class of a state's colour.
TONES: dict[str, Tone] = {
    "submitted": "neutral",
    "running": "neutral",
    "succeeded": "good",
    "partial": "warning",
    "interrupted": "warning",
    "cancelled": "warning",
    "failed": "bad",
    "unreadable": "bad",
}

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
_CAUSE_CHARACTERS = 240
_TRACEBACK_CHARACTERS = 4_000
_RANGES_SHOWN = 5


def tone_of(state: str, n_simulations: int | None, n_failed: int | None) -> Tone:
    """Return the tone of a job: that of its state, or bad if it has finished and every simulation failed."""
    return "bad" if state == "partial" and n_simulations and n_failed == n_simulations else TONES[state]


@dataclass(frozen=True)
class Reason:
    """A reason of failures: how many simulations and targets, the verdict, the first line of the message."""

    n: int
    verdict: str
    message: str


@dataclass(frozen=True)
class Tile:
    """A key figure with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class BarSection:
    """A part of the bar of simulations."""

    kind: Literal["good", "failed", "left"]
    text: str
    start: float  # in the bar, in percent
    percent: float


@dataclass(frozen=True)
class NextStep:
    """One thing to do."""

    text: str  # for pages
    label: str = ""  # for terminals, before the command; empty: only pages have the step
    command: tuple[str, ...] = ()  # a verb of ``mops jobs`` and its options, without the job; empty: there is none
    is_after_repair: bool = False


@dataclass(frozen=True)
class JobSummary:
    """A job in words."""

    state: str  # the state, or that every simulation failed
    tone: Tone
    headline: str  # what has happened, in a sentence or two
    runner: str  # the process that runs the job, as a sentence; empty: none does
    segments: list[BarSection]
    tiles: list[Tile]
    steps: list[NextStep]

    def todo(self, job: str, *where: str) -> list[tuple[str, str]]:
        """Return what to do, each with its command; arguments as for :func:`command`."""
        return [(step.text, command(step.command, job, *where) if step.command else "") for step in self.steps]


def summary_of(
    now: Status,
    time_s: float,  # since the epoch, for ages
    *,
    reasons: Sequence[Reason] = (),  # of failures, the most frequent first
    place: str = "",  # in the code, of the most frequent one
    n_lacking: int = 0,  # parameter sets that have run and lack a loss
    last: Progress | None = None,  # the last sign of life of the last attempt; it knows the limit of memory
    is_waiting: bool = False,  # whether Kubernetes still has a runner for it, which will continue the job
) -> JobSummary:
    """Return a job in words."""
    counts, runner = now.counts, runner_of(now, time_s)
    return JobSummary(
        state=ALL_FAILED if now.all_failed else now.state,
        tone=tone_of(now.state, counts.simulations, counts.simulations_failed),
        headline=_headline(now, time_s, reasons, place, n_lacking),
        runner=f"{runner[0].upper()}{runner[1:]}." if now.state == "running" else "",
        segments=list(_segments(now)),
        tiles=list(_tiles(now, time_s, last)),
        steps=list(_steps(now, reasons, place, is_waiting=is_waiting)),
    )


def _headline(now: Status, time_s: float, reasons: Sequence[Reason], place: str, n_lacking: int) -> str:
    total = counted(now.n_simulations, "simulation")
    done = f"{now.finished.simulations:,} of {total} have finished"
    # `seconds` are those of the last attempt.
    after = f" after {duration(now.seconds)}" if now.attempt == 1 and now.seconds is not None else ""
    failed = _failed(now, n_lacking)
    why = f": {_shortened(now.error.what)}" if now.error else ""
    if now.all_failed:
        first = f": {_shortened(reasons[0].message)}{f' at {place}' if place else ''}" if reasons else ""
        return f"{ALL_FAILED.capitalize()}{first}."
    if now.state == "failed":
        return f"The job stopped{after}{why}. {done}."
    if now.state == "running":
        to_go = now.to_go(time_s)
        stops = f"{CANCEL_REQUESTED.capitalize()}. " if now.cancel_requested else ""
        return f"{stops}{done}{after}{f', {to_go}' if to_go else ''}. {failed}".strip()
    ended = {
        "submitted": f"{total} wait for a runner.",
        "succeeded": f"Finished{after}. All {total} are good.",
        "partial": f"Finished{after}. {failed}",
        "interrupted": f"{done}{after}. The runner ended before the end of the job{why}. {failed}",
        "cancelled": f"{done}{after}. The job was cancelled, and the others have not run. {failed}",
    }
    return ended[now.state].strip()


def _shortened(message: str) -> str:
    return shortened(message, _HEADLINE_CHARACTERS).rstrip(".")


def _failed(now: Status, n_lacking: int) -> str:
    """Say what failed: first the sets, then simulations and scores."""
    counts = now.finished
    n, n_scores = counts.simulations_failed, counts.scores_failed
    if not n and n_scores <= 0:
        return ""
    scores = f"{counted(n_scores, 'score')} of targets"
    text = f"{scores} failed, and no simulation."
    if n:
        more = f", and {scores}" if n_scores > 0 else ""
        text = f"{counted(n, 'simulation')} failed ({percent_of(n, counts.simulations)}){more}."
    if not n_lacking:
        return text
    lack = "lacks" if n_lacking == 1 else "lack"
    of = f"{counted(now.groups, 'parameter set')} ({percent_of(n_lacking, now.groups)})"
    return f"{n_lacking:,} of {of} {lack} a loss. {text}"


def percent_of(n: int, of: int) -> str:
    """Return a part of a number in percent: 100 % only if it is all of it, and never 0 %."""
    percent = 100 * n / of
    if percent < 1:
        return "less than 1 %"
    return "more than 99 %" if n < of and percent > 99 else f"{percent:.0f} %"


def runner_of(now: Status, time_s: float) -> str:
    """Return the attempt, the process that runs it or ran it, and when that was last seen."""
    return f"attempt {now.attempt}, {seen_text(now.live, time_s) if now.live else 'starting'}"


def _segments(now: Status) -> Iterator[BarSection]:
    counts, start = now.finished, 0.0
    left = max(now.n_simulations - counts.simulations, 0)
    parts: tuple[tuple[Literal["good", "failed", "left"], int, str], ...] = (
        ("good", counts.simulations_good, "good"),
        ("failed", counts.simulations_failed, "failed"),
        ("left", left, "to run" if now.state in ("submitted", "running") else "not run"),
    )
    for kind, n, text in parts:
        percent = 100 * n / max(now.n_simulations, 1)
        if n:
            yield BarSection(kind, f"{n:,} {text}", start, percent)
        start += percent


def _tiles(now: Status, time_s: float, last: Progress | None) -> Iterator[Tile]:
    counts, live = now.finished, now.live if now.state == "running" else None
    yield Tile("Parameter sets", f"{now.groups:,}", f"of {now.n_groups:,} committed")
    yield Tile(
        "Simulations", f"{counts.simulations:,}", f"of {now.n_simulations:,}, {counts.simulations_failed:,} failed"
    )
    if counts.targets_good or counts.targets_failed:
        yield Tile("Scores of targets", f"{counts.targets_good:,}", counts.targets_text.partition(" scored, ")[2])
    for loss, of in best_losses(last.best if last else ()):
        yield Tile("Best loss", loss, of)
    if now.seconds is not None:
        attempts = "in one attempt" if now.attempt == 1 else f"in the last of {now.attempt} attempts"
        yield Tile("Run time", duration(now.seconds), attempts)
    if live is not None:
        to_go = now.to_go(time_s) or ("no estimate yet" if live.seconds_left is None else "")
        yield Tile("Rate", rate(live.rate) if live.rate else "-", to_go)
        limit = f", limit {bytes_text(live.limit_bytes)}" if live.limit_bytes else ""
        yield Tile("Memory", bytes_text(live.memory_bytes), f"peak {bytes_text(live.peak_bytes)}{limit}")
        yield Tile("In flight", f"{live.in_flight:,}", f"parameter sets; {live.slots:,} slots")
        return
    if now.attempt == 1 and not now.parent and counts.simulations and now.seconds:
        yield Tile("Rate", rate(counts.simulations / now.seconds), "on average")
    if now.peak_bytes:
        limited = f"of {bytes_text(last.limit_bytes)} on {last.host}" if last and last.limit_bytes else ""
        yield Tile("Peak memory", bytes_text(now.peak_bytes), limited or "all processes of the runner")


def _steps(now: Status, reasons: Sequence[Reason], place: str, *, is_waiting: bool) -> Iterator[NextStep]:
    if now.state == "failed":
        yield NextStep("Read why the job stopped.", "why", ("logs", "--tail", "50"))
        yield NextStep("After the repair, run the rest.", "continue", ("resume",))
    elif now.state == "running":
        yield NextStep("Follow the job.", "follow", ("watch",))
    elif now.state in ("interrupted", "cancelled", "submitted") and not is_waiting:
        text = "Start the job." if now.state == "submitted" else "Run the rest."
        yield NextStep(text, "continue", ("resume",))
    if reasons:
        advice = _ADVICE[reasons[0].verdict].format(place=f" at {place}" if place else "")
        yield NextStep(f"Most frequent failure: {reasons[0].verdict}. {advice}")
        text = "See every cause, each with a command that runs one failed simulation."
        yield NextStep(text, "causes", ("failures",))
        if now.state == "partial":
            yield _retry(sorted(now.counts.verdicts))
    if now.finished.simulations_good and now.state != "running":
        yield NextStep("List the results. With --to FOLDER, the command writes them to files.", "results", ("results",))


def _retry(verdicts: list[str]) -> NextStep:
    """Say how the failed sets run again."""
    by_code, by_limit = (not set(verdicts).isdisjoint(some) for some in (_CHANGED_BY_CODE, _CHANGED_BY_LIMIT))
    command = ("retry", "--verdict", ",".join(verdicts), *(["--with-new-code"] if by_code else []))
    after = "After a repair, run" if by_code else "Run"
    limits = " It keeps the limits of this job: set larger ones in the environment of this command." if by_limit else ""
    text = f"{after} the failed sets again, in a new job that takes over all other results.{limits}"
    return NextStep(text, "next", command, is_after_repair=by_code)


def command(verb: Sequence[str], job: str, *where: str) -> str:
    """Return a command for a job: the verb with its options, and the options that find the job's storage."""
    name, *options = verb
    return shlex.join(["mops", "jobs", name, job, *options, *where])


def so_far(now: Status) -> str:
    """Return what limits a statement about all results: that the job has not ended; empty: nothing does."""
    return f" so far ({now.state})" if now.state in (*OPEN_STATES, "cancelled") else ""


def line_of(now: Status) -> str:
    """Return the state and the simulations of a job in a line."""
    done = now.finished
    return f"{now.state}: {done.simulations:,} of {now.n_simulations:,} simulations, {done.simulations_failed:,} failed"


@dataclass(frozen=True)
class ShownCause:
    """A cause of failures on a page."""

    key: str  # which other causes do not have
    verdict: str
    text: str
    of: str  # how many simulations or scores, in how many sets
    target: str
    place: str
    ranges: Sequence[str]
    first: str  # which simulation failed first
    params: str
    details: str  # its traceback, or the message


def shown_cause(row: Mapping[str, Any]) -> ShownCause:
    """Return a row of ``Job.causes`` for a page."""
    what = "simulation" if row["stage"] == "model" else "score"
    params = ", ".join(f"{name} = {value}" for name, value in json.loads(row["params"]).items())
    replicate = "" if row["replicate"] is None else f", replicate {row['replicate']}, seed {row['seed']}"
    return ShownCause(
        key=f"{row['verdict']} {row['target']} {row['place']} {row['cause']}",
        verdict=row["verdict"],
        text=shortened_in_middle(row["cause"], _CAUSE_CHARACTERS),
        of=f"{counted(row['n'], what)} in {counted(row['sets'], 'parameter set')}",
        target=row["target"] or "",
        place=row["place"],
        ranges=row["ranges"][:_RANGES_SHOWN],
        first=f"{short_id(row['param_id'])}{replicate}",
        params=shortened_in_middle(params, _CAUSE_CHARACTERS),
        details=shortened_in_middle((row["traceback"] or row["message"]).strip(), _TRACEBACK_CHARACTERS),
    )


def reasons_in(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Reason], str]:
    """Return rows of ``Job.causes`` as reasons, and the place of the first one, for :func:`summary_of`."""
    return [Reason(row["n"], row["verdict"], row["cause"]) for row in rows], rows[0]["place"] if rows else ""
