"""Lists a storage's jobs, newest first."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mops.errors import CorruptRecord, JobError, OtherFormat, UsageError, known_name
from mops.jobs.runners import with_runner
from mops.jobs.status import JobState
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import JOB_RECORDS, JobRecord, decode_finished, job_names
from mops.storage.joblog.records import End
from mops.storage.paths import NamePaths

if TYPE_CHECKING:
    from mops.k8s.job_phase import Phase

STATES = ("submitted", "running", "interrupted", "succeeded", "partial", "failed", "cancelled", "unreadable")
_LOGS_AT_ONCE = 8  # each log reads several records at once
_CHUNK_JOBS = 256
# The age after which a list reads the record of a job again: a deleted job's name can get another job.
RECORD_SECONDS = 30.0
# A list reads at most this many old records again, the oldest first. So its cost does not grow with the jobs.
OLD_RECORDS = 50


@dataclass(frozen=True)
class Listed:
    """One job of a list."""

    job: str
    state: str  # as in `mops.jobs.status.Status`, or `unreadable`: `error` says why
    groups: int | None = None  # committed
    n_groups: int | None = None
    simulations_failed: int | None = None  # committed
    created: str | None = None  # when the job was submitted (UTC, ISO 8601)
    error: str | None = None
    simulations_finished: int | None = None  # durable or not
    simulations_durable: int | None = None  # committed
    n_simulations: int | None = None
    simulations_reused: int = 0  # from other jobs: from the parent of a derived job, or by a reuse
    host: str = ""  # the host of the runner's last sign of life; empty: no runner is expected
    owner: str = ""  # who submitted it to a service, as Kubernetes knows the person


@dataclass(frozen=True)
class _Known:
    """The facts of a job that a list keeps."""

    record: JobRecord | Listed  # or the line of the list that says why it cannot be read
    read_at: float  # when the record was read
    complete: Listed | None = None  # the line of the list, if the job is complete: then it stays the same

    @property
    def order(self) -> tuple[bool, str, str]:
        # Unreadable jobs come first, then the oldest ones.
        return isinstance(self.record, JobRecord), str(self.record.created), self.record.job


class JobLists:
    """Lists the jobs of a storage again and again. Threads may share it."""

    # It keeps records, and all that it shows of complete jobs. The first list reads two records of each complete job. A
    # later list reads the names, the jobs that are new, some old records, and the logs of unfinished jobs that it
    # shows.

    def __init__(self, files: Files, clock: Callable[[], float] = time.monotonic):
        self._files, self._clock = files, clock
        self._known: dict[str, _Known] = {}
        self._changing = threading.Lock()

    def read(
        self,
        states: Collection[str] = (),
        limit: int | None = None,
        *,
        contains: str = "",
        # Returns a job with what the caller knows of it, such as a state, before `states` are compared.
        seen: Callable[[Listed], Listed] = lambda listed: listed,
    ) -> list[Listed]:
        """Return the jobs; other arguments and errors as for ``list_jobs``."""
        if unknown := [state for state in states if state not in STATES]:
            what = f"unknown state: {', '.join(map(repr, unknown))}"
            raise UsageError(what, where="--state", hint=known_name(unknown[0], STATES))
        there = job_names(self._files)
        with self._changing:
            for gone in self._known.keys() - set(there):
                del self._known[gone]
        names = [name for name in there if contains.lower() in name.lower()]
        limit = None if limit is None else min(limit, len(names))  # a person may write more than an index can be
        self._read_records(self._due(names))
        jobs = self._listed([one for name in names if (one := self._known.get(name)) is not None], limit, states)
        wanted = (listed for listed in map(seen, jobs) if not states or listed.state in states)
        return list(itertools.islice(wanted, limit))

    def _due(self, names: Sequence[str]) -> list[str]:
        """Return the jobs whose records the list must read: without a record, or among the oldest records."""
        known = {name: self._known.get(name) for name in names}
        without = [name for name, one in known.items() if one is None or not isinstance(one.record, JobRecord)]
        before = self._clock() - RECORD_SECONDS
        old = [one for one in known.values() if one and isinstance(one.record, JobRecord) and one.read_at < before]
        return without + [one.record.job for one in heapq.nsmallest(OLD_RECORDS, old, key=lambda one: one.read_at)]

    def _read_records(self, names: Sequence[str]) -> None:
        now, known = self._clock(), [self._known.get(name) for name in names]
        data = self._files.get_many([NamePaths(name).record for name in names])
        for name, before, content in zip(names, known, data, strict=True):
            record: JobRecord | Listed | None = None
            if content is not None:
                try:
                    record = JOB_RECORDS.decode(content, f"{self._files.url}/{NamePaths(name).record}")
                except (CorruptRecord, OtherFormat) as bad:
                    record = Listed(name, "unreadable", error=str(bad))
            complete = before.complete if before and before.record == record else None
            self._replace(name, before, None if record is None else _Known(record, now, complete))

    def _replace(self, name: str, before: _Known | None, after: _Known | None) -> None:
        # If another thread has changed it since, its name may have another job.
        with self._changing:
            if self._known.get(name) is not before:
                return
            if after is not None:
                self._known[name] = after
            else:
                self._known.pop(name, None)

    def _listed(self, known: Sequence[_Known], limit: int | None, states: Collection[str]) -> Iterator[Listed]:
        """Yield the lines of the jobs, newest first. Few more are read than the caller takes."""
        jobs = iter(sorted(known, key=lambda one: one.order, reverse=True))
        chunk = _CHUNK_JOBS if states or limit is None else limit
        while some := list(itertools.islice(jobs, chunk)):
            yield from self._lines(some)

    def _lines(self, jobs: Sequence[_Known]) -> list[Listed]:
        records = [one.record for one in jobs if isinstance(one.record, JobRecord) and one.complete is None]
        copies = advisory.read_many(self._files, [one.paths.finished for one in records], lambda data, _: data)
        ends = {
            record.job: decode_finished(data, record.paths)
            for record, data in zip(records, copies, strict=True)
            if data is not None
        }

        def line(known: _Known) -> Listed | None:
            if isinstance(known.record, Listed):
                return known.record
            listed = known.complete or _line(self._files, known.record, ends.get(known.record.job))
            if listed is not None and listed.state in ("succeeded", "partial"):
                self._replace(listed.job, known, replace(known, complete=listed))
            return listed

        with ThreadPoolExecutor(_LOGS_AT_ONCE, "mops-list") as threads:
            return [listed for listed in threads.map(line, jobs) if listed is not None]


def list_jobs(
    files: Files,
    states: Collection[str] = (),  # empty: all
    limit: int | None = None,
    *,
    contains: str = "",  # only jobs whose names contain this text, in upper or lower case
    # Returns the phase of each job's runner, as `Runners.phases`. Called for each running job that may be in the list.
    phases: Callable[[], Mapping[str, Phase]] = dict,
) -> list[Listed]:
    """Return the jobs of a storage, newest first; unreadable jobs come last. An unknown state is a UsageError."""
    # A complete job costs two requests, in parallel for many jobs. For other jobs mops reads the log.
    changes_list = not states or not {"running", "interrupted"}.isdisjoint(states)

    def seen(listed: Listed) -> Listed:
        phase = phases().get(listed.job) if changes_list and listed.state == "running" else None
        if with_runner(listed, phase) is listed:
            return listed
        record = JOB_RECORDS.read(files, NamePaths(listed.job).record)  # again, after the phase
        return with_runner((record and _line(files, record, None)) or listed, phase)

    return JobLists(files).read(states, limit, contains=contains, seen=seen)


def _line(files: Files, job: JobRecord, end: End | None) -> Listed | None:
    """Return what a list shows of a job: by the copy of its end, or by its log; None: it was deleted since."""
    n_reused, owner = sum(job.origins.values()), job.owner
    if end is not None:
        counts = job.taken_over_counts + end.totals
        n = counts.simulations
        its = (job.n_groups, job.n_groups, counts.simulations_failed, job.created, None)
        return Listed(job.job, end.state, *its, n, n, job.n_simulations, n_reused, owner=owner)
    try:
        now = JobState(files, job.job).status()
    except (CorruptRecord, OtherFormat) as bad:
        return Listed(job.job, "unreadable", created=job.created, error=str(bad), owner=owner)
    except JobError:
        return None
    n, durable = now.finished.simulations, now.counts.simulations
    its = (now.groups, now.n_groups, now.counts.simulations_failed, job.created, None)
    return Listed(job.job, now.state, *its, n, durable, now.n_simulations, n_reused, now.host, owner)
