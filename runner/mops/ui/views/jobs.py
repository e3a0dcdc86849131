"""The list of jobs as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from mops import units
from mops.jobs.listing import STATES, Listed
from mops.jobs.summary import tone_of
from mops.ui.facts import JobList, ListQuery


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
        newer=_query(query, query.page - 1) if query.page > 1 else None,
        older=_query(query, query.page + 1) if found.has_more else None,
    )


def _query(query: ListQuery, page: int) -> str:
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
    )
