"""Lists a storage's jobs, newest first."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mops.errors import CorruptRecord, JobError, NewerFormat, UsageError
from mops.jobs.status import JobState
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import JOB_RECORDS, JobRecord, decode_finished, job_names
from mops.storage.joblog.records import End
from mops.storage.paths import JobPaths

STATES = ("submitted", "running", "interrupted", "succeeded", "partial", "failed", "cancelled", "unreadable")
_LOGS_AT_ONCE = 8  # each log reads several records at once
_CHUNK_JOBS = 256


@dataclass(frozen=True)
class Listed:
    """One job of a list.

    Parameters
    ----------
    state
        As in :class:`mops.jobs.status.Status`, or ``unreadable``: ``error`` says why.
    groups, n_groups
        The number of committed groups, and of all groups.
    simulations_failed
        The number of committed simulations that failed.
    created
        When the job was submitted (UTC, ISO 8601).
    """

    job: str
    state: str
    groups: int | None = None
    n_groups: int | None = None
    simulations_failed: int | None = None
    created: str | None = None
    error: str | None = None


def list_jobs(files: Files, states: Collection[str] = (), limit: int | None = None) -> list[Listed]:
    """Return the jobs of a storage, newest first; unreadable jobs come last.

    A complete job costs two requests, in parallel for many jobs. For other jobs mops reads the log.

    Parameters
    ----------
    states
        Only jobs in these states; empty: all.
    limit
        At most this many; None: all.

    Raises
    ------
    UsageError
        A state is unknown.
    StorageError
        The storage refuses, or is out of reach.
    """
    if unknown := [state for state in states if state not in STATES]:
        near = [name for state in unknown for name in difflib.get_close_matches(state, STATES, 1)]
        what = f"unknown state: {', '.join(map(repr, unknown))}"
        raise UsageError(what, where="--state", hint=f"use {', '.join(near or STATES)}")
    found: list[Listed] = []
    names = job_names(files)
    data = files.get_many([JobPaths(name).record for name in names])
    records = [_record(files, name, content) for name, content in zip(names, data, strict=True) if content is not None]
    jobs = iter(sorted(records, key=lambda one: (isinstance(one, JobRecord), str(one.created), one.job), reverse=True))
    chunk = _CHUNK_JOBS if states or limit is None else limit
    while (limit is None or len(found) < limit) and (some := list(itertools.islice(jobs, chunk))):
        found += [listed for listed in _listed(files, some) if not states or listed.state in states]
    return found[:limit]


def _record(files: Files, name: str, data: bytes) -> JobRecord | Listed:
    try:
        return JOB_RECORDS.decode(data, f"{files.url}/{JobPaths(name).record}")
    except (CorruptRecord, NewerFormat) as bad:
        return Listed(name, "unreadable", error=str(bad))


def _listed(files: Files, jobs: Sequence[JobRecord | Listed]) -> Iterator[Listed]:
    records = [job for job in jobs if isinstance(job, JobRecord)]
    copies = advisory.read_many(files, [JobPaths(record.job).finished for record in records], lambda data, _: data)
    ends = {
        record.job: decode_finished(data, record)
        for record, data in zip(records, copies, strict=True)
        if data is not None
    }
    with ThreadPoolExecutor(_LOGS_AT_ONCE, "mops-list") as threads:
        found = threads.map(lambda job: _one(files, job, ends.get(job.job)), jobs)
        yield from (listed for listed in found if listed is not None)


def _one(files: Files, job: JobRecord | Listed, end: End | None) -> Listed | None:
    if isinstance(job, Listed):
        return job
    if end is not None:
        counts = job.taken_over_counts + end.totals
        return Listed(job.job, end.state, job.n_groups, job.n_groups, counts.simulations_failed, job.created)
    try:
        now = JobState(files, job.job).status()
    except (CorruptRecord, NewerFormat) as bad:
        return Listed(job.job, "unreadable", created=job.created, error=str(bad))
    except JobError:
        return None  # deleted since
    return Listed(job.job, now.state, now.groups, now.n_groups, now.counts.simulations_failed, job.created)
