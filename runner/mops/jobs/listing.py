"""Lists a storage's jobs, newest first."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mops.errors import CorruptRecord, JobError, MopsError, NewerFormat, UsageError
from mops.jobs.job import Job
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import JOB_RECORDS, JobRecord, decode_finished, job_names
from mops.storage.joblog.records import End
from mops.storage.paths import JobPaths

STATES = ("submitted", "running", "interrupted", "succeeded", "partial", "failed", "cancelled", "unreadable")
_LOGS_AT_ONCE = 8  # each asks for several records at once
_CHUNK = 256


@dataclass(frozen=True)
class Listed:
    """One job of a list.

    Parameters
    ----------
    state
        As in :class:`mops.jobs.status.Status`, or ``unreadable``: ``error`` says why.
    groups, n_groups
        Committed groups, and all.
    simulations_failed
        Of those committed.
    created
        When it was submitted (UTC, ISO 8601).
    """

    job: str
    state: str
    groups: int | None = None
    n_groups: int | None = None
    simulations_failed: int | None = None
    created: str | None = None
    error: str | None = None


def list_jobs(files: Files, states: Collection[str] = (), limit: int | None = None) -> list[Listed]:
    """Return the jobs of a storage, newest first; what cannot be read comes last.

    A complete job costs two requests, many at a time; the log is read of others, of all if ``limit`` or fewer are left.

    Parameters
    ----------
    states
        Only jobs in these states; empty: all.
    limit
        At most so many; None: all.

    Raises
    ------
    UsageError
        There is no such state.
    StorageError
        The storage refuses, or is out of reach.
    """
    check_states(states)
    found: list[Listed] = []
    jobs = iter(_newest_first(files))
    while (limit is None or len(found) < limit) and (some := list(itertools.islice(jobs, _chunk(states, limit)))):
        found += [listed for listed in _listed(files, some) if not states or listed.state in states]
    return found[:limit]


def _chunk(states: Collection[str], limit: int | None) -> int:
    return _CHUNK if states or limit is None else limit


def check_states(states: Collection[str]) -> None:
    """Refuse states that no job can be in; raises as :func:`list_jobs`."""
    unknown = [state for state in states if state not in STATES]
    if unknown:
        near = [name for state in unknown for name in difflib.get_close_matches(state, STATES, 1)]
        meant = f"did you mean {', '.join(near)}? " if near else ""
        what = f"no job is ever {' or '.join(map(repr, unknown))}"
        raise UsageError(what, where="--state", hint=f"{meant}states are: {', '.join(STATES)}")


def _newest_first(files: Files) -> list[JobRecord | Listed]:
    """Return the records of all jobs; for one that cannot be read what the list says of it."""
    names = job_names(files)
    found = zip(names, files.get_many([JobPaths(name).record for name in names]), strict=True)
    read = [_record(files, name, data) for name, data in found if data is not None]
    return sorted(read, key=lambda one: (isinstance(one, JobRecord), str(one.created), one.job), reverse=True)


def _record(files: Files, name: str, data: bytes) -> JobRecord | Listed:
    try:
        return JOB_RECORDS.decode(data, f"{files.url}/{JobPaths(name).record}")
    except (CorruptRecord, NewerFormat) as bad:
        return _unreadable(name, bad)


def _unreadable(name: str, error: MopsError, created: str | None = None) -> Listed:
    return Listed(name, "unreadable", created=created, error=str(error))


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
        now = Job(files, job.job).status()
    except (CorruptRecord, NewerFormat) as bad:
        return _unreadable(job.job, bad, job.created)
    except JobError:
        return None  # deleted meanwhile
    return Listed(job.job, now.state, now.groups, now.n_groups, now.counts.simulations_failed, job.created)
