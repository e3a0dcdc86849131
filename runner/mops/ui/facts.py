"""Plain data that the pages show, read from the storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mops.errors import MopsError
from mops.jobs.listing import Listed
from mops.jobs.status import Status

PAGE_JOBS = 50
LOG_LINES = 200
CAUSES_SHOWN = 20


@dataclass(frozen=True)
class Point:
    """Rate (simulations per second; None: unknown) and memory of a job at a moment (s since the epoch)."""

    at: float
    rate: float | None
    memory_bytes: int


@dataclass(frozen=True)
class JobNow:
    """The state of a job at a moment.

    Parameters
    ----------
    time_s
        The moment (s since the epoch).
    points
        Rate and memory over the last hour.
    causes
        The first rows of :meth:`mops.jobs.job.Job.causes`.
    n_causes
        The number of its rows.
    log
        The last lines of the log.
    kubernetes
        The phase of the runner in Kubernetes; empty: unknown, or not needed.
    causes_error
        Why the last read of the causes has failed; None: it has not.
    """

    status: Status
    time_s: float
    points: Sequence[Point]
    causes: Sequence[dict[str, Any]]
    n_causes: int
    log: Sequence[str]
    kubernetes: str = ""
    causes_error: MopsError | None = None


@dataclass(frozen=True)
class JobList:
    """A part of the list of jobs.

    Parameters
    ----------
    jobs
        At most :data:`PAGE_JOBS`, newest first.
    has_more
        Whether there are older jobs.
    kubernetes
        The phases of the runners in Kubernetes, of unfinished jobs by name, if they say more than the states.
    kubernetes_error
        Why the phases are missing; None: they are not.
    """

    jobs: Sequence[Listed]
    has_more: bool
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    kubernetes_error: MopsError | None = None


@dataclass(frozen=True)
class ListQuery:
    """Which jobs a list has: by a part of the name, by state, and the number of the page, from 1."""

    name: str = ""
    state: str = ""
    page: int = 1
