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
    """The state of a job at a moment."""

    status: Status
    time_s: float  # since the epoch
    points: Sequence[Point]  # rate and memory over the last hour
    causes: Sequence[dict[str, Any]]  # the first rows of ``Job.causes``
    n_causes: int
    log: Sequence[str]  # the last lines
    kubernetes: str = ""  # the phase of the runner in Kubernetes; empty: unknown, or not needed
    is_waiting: bool = False  # whether Kubernetes has a runner that starts or runs
    causes_error: MopsError | None = None  # why the last read of the causes has failed


@dataclass(frozen=True)
class JobList:
    """A part of the list of jobs."""

    jobs: Sequence[Listed]  # at most PAGE_JOBS, newest first
    has_more: bool  # older ones
    # The phases of the runners in Kubernetes, of unfinished jobs by name, if they say more than the states.
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    kubernetes_error: MopsError | None = None  # why the phases are missing


@dataclass(frozen=True)
class ListQuery:
    """Which jobs a list has: by a part of the name, by state, and the number of the page, from 1."""

    name: str = ""
    state: str = ""
    page: int = 1
