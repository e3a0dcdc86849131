"""Waits for the end of a job that another process runs, and shows its progress meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from mops import errors
from mops.attempt.display import displayed
from mops.errors import (
    ClusterError,
    DataError,
    InstallError,
    JobError,
    JobFailed,
    ModelError,
    MopsError,
    RunnerEnded,
    SystemUnfit,
    UsageError,
)
from mops.jobs import text_log
from mops.jobs.following.phases import Phases
from mops.jobs.status import JobState, Status
from mops.storage.progress_record import Progress

POLL_SECONDS = 1.0

_END = ": attempt {attempt} ends"
_ERROR = re.compile(r"[^:\n]*: (?P<kind>[A-Z]\w+): (?P<what>.*)")
CAUSE_LINES = 200  # of a log, for `cause_in`
# The errors that an attempt may end with; those that derive from them take other arguments.
_KINDS = (ModelError, InstallError, DataError, SystemUnfit, JobError, UsageError, ClusterError, JobFailed)


def follow(
    job: JobState,
    phases: Phases,
    on_progress: Callable[[Progress], None] | None,  # None: a terminal or a notebook shows it
) -> Status:
    """Show the progress of a job until it is over, and return its last status. Ctrl-C ends only this call."""
    status = job.follower()
    try:
        with nullcontext(on_progress) if on_progress else displayed() as show:
            while phases.may_continue(now := status()):
                show(progress_of(now))
                time.sleep(POLL_SECONDS)
            show(progress_of(now))
    except KeyboardInterrupt:
        raise errors.Interrupted(
            f"stopped waiting; job {job.name!r} continues: job.wait() waits again, job.cancel() stops the job"
        ) from None
    return now


def wait_for(job: JobState, phases: Phases, on_progress: Callable[[Progress], None] | None) -> None:
    """Show the progress of a job until it is over; raise if it ended without a result."""
    _raise_failure(job, follow(job, phases, on_progress))


def _raise_failure(job: JobState, now: Status) -> None:
    """Raise if a job ended without a result: the runner's error from the job's log, else JobFailed or RunnerEnded."""
    if now.state not in ("failed", "submitted", "interrupted", "running"):  # running: its pod has ended just now
        return
    paths = job.record.paths
    kind, cause = cause_in(text_log.last_lines(job.files, paths, CAUSE_LINES, now.attempt), now.attempt)
    if now.state == "failed":
        what = cause or f"job {job.name!r} has failed"
        raise kind(what, where=job.name, hint=f"read the log: mops jobs logs {job.name}")
    if kind is ClusterError:
        raise kind(cause, where=job.name, hint=f"run the rest: mops jobs resume {job.name}")
    raise RunnerEnded(
        None,
        text_log.last_lines(job.files, paths, 5),
        when="before the end of the job",
        where=job.files.url,
        hint=f"run the rest: mops jobs resume {job.name}",
    )


def cause_in(text: str, attempt: int) -> tuple[type[MopsError], str]:
    """Return the class and the first line of the error that ended an attempt, by the end of its log.

    If the log does not say it, these are JobFailed and no text.
    """
    _, found, end = text.rpartition(_END.format(attempt=attempt))
    match = _ERROR.match(end) if found else None
    kind = getattr(errors, match["kind"], None) if match else None
    if match is None or kind is None:
        return JobFailed, match["what"].strip() if match else ""
    return next(base for base in kind.__mro__ if base in _KINDS), match["what"].strip()


def progress_of(now: Status) -> Progress:
    """Return a status as the progress that a runner in this process would show."""
    time_s = time.time()
    live = now.live.aged(time_s) if now.live else Progress(time_s, now.finished, job=now.job)
    return replace(
        live,
        finished=now.finished,
        durable=now.counts,
        total=now.n_simulations,
        seconds=now.seconds or 0.0,
        peak_bytes=now.peak_bytes or 0,
        children=now.children,
        sizing=now.sizing,
        n_groups=now.n_groups,
        n_groups_durable=now.groups,
    )
