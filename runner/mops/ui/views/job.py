"""One job as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mops import units
from mops.jobs.following import cause_in
from mops.jobs.summary import JobSummary, ShownCause, reasons_in, shown_cause, summary_of
from mops.ui.facts import CAUSES_SHOWN, JobNow
from mops.ui.views.chart import Chart, clock, paths
from mops.ui.views.states import Action, actions_for
from mops.verdicts import Counts


@dataclass(frozen=True)
class JobView:
    """The contents of the page of a job."""

    name: str
    summary: JobSummary
    steps: Sequence[tuple[str, str]]  # what to do, and the command; empty: there is none
    kubernetes: str
    created: str
    parent: str | None
    mixed_code: Sequence[str]
    slow: Sequence[str]
    charts: Sequence[Chart]
    causes: Sequence[ShownCause]
    more_causes: int  # the number of causes that the page leaves out
    pending: str  # failures by verdict that are not committed yet, so that their causes are unknown
    log: Sequence[str]
    actions: Sequence[Action]


def job_view(now: JobNow, *where: str) -> JobView:
    """Return what the page of a job shows; ``where``: the options of commands that find its storage."""
    status = now.status
    reasons, place = reasons_in(now.causes)
    why = cause_in("\n".join(now.log), status.attempt)[1] if status.state == "failed" else ""
    summary = summary_of(status, now.time_s, reasons=reasons, place=place, why=why, is_waiting=now.is_waiting)
    return JobView(
        name=status.job,
        summary=summary,
        steps=summary.todo(status.job, *where),
        kubernetes=now.kubernetes,
        created=units.moment(status.created),
        parent=status.parent,
        mixed_code=status.mixed_code,
        slow=status.slow_texts,
        charts=_charts(now),
        causes=[shown_cause(row) for row in now.causes],
        more_causes=max(now.n_causes - CAUSES_SHOWN, 0),
        pending=_verdicts(status.finished - status.counts),
        log=now.log,
        actions=[] if status.state == "running" and status.cancel_requested else actions_for(status.state),
    )


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


def _verdicts(counts: Counts) -> str:
    most_first = sorted(counts.verdicts.items(), key=lambda found: -found[1])
    return ", ".join(f"{n:,} {verdict}" for verdict, n in most_first if n > 0)
