"""One job as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mops import units
from mops.jobs.status import ALL_FAILED, Status
from mops.report.content import Tile
from mops.report.tones import tone_of
from mops.study.ids_and_seeds import short_id
from mops.ui.facts import CAUSES_SHOWN, JobNow
from mops.ui.views.chart import Chart, clock, paths
from mops.ui.views.states import Action, actions_for
from mops.verdicts import Counts

_CAUSE_COLUMNS = 300


@dataclass(frozen=True)
class Segment:
    """A part of the bar: its class, its text and where it is, in percent."""

    kind: str
    text: str
    start: float
    width: float


@dataclass(frozen=True)
class CauseView:
    """A cause of failures."""

    key: str
    n: str
    verdict: str
    text: str
    where: str
    ranges: Sequence[str]
    first: str
    params: str
    details: str


@dataclass(frozen=True)
class JobView:
    """The contents of the page of a job."""

    name: str
    state: str
    tone: str
    headline: str
    created: str
    parent: str | None
    mixed_code: Sequence[str]
    slow: Sequence[str]
    segments: Sequence[Segment]
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    causes: Sequence[CauseView]
    more_causes: int  # the number of causes that the page leaves out
    pending: str  # failures by verdict that are not committed yet, so that their causes are unknown
    log: Sequence[str]
    actions: Sequence[Action]


def job_view(now: JobNow) -> JobView:
    """Return what the page of a job shows."""
    status = now.status
    counts = status.finished
    return JobView(
        name=status.job,
        state=status.state,
        tone=tone_of(status.state, counts.simulations, counts.simulations_failed),
        headline=headline(status, now.time_s, now.kubernetes),
        created=units.moment(status.created),
        parent=status.parent,
        mixed_code=status.mixed_code,
        slow=status.slow_texts,
        segments=list(_segments(counts, status.n_simulations)),
        tiles=list(_tiles(status, counts, now.time_s)),
        charts=_charts(now),
        causes=[_cause(row) for row in now.causes],
        more_causes=max(now.n_causes - CAUSES_SHOWN, 0),
        pending=_verdicts(counts - status.counts),
        log=now.log,
        actions=[] if status.state == "running" and status.cancel_requested else actions_for(status.state),
    )


def headline(now: Status, time_s: float, kubernetes: str) -> str:
    """Return the state of a job as a sentence, with ages at this time and the phase of the runner in Kubernetes."""
    text = {
        "submitted": "The job waits for a runner.",
        "interrupted": "The runner ended before the end of the job. Resume runs the rest.",
        "cancelled": "The job was cancelled. Resume runs the rest.",
        "failed": "The job has failed. The end of the log says why.",
        "succeeded": "All simulations and targets succeeded.",
        "partial": "The job has finished. Some simulations or targets failed.",
        "running": f"Attempt {now.attempt} starts.",
    }[now.state]
    if now.all_failed:
        text = f"{ALL_FAILED.capitalize()}. Repair the most frequent cause first."
    if now.state == "running" and now.live is not None:
        age = max(time_s - now.live.at, 0)
        text = f"Attempt {now.attempt}, process {now.live.pid} on {now.live.host}, last seen {age:.0f} s ago."
    if now.state == "running" and now.cancel_requested:
        text = f"Cancel requested: the runner commits what is finished, and stops. {text}"
    return f"{text} Kubernetes: {kubernetes}." if kubernetes else text


def _segments(counts: Counts, total: int) -> Iterator[Segment]:
    numbers = {
        "good": counts.simulations_good,
        "failed": counts.simulations_failed,
        "left": max(total - counts.simulations, 0),
    }
    start = 0.0
    for kind, n in numbers.items():
        width = 100 * n / max(total, 1)
        yield Segment(kind, f"{n:,} {kind}", start, width)
        start += width


def _tiles(now: Status, counts: Counts, time_s: float) -> Iterator[Tile]:
    failed = f"{counts.simulations_failed:,} failed"
    yield Tile("Simulations", f"{counts.simulations:,}", f"of {now.n_simulations:,}, {failed}")
    yield Tile("Committed", f"{now.groups:,}", f"of {units.counted(now.n_groups, 'parameter set')}")
    live = now.live
    if live is None:
        if now.seconds is not None:
            yield Tile("Time", units.duration(now.seconds), f"attempt {now.attempt}")
        if now.peak_bytes:
            yield Tile("Peak memory", units.bytes_text(now.peak_bytes), "all processes of the runner")
        return
    to_go = now.to_go(time_s)
    if not to_go and live.seconds_left is None:
        to_go = "no estimate yet"
    yield Tile("Rate", units.rate(live.rate) if live.rate else "-", to_go)
    limit = f", limit {units.bytes_text(live.limit_bytes)}" if live.limit_bytes else ""
    yield Tile("Memory", units.bytes_text(live.memory_bytes), f"peak {units.bytes_text(live.peak_bytes)}{limit}")
    yield Tile("In flight", f"{live.in_flight:,}", f"parameter sets; {live.slots:,} slots")


def _charts(now: JobNow) -> list[Chart]:
    if not now.points:
        return []
    rates = [(point.at, point.rate) for point in now.points if point.rate is not None]
    memory = [(point.at, float(point.memory_bytes)) for point in now.points]

    def size(value: float) -> str:
        return units.bytes_text(round(value))

    series = (("Simulations per second", rates, units.rate, "blue"), ("Memory", memory, size, "purple"))
    return [_chart(name, points, text, colour) for name, points, text, colour in series if points]


def _chart(name: str, points: Sequence[tuple[float, float]], text: Callable[[float], str], colour: str) -> Chart:
    times, values = zip(*points, strict=True)
    drawn = paths(times, values)
    return Chart(name, text(values[-1]), text(max(values)), *drawn, clock(times[0]), clock(times[-1]), colour)


def _cause(row: dict[str, Any]) -> CauseView:
    what = "simulation" if row["stage"] == "model" else "score"
    places = [f"target {row['target']}" if row["target"] else "", row["place"]]
    replicate = "" if row["replicate"] is None else f", replicate {row['replicate']}, seed {row['seed']}"
    return CauseView(
        key=f"{row['verdict']} {row['target']} {row['place']} {row['cause']}",
        n=f"{units.counted(row['n'], what)} in {units.counted(row['sets'], 'parameter set')}",
        verdict=row["verdict"],
        text=units.shortened(row["cause"], _CAUSE_COLUMNS),
        where=", ".join(filter(None, places)),
        ranges=row["ranges"],
        first=f"{short_id(row['param_id'])}{replicate}",
        params=row["params"],
        details=row["traceback"] or row["message"],
    )


def _verdicts(counts: Counts) -> str:
    most_first = sorted(counts.verdicts.items(), key=lambda found: -found[1])
    return ", ".join(f"{n:,} {verdict}" for verdict, n in most_first if n > 0)
