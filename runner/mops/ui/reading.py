"""Reads from the storage what the pages show. Everything here runs in the threads of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from mops.errors import MopsError
from mops.jobs.data import JobData
from mops.jobs.following import last_lines
from mops.jobs.job import Job
from mops.jobs.listing import JobLists, Listed
from mops.jobs.runners import Runners, phase_text, with_runner
from mops.jobs.status import Status
from mops.report.facts import Facts
from mops.report.render import LIBRARIES
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import COMPLETE
from mops.storage.progress_record import Progress

PAGE_JOBS = 50
LOG_LINES = 200
CAUSES_SHOWN = 20
HAS_REPORT = all(map(find_spec, LIBRARIES))
GAP = "... (the next commit stores the lines between)"

_SLOW_SHARE = 20  # after a read of the failures and new figures, wait this many times as long


@dataclass(frozen=True)
class DrawnFigure:
    """A figure, as the report has it."""

    title: str
    svg: str
    caption: str


@dataclass(frozen=True)
class JobNow:
    """A job at a moment."""

    status: Status
    time_s: float  # since the epoch
    figures: Sequence[DrawnFigure]  # of its progress, at the last commit
    causes: Sequence[dict[str, Any]]  # the first rows of ``Job.causes``
    n_causes: int
    log: Sequence[str]  # the last lines
    kubernetes: str = ""  # the phase of the runner in Kubernetes; empty: unknown, or not needed
    is_waiting: bool = False  # whether Kubernetes has a runner that starts or runs
    causes_error: MopsError | None = None  # why the last read of the causes has failed
    last: Progress | None = None  # the last sign of life, even of an attempt that has ended
    version: tuple[object, ...] = ()  # of what is committed: the job, the position in its log, and the state


@dataclass(frozen=True)
class ListQuery:
    """Which jobs a list has: by a part of the name, by state, and the number of the page, from 1."""

    name: str = ""
    state: str = ""
    page: int = 1


@dataclass(frozen=True)
class JobList:
    """A part of the list of jobs."""

    jobs: Sequence[Listed]  # at most PAGE_JOBS, newest first
    has_more: bool  # older ones
    # The phases of the runners in Kubernetes, of unfinished jobs by name, if they say more than the states.
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    kubernetes_error: MopsError | None = None  # why the phases are missing


class ListReader:
    """Reads the list of jobs again and again."""

    def __init__(self, files: Files, runners: Runners):
        self._lists, self._runners = JobLists(files.brief()), runners

    def read(self, query: ListQuery) -> JobList:
        """Return the jobs of a list; errors as :func:`mops.jobs.listing.list_jobs`."""
        phases = self._runners.phases()
        start = (query.page - 1) * PAGE_JOBS
        states = [query.state] if query.state else []

        def seen(job: Listed) -> Listed:
            return with_runner(job, phases.get(job.job))

        found = self._lists.read(states, start + PAGE_JOBS + 1, contains=query.name, seen=seen)
        jobs = found[start : start + PAGE_JOBS]
        kubernetes = {job.job: text for job in jobs if (text := phase_text(job, phases.get(job.job)))}
        return JobList(jobs, len(found) > start + PAGE_JOBS, kubernetes, self._runners.error)


class JobReader:
    """Reads a job again and again, each time only what is new. Threads may share it."""

    def __init__(self, job: Job, runners: Runners):
        self._job, self._runners = job, runners
        self._files, self._record = job.files, job.record
        self._log = JobLog(self._files, self._record.paths)
        self._now: JobNow | None = None
        self._reading = threading.Lock()
        self._figures: list[DrawnFigure] = []
        self._causes: tuple[list[dict[str, Any]], int] = ([], 0)
        self._causes_of = 0
        self._slow_due = 0.0
        self._causes_error: MopsError | None = None
        self._lines: list[str] = []
        self._lines_of: tuple[object, ...] = ()
        self._slow_of: tuple[object, ...] = ()

    def look(self) -> JobNow:
        """Return the job now; of a complete job, this reads nothing more."""
        with self._reading:
            return self._look()

    def _look(self) -> JobNow:
        if self._now is not None and self._now.status.state in COMPLETE and not self._causes_error:
            return self._now
        phase = self._runners.phases().get(self._job.name)
        moment = JobData.after(self._files, self._record, self._log)
        now = with_runner(moment.status, phase)
        # A runner stores its log with each commit.
        version = (self._record.id, moment.view.k, now.state)
        self._read_slow_parts(moment, now, version)
        if version != self._lines_of:
            self._lines = last_lines(self._files, self._record.paths, LOG_LINES).splitlines()
            self._lines_of = version
        self._now = JobNow(
            now,
            time.time(),
            self._figures,
            *self._causes,
            joined_tail(self._lines, now.live.lines if now.live else [], LOG_LINES),
            phase_text(now, phase),
            is_waiting=phase is not None and phase.has_runner,
            causes_error=self._causes_error,
            last=moment.last_live,
            version=version,
        )
        return self._now

    def _read_slow_parts(self, moment: JobData, now: Status, version: tuple[object, ...]) -> None:
        """Read causes and draw figures again after a commit, if this does not take much of the time."""
        is_new, is_due = version != self._slow_of, time.monotonic() >= self._slow_due
        if not (is_new and self._log.view.complete) and not (is_due and (is_new or self._causes_error)):
            return
        start = time.monotonic()
        if HAS_REPORT:
            self._figures = _drawn(moment)
        if now.counts.failed != self._causes_of:
            try:
                table = self._job.causes().to_arrow()
                self._causes = table.slice(0, CAUSES_SHOWN).to_pylist(), table.num_rows
                self._causes_of, self._causes_error = now.counts.failed, None
            except MopsError as unreadable:  # the other parts of the page need no causes
                self._causes_error = unreadable
        self._slow_of, end = version, time.monotonic()
        self._slow_due = end + _SLOW_SHARE * (end - start)


def _drawn(moment: JobData) -> list[DrawnFigure]:
    """Return the figures of the report's section on progress."""
    from mops.report.content import Gallery  # noqa: PLC0415 - an optional extra, which takes 0.5 s
    from mops.report.progress import progress  # noqa: PLC0415 - the same

    found = [part for part in progress(Facts(moment)).parts if isinstance(part, Gallery)]
    thirds = [replace(figure, width="third") for gallery in found for figure in gallery.figures]
    return [DrawnFigure(figure.title, figure.svgs[0], figure.caption) for figure in thirds]


def joined_tail(stored: Sequence[str], live: Sequence[str], n: int) -> list[str]:
    """Return the last ``n`` lines of a log. If the stored and the live lines do not meet, a line says so."""
    stored, live = list(stored), list(live)
    if any(stored[i : i + len(live)] == live for i in range(len(stored) - len(live), -1, -1)):
        return stored[-n:]
    # The runner stores the log with each commit, and shows its last lines more often. So the first of the live lines
    # are usually the last of the stored ones.
    overlap = next((k for k in range(min(len(live), len(stored)), 0, -1) if stored[-k:] == live[:k]), 0)
    gap = [GAP] if stored and not overlap else []
    return (stored + gap + live[overlap:])[-n:]
