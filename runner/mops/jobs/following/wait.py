"""Waits for the end of a job that another process runs, and shows its progress meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from mops.attempt.planning.forecast import Expected
from mops.attempt.reporting.display import displayed
from mops.attempt.reporting.progress import Snapshot
from mops.errors import JobFailed, RunnerEnded
from mops.jobs import text_log
from mops.jobs.following.phases import Phases
from mops.jobs.status import JobState, Status

POLL_SECONDS = 1.0

_END = ": attempt {attempt} ends"
_CAUSE_LINES = 200


def follow(job: JobState, phases: Phases, on_progress: Callable[[Snapshot], None] | None) -> Status:
    """Show the progress of a job until it is over; return its last status.

    Parameters
    ----------
    on_progress
        Called with the progress; None: a terminal or a notebook shows it.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C stopped this call, and the job continues.
    """
    status = job.follower()
    try:
        with nullcontext(on_progress) if on_progress else displayed() as show:
            while phases.may_continue(now := status()):
                show(snapshot_of(now))
                time.sleep(POLL_SECONDS)
            show(snapshot_of(now))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped waiting; job {job.name!r} continues: job.wait() waits again, job.cancel() stops the job"
        ) from None
    return now


def wait_for(job: JobState, phases: Phases, on_progress: Callable[[Snapshot], None] | None) -> None:
    """Show the progress of a job until it is over; raises as :func:`follow` and :func:`raise_failure`."""
    raise_failure(job, follow(job, phases, on_progress))


def raise_failure(job: JobState, now: Status) -> None:
    """Raise if a job ended without a result: as failed, or because its runner ended.

    Raises
    ------
    JobFailed
        The job has failed; the error has the cause from the job's log.
    RunnerEnded
        The runner ended early.
    """
    if now.state == "failed":
        raise JobFailed(
            cause_of(job, now.attempt) or f"job {job.name!r} has failed",
            where=job.name,
            hint=f"read the log: mops jobs logs {job.name}",
        )
    if now.state in ("submitted", "interrupted"):
        raise RunnerEnded(
            None,
            "".join(text_log.read(job, tail=5)),
            when="before the end of the job",
            where=job.files.url,
            hint=f"run the rest: mops jobs resume {job.name}",
        )


def cause_of(job: JobState, attempt: int) -> str:
    """Return why an attempt ended, from its log; empty: the log does not say it."""
    text = "".join(text_log.read(job, attempt, tail=_CAUSE_LINES))
    _, found, cause = text.rpartition(_END.format(attempt=attempt))
    return cause.partition(": ")[2].partition("\n")[0].strip() if found else ""


def snapshot_of(now: Status) -> Snapshot:
    """Return a status as the progress that a runner in this process would show."""
    live = now.live
    finished = live.counts if live and live.counts.simulations > now.counts.simulations else now.counts
    return Snapshot(
        job=now.job,
        finished=finished,
        durable=now.counts,
        total=now.n_simulations,
        rate=live.rate if live else 0.0,
        seconds=now.seconds or 0.0,
        memory_bytes=live.memory_bytes if live else 0,
        peak_bytes=now.peak_bytes or 0,
        in_flight=live.in_flight if live else 0,
        slots=live.slots if live else 0,
        expected=Expected.of_live(live.expected) if live else None,
        window=live.window if live else 0,
        children=now.children,
        sizing=now.sizing,
        n_groups=now.n_groups,
        n_groups_durable=now.groups,
    )
