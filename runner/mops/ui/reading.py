"""Reads from the storage what the pages show. Everything here runs in threads."""

from __future__ import annotations

import time
from typing import Any

from mops.errors import MopsError
from mops.jobs import text_log
from mops.jobs.following import phase_text, with_runner
from mops.jobs.job import Job
from mops.jobs.listing import JobLists, Listed
from mops.jobs.status import Status
from mops.storage.files import Files
from mops.storage.job_records import JOB_RECORDS
from mops.storage.samples import read_samples
from mops.ui.facts import CAUSES_SHOWN, LOG_LINES, PAGE_JOBS, JobList, JobNow, ListQuery, Point
from mops.ui.runners import Runners
from mops.ui.views.log_tail import joined_tail

_SAMPLE_FILES = 60  # each of about a minute
_MOST_POINTS = 720
_READ_SHARE = 20  # after a read of the failures, wait this many times as long


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
    """Reads a job again and again, each time only what is new."""

    def __init__(self, job: Job, runners: Runners):
        self._job, self._runners = job, runners
        self._record, self._status = self._job.record, self._job.follower()
        samples = read_samples(self._job.files, self._record.paths, _SAMPLE_FILES)
        attempts = [0, *(attempt for attempt, _ in samples)]
        self._points = [  # before the first sample of an attempt, no time has passed
            Point(one.at, one.rate if attempt == before else None, one.memory_bytes)
            for before, (attempt, one) in zip(attempts, samples, strict=False)
        ]
        self._causes: tuple[list[dict[str, Any]], int] = ([], 0)
        self._causes_of, self._causes_due = 0, 0.0
        self._causes_error: MopsError | None = None
        self._log: list[str] = []
        self._log_of: tuple[object, ...] = ()

    def is_current(self) -> bool:
        """Tell whether the name still has the job that was opened: a deleted job's name can get another one."""
        return JOB_RECORDS.read(self._job.files, self._record.paths.record) == self._record

    def look(self) -> JobNow:
        """Return the job now."""
        phase = self._runners.phases().get(self._job.name)
        now = with_runner(self._status(), phase)
        if now.live is not None and (not self._points or now.live.at > self._points[-1].at):
            self._points = [
                *self._points[-_MOST_POINTS + 1 :],
                Point(now.live.at, now.live.rate, now.live.memory_bytes),
            ]
        self._read_causes(now)
        self._read_log(now)
        log = joined_tail(self._log, now.live.lines if now.live else [], LOG_LINES)
        return JobNow(
            now,
            time.time(),
            tuple(self._points),
            *self._causes,
            log,
            phase_text(now, phase),
            is_waiting=phase is not None and not phase.over,
            causes_error=self._causes_error,
        )

    def _read_causes(self, now: Status) -> None:
        """Read the causes again if failures were committed, and if the last read does not take much of the time."""
        if now.counts.failed == self._causes_of or time.monotonic() < self._causes_due:
            return
        start = time.monotonic()
        try:
            table = self._job.causes().to_arrow()
            self._causes = table.slice(0, CAUSES_SHOWN).to_pylist(), table.num_rows
            self._causes_of, self._causes_error = now.counts.failed, None
        except MopsError as unreadable:  # the other parts of the page need no causes
            self._causes_error = unreadable
        self._causes_due = time.monotonic() + _READ_SHARE * (time.monotonic() - start)

    def _read_log(self, now: Status) -> None:
        """Read the stored log again if it may have grown: a runner stores it with each commit."""
        version = (now.attempt, now.groups, now.state)
        if version != self._log_of:
            self._log = text_log.last_lines(self._job.files, self._record.paths, LOG_LINES).splitlines()
            self._log_of = version
