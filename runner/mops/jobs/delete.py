"""Deletes jobs, so that a kill in between leaves no job that looks complete. Bundles stay: jobs share them.

"Deleting a job" in docs/internals/storage.md explains the order of the steps.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from mops.errors import CorruptRecord, JobError
from mops.jobs.status import JobState
from mops.storage.backends.base import Entry
from mops.storage.files import Files
from mops.storage.job_records import (
    JOB_RECORDS,
    Deletion,
    job_exists,
    job_names,
    load_job,
    mark_deletion,
    sources_named,
)
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths, NamePaths, is_job_id


@dataclass(frozen=True)
class DeletionPlan:
    """The files that a deletion would remove."""

    job: str
    # The job's state; `unreadable`: its record is damaged; `incomplete`: it has no record, because a submit or a
    # deletion was killed.
    state: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Deleted:
    """The files that a deletion removed."""

    job: str
    files: int
    bytes: int


def plan_deletion(files: Files, jobs: Iterable[str]) -> list[DeletionPlan]:
    """Return what a deletion would remove, in its order; raise JobError that names all jobs that must stay."""
    jobs = list(jobs)
    derived = derived_jobs(files)
    found, refused = [], []
    for job in (one for one in _with_derived(jobs, derived) if one in jobs):
        try:
            _refuse_source(files, job, [child for child in derived[job] if child not in jobs], derived)
            entries = _all_of(files, job)
            if not entries:
                load_job(files, job)  # raises, with the nearest names
            found.append(DeletionPlan(job, _state(files, job), len(entries), sum(entry.size for entry in entries)))
        except JobError as error:
            refused.append(error)
    _raise_all(refused, files)
    return found


def _all_of(files: Files, job: str) -> list[Entry]:
    root = NamePaths(job).root
    return [*files.list(root), *files.scraps(root, 0)]


def _state(files: Files, job: str) -> str:
    try:
        if not job_exists(files, job):
            return "incomplete"
        found = JobState(files, job)
        found.require_no_runner(_stop_hint(job))
        return found.status().state
    except CorruptRecord:  # a reason to delete the job, and no runner can continue it
        return "unreadable"


def _stop_hint(job: str) -> str:
    return f"stop the job first: mops jobs cancel {job}"


def derived_jobs(files: Files) -> Mapping[str, list[str]]:
    """Return the jobs that have rows in the parts of each job."""
    names, found = job_names(files), defaultdict[str, list[str]](list)
    for name, data in zip(names, files.get_many([NamePaths(name).record for name in names]), strict=True):
        for source in sources_named(name, data) if data is not None else ():
            found[source].append(name)
    return found


def _with_derived(jobs: Iterable[str], derived: Mapping[str, Sequence[str]]) -> list[str]:
    """Return jobs and all jobs that need their rows, each after those that need its own."""
    order, seen = list[str](), set[str]()

    def visit(job: str) -> None:
        if job not in seen:
            seen.add(job)
            for child in derived.get(job, ()):
                visit(child)
            order.append(job)

    for job in jobs:
        visit(job)
    return order


def _refuse_source(files: Files, job: str, children: Sequence[str], derived: Mapping[str, Sequence[str]]) -> None:
    if children:
        what = f"job {job!r} has rows that other jobs read: {', '.join(children)}"
        every = _with_derived([job], derived)
        raise JobError(what, where=files.url, hint=f"delete them too: mops jobs delete {' '.join(every)}")


def _raise_all(errors: Sequence[JobError], files: Files) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error.what}" for error in errors)
        what = f"{len(errors)} jobs cannot be deleted:{lines}"
        raise JobError(what, where=files.url, hint="list the jobs and their states: mops jobs list")


def delete(
    files: Files,
    jobs: Iterable[str],  # from `plan_deletion`, in its order
) -> Iterator[Deleted]:
    """Delete jobs, or what a killed deletion or submit left; yield each job when it is deleted."""
    # A job that a runner has claimed since, or from which a job was derived, is a JobError after all others are
    # deleted. After a StorageError, another call continues.
    marked, refused = [], []
    for job in jobs:
        try:
            marked.append(_mark(files, job))
        except JobError as error:
            refused.append(error)
    derived, deleted = derived_jobs(files), set[str]()
    for one in marked:
        try:
            one.check_unused([child for child in derived[one.job] if child not in deleted], derived)
        except JobError as error:
            refused.append(error)
        else:
            yield one.remove()
            deleted.add(one.job)
    _raise_all(refused, files)


@dataclass(frozen=True)
class _MarkedJob:
    """What has the name of a job, each part of it marked as being deleted."""

    files: Files
    job: str
    record: bytes | None  # of the job that has the name; None: there is none
    log: JobLog | None  # None: no runner can claim the job
    attempts: int  # how many attempts the log had before the mark
    folders: Sequence[JobPaths]  # of that job, and of jobs that a killed submit or deletion left

    def check_unused(self, children: Sequence[str], derived: Mapping[str, Sequence[str]]) -> None:
        """Withdraw the marks and raise if someone has submitted, claimed or derived from the job before its mark."""
        try:
            _refuse_source(self.files, self.job, children, derived)
            self._refuse_changed()
        except JobError:
            self.files.remove([paths.deleted for paths in self.folders])
            raise

    def _refuse_changed(self) -> None:
        is_resumed = self.log is not None and self.log.read().attempt > self.attempts
        if is_resumed or _record(self.files, self.job) != self.record:
            what = f"job {self.job!r} was {'resumed' if is_resumed else 'submitted'} during the deletion"
            raise JobError(what, where=self.files.url, hint=_stop_hint(self.job))

    def remove(self) -> Deleted:
        """Remove the record, so that the job no longer exists, and then the other files; the marks last."""
        record, removed = NamePaths(self.job).record, list[Entry]()
        # Only that of the marked job: meanwhile someone may have submitted another one.
        if self.record is not None and _record(self.files, self.job) == self.record:
            self.files.remove([record])
            removed.append(Entry(record, len(self.record)))
        marks = [paths.deleted for paths in self.folders]
        for _ in range(2):  # twice, for a runner that has not yet noticed the deletion
            entries = _all_of(self.files, self.job)
            left = [one for one in entries if one.path not in (*marks, record) and not self._is_new(one.path)]
            self.files.remove([entry.path for entry in left])
            removed += left
        self.files.remove(marks)
        self.files.prune(NamePaths(self.job).root)
        return Deleted(self.job, len(removed), sum(entry.size for entry in removed))

    def _is_new(self, path: str) -> bool:
        """Tell whether a file belongs to a job that someone submits under this name meanwhile."""
        folder = path.split("/")[2]
        return is_job_id(folder) and folder not in [paths.id for paths in self.folders]


def _mark(files: Files, job: str) -> _MarkedJob:
    """Mark what has the name of a job, so that no one submits, claims or derives from it."""
    record, log, attempts = _record(files, job), None, 0
    current = None
    with suppress(CorruptRecord):
        current = JOB_RECORDS.decode(record, f"{files.url}/{NamePaths(job).record}").paths if record else None
    if current is not None:
        with suppress(CorruptRecord):
            idle = JobState(files, job).require_no_runner(_stop_hint(job))
            log, attempts = (None if idle.complete else JobLog(files, current)), idle.attempt
    ids = [name for name in files.folders(NamePaths(job).root) if is_job_id(name)]
    folders = [JobPaths(job, one) for one in dict.fromkeys([*ids, *([current.id] if current else [])])]
    mark = Deletion(os.environ.get("USER", "unknown"), datetime.now(UTC).isoformat(timespec="seconds"))
    for paths in folders:
        mark_deletion(files, paths, mark)
    return _MarkedJob(files, job, record, log, attempts, folders)


def _record(files: Files, job: str) -> bytes | None:
    return files.get_many([NamePaths(job).record])[0]
