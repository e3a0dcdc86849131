"""The contents of the pages as plain data: pure functions of what was read from the storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from mops import units
from mops.jobs.listing import STATES, Listed
from mops.jobs.summary import JobSummary, ShownCause, reasons_in, shown_cause, summary_of, tone_of
from mops.ui.reading import CAUSES_SHOWN, DrawnFigure, JobList, JobNow, ListQuery
from mops.verdicts import Counts

# The list of jobs


@dataclass(frozen=True)
class Row:
    """A job of the list."""

    name: str
    state: str
    tone: str
    share: float | None  # the committed part in percent; None: unknown
    share_failed: float  # the part of the bar for failures: the committed part times the share of failed simulations
    sets: str
    failed: str
    has_failed: bool
    submitted: str
    error: str
    kubernetes: str  # the phase of its runner in Kubernetes; empty: unknown, or not needed
    owner: str  # who submitted it to a service; empty: it was not submitted to one


@dataclass(frozen=True)
class JobsView:
    """The list of jobs; ``newer`` and ``older`` are queries of the next pages, None: there is none."""

    rows: Sequence[Row]
    query: ListQuery
    states: Sequence[str]
    newer: str | None
    older: str | None


def jobs_view(found: JobList, query: ListQuery) -> JobsView:
    """Return the list of jobs."""
    return JobsView(
        rows=[_row(job, found.kubernetes.get(job.job, "")) for job in found.jobs],
        query=query,
        states=STATES,
        newer=list_query(query, query.page - 1) if query.page > 1 else None,
        older=list_query(query, query.page + 1) if found.has_more else None,
    )


def list_query(query: ListQuery, page: int) -> str:
    """Return the query of the address of a page of the list."""
    return urlencode({"name": query.name, "state": query.state, "page": page})


def _row(job: Listed, kubernetes: str) -> Row:
    is_known = job.groups is not None and job.n_groups is not None
    share = 100 * (job.groups or 0) / max(job.n_groups or 0, 1)
    return Row(
        name=job.job,
        state=job.state,
        tone=tone_of(job.state, job.simulations_durable, job.simulations_failed),
        share=share if is_known else None,
        share_failed=share * (job.simulations_failed or 0) / max(job.simulations_durable or 0, 1),
        sets=f"{job.groups:,} of {job.n_groups:,}" if is_known else "-",
        failed=f"{job.simulations_failed:,}" if job.simulations_failed is not None else "-",
        has_failed=bool(job.simulations_failed),
        submitted=units.moment(job.created) if job.created else "-",
        error=(job.error or "").partition("\n")[0],
        kubernetes=kubernetes,
        owner=job.owner,
    )


# Changes


@dataclass(frozen=True)
class Action:
    """A change of a job that a person confirms."""

    verb: str  # the last segment of its address
    label: str  # of its button on the page of the job
    confirm: str  # of the button that confirms it
    question: str  # what the confirmation asks
    effect: str  # what the confirmation explains
    states: tuple[str, ...]  # in which it makes sense
    is_final: bool = False  # whether it ends something


ACTIONS = {
    action.verb: action
    for action in (
        Action(
            "cancel",
            "Cancel",
            "Cancel the job",
            "Cancel this job?",
            "The runner commits what is finished, and stops within seconds. You can resume the job later.",
            ("submitted", "running"),
            is_final=True,
        ),
        Action(
            "resume",
            "Resume",
            "Resume the job",
            "Resume this job?",
            "A new runner runs the parameter sets that are not committed, with the settings of mops ui.",
            ("submitted", "interrupted", "cancelled", "failed"),
        ),
        Action(
            "retry",
            "Retry failures",
            "Retry in a new job",
            "Retry the failed parameter sets of this job?",
            "A new job runs the parameter sets with failures again. It takes over all other results.",
            ("partial",),
        ),
    )
}


def actions_for(state: str) -> list[Action]:
    """Return the actions that make sense for a job in this state."""
    return [action for action in ACTIONS.values() if state in action.states]


# One job


@dataclass(frozen=True)
class JobView:
    """The contents of the page of a job."""

    name: str
    summary: JobSummary
    steps: Sequence[tuple[str, str]]  # what to do, and the command; empty: there is none
    kubernetes: str
    created: str
    owner: str
    parent: str | None
    mixed_code: Sequence[str]
    slow: Sequence[str]
    figures: Sequence[DrawnFigure]
    causes: Sequence[ShownCause]
    more_causes: int  # the number of causes that the page leaves out
    pending: str  # failures by verdict that are not committed yet, so that their causes are unknown
    log: Sequence[str]
    actions: Sequence[Action]


def job_view(now: JobNow, *where: str) -> JobView:
    """Return what the page of a job shows; ``where``: the options of commands that find its storage."""
    status = now.status
    reasons, place = reasons_in(now.causes)
    summary = summary_of(status, now.time_s, reasons=reasons, place=place, last=now.last, is_waiting=now.is_waiting)
    return JobView(
        name=status.job,
        summary=summary,
        steps=summary.todo(status.job, *where),
        kubernetes=now.kubernetes,
        created=units.moment(status.created),
        owner=status.owner,
        parent=status.parent,
        mixed_code=status.mixed_code,
        slow=status.slow_texts,
        figures=now.figures,
        causes=[shown_cause(row) for row in now.causes],
        more_causes=max(now.n_causes - CAUSES_SHOWN, 0),
        pending=_verdicts(status.finished - status.counts),
        log=now.log,
        actions=[] if status.state == "running" and status.cancel_requested else actions_for(status.state),
    )


def _verdicts(counts: Counts) -> str:
    most_first = sorted(counts.verdicts.items(), key=lambda found: -found[1])
    return ", ".join(f"{n:,} {verdict}" for verdict, n in most_first if n > 0)
