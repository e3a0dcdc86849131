"""Decides the state of a job, and whether its runner is alive."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

import psutil

from mops.storage.files import Files
from mops.storage.job_records import driven_here
from mops.storage.joblog.records import Claim
from mops.storage.joblog.starting import settled_state
from mops.storage.joblog.view import LogView
from mops.storage.live_record import Live, read_live
from mops.storage.paths import JobPaths
from mops.verdicts import Counts

SILENT_SECONDS = 45.0
"""A runner writes a sign of life every 10 s. After this long without one, its job counts as interrupted."""


@dataclass(frozen=True)
class Status:
    """The state of a job.

    Parameters
    ----------
    state
        ``submitted``, ``running``, ``interrupted`` (its runner ended; resume continues the job), ``succeeded``,
        ``partial`` (finished, some simulations or targets failed), ``failed`` or ``cancelled``.
    attempt
        The number of the last attempt; 0 before the first one.
    groups, n_groups
        The number of committed groups, and of all groups.
    n_simulations
        The number of all simulations.
    counts
        Committed simulations and targets.
    created
        When the job was submitted (ISO 8601, UTC).
    live
        The runner's last sign of life, which also counts what is not committed yet; None if no runner is expected.
    parent
        The job from which this job takes over rows; they count as committed.
    seconds, peak_bytes
        The time and the peak memory of the last attempt so far; None before its first sign of life.
    children
        How the last attempt's child processes start, and why; empty before the first one.
    sizing
        How MODELOPS_JOB_BATCH_SIZE=auto chose the window in the last attempt; empty if a number is set.
    """

    job: str
    state: str
    attempt: int
    groups: int
    n_groups: int
    n_simulations: int
    counts: Counts
    created: str
    live: Live | None
    parent: str | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    children: str = ""
    sizing: str = ""


def job_state(files: Files, job: str, view: LogView) -> tuple[str, Live | None]:
    """Return a job's state, given its log, and the last sign of life of its runner, if a runner is expected."""
    if view.state is not None:
        return str(view.state), None
    # A job that was cancelled without a runner stays cancelled until someone resumes it.
    idle = str(settled_state(view, "auto") or ("interrupted" if view.claim else "submitted"))
    if view.claim is None:
        return idle, None
    live, here = read_live(files, JobPaths(job), view.attempt), driven_here(files, job)
    # A claim has a host and a time only, so until the first sign of life only the time counts.
    running = is_alive(live, here=here) if live else here or time.time() - view.claim.time < SILENT_SECONDS
    return "running" if running else idle, live


def runner_text(claim: Claim | None, live: Live | None) -> str:
    """Return which process runs or ran the job, and when it was last seen."""
    if live:
        return f"process {live.pid} on {live.host}, last seen {_ago(live.at)}"
    assert claim is not None
    return f"on {claim.host}, started {_ago(claim.time)}"


def _ago(at: float) -> str:
    return f"{max(time.time() - at, 0):.0f} s ago"


def is_alive(live: Live, *, here: bool) -> bool:
    """Tell whether a runner is alive: on this host by its process, on other hosts by the age of its last sign of life.

    Parameters
    ----------
    here
        Whether this process itself runs the job.
    """
    if live.host != os.uname().nodename:
        return time.time() - live.at < SILENT_SECONDS
    if live.pid == os.getpid():
        return here
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(live.pid)
        # A process that started after the last sign of life is another process with the same number.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < live.at + SILENT_SECONDS
    return False
