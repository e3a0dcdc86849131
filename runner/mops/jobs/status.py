"""The state of a job, and whether its runner is alive. mops/jobs/data.py adds the results.

It imports no Arrow, which costs a command that prints a state a quarter of its time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

import psutil

from mops.attempt.display import slow_text
from mops.errors import JobError
from mops.jobs.location import Location, service_with
from mops.jobs.owners import require_owner
from mops.storage.files import Files
from mops.storage.job_records import JobRecord, check_not_deleted, driven_here, job_names, load_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Commit, LogView, settled_state
from mops.storage.paths import JobPaths
from mops.storage.progress_record import Progress, RunnerError, SlowStep, read_live
from mops.units import counted, duration
from mops.verdicts import Counts

# A runner writes a sign of life every 10 s. After this long without one, its job counts as interrupted.
SILENT_SECONDS = 45.0

OPEN_STATES = ("submitted", "running", "interrupted")  # the states of a job that a runner may still change
_SLOW_SHOWN = 5

# The text of terminals and pages for a running job with `cancel_requested`.
CANCEL_REQUESTED = "cancel requested: the runner commits what is finished, and stops"
ALL_FAILED = "every simulation failed"  # the text of terminals and pages for a job for which `all_failed` is true


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
    owner
        The person who submitted the job to a service, as Kubernetes knows the name; empty: it was not submitted to one.
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
    origins
        How many simulations come from which other job: from the parent, or by a reuse.
    mixed_code
        Files that may belong to the model, of which the job has other versions than some simulations that it takes
        over ran with.
    slow
        Simulations and targets that run much longer than others; if the job has stopped, those that ran then.
    error
        The error that ended the last attempt; None: none did, or its runner was killed before it could say so.
    cancel_requested
        Whether someone has cancelled the last attempt. While ``state`` is ``running``, its runner still stops.
    """

    job: str
    state: str
    attempt: int
    groups: int
    n_groups: int
    n_simulations: int
    counts: Counts
    created: str
    live: Progress | None
    parent: str | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    children: str = ""
    sizing: str = ""
    origins: Mapping[str, int] = field(default_factory=dict)
    cancel_requested: bool = False
    mixed_code: tuple[str, ...] = ()
    slow: tuple[SlowStep, ...] = ()
    error: RunnerError | None = None
    owner: str = ""

    @property
    def slow_texts(self) -> list[str]:
        """What runs much longer than the rest, or ran when the job stopped, for people: the longest few."""
        more = len(self.slow) - _SLOW_SHOWN
        others = [f"and {counted(more, 'other simulation')}"] if more > 0 else []
        return [*map(slow_text, self.slow[:_SLOW_SHOWN]), *others]

    def to_go(self, time_s: float) -> str:
        """Return what the job waits for, or how long it still takes at a time (s since the epoch); empty: unknown."""
        return self.live.aged(time_s).outlook if self.live else ""

    @property
    def all_failed(self) -> bool:
        """Whether the job has finished and every simulation failed."""
        return self.state == "partial" and self.counts.simulations_good == 0 < self.counts.simulations

    @property
    def host(self) -> str:
        """The host of the runner's last sign of life; empty: no runner is expected."""
        return self.live.host if self.live else ""

    @property
    def finished(self) -> Counts:
        """The finished work, durable or not: by the last sign of life, or by the log, which may be newer.

        What a runner had finished but not committed when it ended is lost.
        """
        live = self.live if self.state == "running" else None
        return live.finished if live and live.finished.simulations > self.counts.simulations else self.counts


def job_state(files: Files, paths: JobPaths, view: LogView) -> tuple[str, Progress | None]:
    """Return a job's state, given its log, and the last sign of life of its runner, if a runner is expected."""
    if view.state is not None:
        return str(view.state), None
    # A job that was cancelled without a runner stays cancelled until someone resumes it.
    idle = str(settled_state(view, "auto") or ("interrupted" if view.claim else "submitted"))
    if view.claim is None:
        return idle, None
    live, here = read_live(files, paths, view.attempt), driven_here(files, paths)
    # A claim has a host and a time only, so until the first sign of life only the time counts.
    running = is_alive(live, here=here) if live else here or time.time() - view.claim.time < SILENT_SECONDS
    return "running" if running else idle, live


def seen_text(live: Progress, time_s: float) -> str:
    """Return which process runs or ran a job, and when it was last seen."""
    age = round(max(time_s - live.at, 0.0))
    return f"process {live.pid} on {live.host}, last seen {f'{age} s' if age < 60 else duration(age)} ago"


def is_alive(
    live: Progress,
    *,
    here: bool,  # whether this process itself runs the job
) -> bool:
    """Tell whether a runner is alive: on this host by its process, on others by the age of its last sign of life."""
    if live.host != os.uname().nodename:
        return time.time() - live.at < SILENT_SECONDS
    if live.pid == os.getpid():
        return here
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(live.pid)
        # A process that started after the last sign of life is another process with the same number.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < live.at + SILENT_SECONDS
    return False


def storage_of(name: str, location: Location) -> Files:
    """Return the storage of a job where a command works; errors as for ``open_job``."""
    files = location.open()
    try:
        load_job(files.brief(), name)
    except JobError as unknown:
        here = location.here
        if location.storage_source == "command line" or here.url() == files.url or name not in job_names(here.open()):
            raise
        hint = "this machine has a job of this name: add --local, or in Python local=True"
        raise JobError(unknown.what, where=unknown.where, hint=hint) from None
    return files


@dataclass(frozen=True, eq=False, repr=False)
class JobMoment:
    """A job at one moment: its record, and its log up to one position. The tables are those of ``JobData``."""

    files: Files
    record: JobRecord
    view: LogView
    commits: tuple[Commit, ...]  # of the log, for ``JobData``; empty if only the state is asked for: there may be many
    state: str
    live: Progress | None  # the last sign of life of a runner that is expected
    last_live: Progress | None  # the last one of the last attempt, even if the attempt has ended
    time_s: float  # since the epoch

    @classmethod
    def read(cls, files: Files, name: str, *, with_commits: bool = True) -> Self:
        """Read the job with this name."""
        record = load_job(files, name)
        return cls.after(files, record, JobLog(files, record.paths), with_commits=with_commits)

    @classmethod
    def after(cls, files: Files, record: JobRecord, log: JobLog, *, with_commits: bool = False) -> Self:
        """Read what is new in a log."""

        def new_commits() -> list[Commit]:
            return [one for one in log.records() if with_commits and isinstance(one, Commit)]

        commits = new_commits()
        state, live = job_state(files, record.paths, log.view)
        if state == "interrupted":
            # A runner that is no longer alive may have ended the job after the first read.
            commits += new_commits()
            state, live = job_state(files, record.paths, log.view)
        last = live if live or not log.view.attempt else read_live(files, record.paths, log.view.attempt)
        return cls(files, record, log.view, tuple(commits), state, live, last, time.time())

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.record.job

    @property
    def ended(self) -> float:
        """When the job last changed (s since the epoch), by the clock of its writer: for a job without a runner."""
        times = (self.view.mark.time if self.view.mark else 0.0, self.last_live.at if self.last_live else 0.0)
        return max(times) or datetime.fromisoformat(self.record.created).timestamp()

    @property
    def n_failed(self) -> int:
        """The number of failed simulations and scores."""
        return (self.record.taken_over_counts + self.view.counts).failed

    @property
    def status(self) -> Status:
        """The state for people."""
        record, view, last = self.record, self.view, self.last_live
        return Status(
            job=record.job,
            state=self.state,
            attempt=view.attempt,
            groups=len(record.taken_over) + len(view.committed),
            n_groups=record.n_groups,
            n_simulations=record.n_simulations,
            counts=record.taken_over_counts + view.counts,
            created=record.created,
            live=self.live,
            parent=record.parent or None,
            owner=record.owner,
            seconds=last.seconds if last else None,
            peak_bytes=last.peak_bytes if last else None,
            children=last.children if last else "",
            sizing=last.sizing if last else "",
            origins=record.origins,
            cancel_requested=view.cancelled,
            mixed_code=record.mixed_code,
            slow=last.slow if last and not view.complete else (),
            # A runner of a service that has just ended still counts as running, unless Kubernetes knows better.
            error=last.error if last and self.state in ("failed", "interrupted", "running") else None,
        )


class JobState:
    """One job without its results. Every method reads the present state."""

    def __init__(
        self,
        files: Files,
        name: str,
        *,
        local: bool = False,  # run on this machine even when connected to a service
    ):
        self.files, self.name, self.local = files, name, local

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, storage={self.files.url!r})"

    @property
    def record(self) -> JobRecord:
        """The record of the submit: study, model, bundle, options."""
        return load_job(self.files, self.name)

    def status(self) -> Status:
        """Return the state of the job, as the storage has it.

        A job whose runner was killed in another pod is ``running`` until 45 s after the runner's last sign of life.
        ``mops jobs status`` and :func:`mops.jobs` also ask Kubernetes, and show it as ``interrupted`` at once.

        Returns
        -------
        Status
            ``state`` is ``submitted``, ``running``, ``interrupted``, ``succeeded``, ``partial``, ``failed`` or
            ``cancelled``. ``groups`` and ``counts`` count what is committed. ``seconds`` and ``peak_bytes`` are those
            of the last attempt.

        Raises
        ------
        StorageError
            The storage is out of reach, or a record is damaged.
        """
        return JobMoment.read(self.files, self.name, with_commits=False).status

    def follower(self) -> Callable[[], Status]:
        """Return a function that returns the state of the job, and at each call reads only what is new in its log.

        JobError: someone has deleted the job.
        """
        record = self.record
        log = JobLog(self.files, record.paths)

        def look() -> Status:
            now = JobMoment.after(self.files, record, log).status
            if now.state == "submitted":  # that of a deleted job, too: its log no longer exists
                check_not_deleted(self.files, record.paths)
            return now

        return look

    def require_no_runner(self, hint: str) -> JobMoment:
        """Raise JobError with this hint if a runner runs the job; else return the moment at which none does."""
        now = JobMoment.read(self.files, self.name, with_commits=False)
        if now.state != "running":
            return now
        if now.live:
            runner = seen_text(now.live, now.time_s)
        else:
            assert now.view.claim is not None
            runner = f"on {now.view.claim.host}, started {max(now.time_s - now.view.claim.time, 0):.0f} s ago"
        raise JobError(f"job {self.name!r} is running: {runner}", where=self.files.url, hint=hint)


def cancel_job(job: JobState, *, force: bool) -> list[str] | None:
    """Cancel a job as :meth:`mops.Job.cancel`; return its Kubernetes Jobs that had not started, which this deleted.

    None: the job was complete already.
    """
    record, service = job.record, service_with(job.files, local=job.local)
    require_owner(record, service, force=force, command=f"mops jobs cancel {job.name}")
    if not JobLog(job.files, record.paths).cancel(who=os.environ.get("USER", "unknown")):
        return None
    return service.delete_idle_jobs(job.name) if service else []
