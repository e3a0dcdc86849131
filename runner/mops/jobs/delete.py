"""Deletes jobs, so that a kill in the middle leaves no job that looks whole.

docs/internals/storage.md, "Deleting a job", has the order of steps and the reasons. Jobs share bundles, so they stay.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from mops.errors import CorruptRecord, JobError, Superseded
from mops.jobs.clean import fenced
from mops.jobs.job import Job
from mops.jobs.status import is_alive
from mops.storage.backends.base import Entry
from mops.storage.files import Files
from mops.storage.job_records import (
    Deletion,
    driven_here,
    job_names,
    load_job,
    parent_named,
    read_deletion,
    write_deletion,
)
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LOG_RECORDS, Claim, Commit
from mops.storage.live_record import read_live
from mops.storage.paths import JobPaths


@dataclass(frozen=True)
class DeletionPlan:
    """What a deletion would remove.

    Parameters
    ----------
    state
        The job's; ``unreadable``: its record is broken; ``incomplete``: it has none, because a submit or a deletion
        was killed.
    """

    job: str
    state: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Deleted:
    """What a deletion removed.

    Parameters
    ----------
    hosts
        Where a runner of the job may still be alive; because of it the job's name is not to be used again.
    """

    job: str
    files: int
    bytes: int
    hosts: tuple[str, ...]


def plan_deletion(files: Files, jobs: Iterable[str]) -> list[DeletionPlan]:
    """Return what a deletion of these jobs would remove, in the order in which it does.

    Raises
    ------
    JobError
        One of them is not there, or runs, or is the parent of a job that is not among them; all such are named.
    """
    jobs = list(jobs)
    derived = derived_jobs(files)
    found, refused = [], []
    for job in _children_first(jobs, derived):
        try:
            _refuse_parent(files, job, [child for child in derived[job] if child not in jobs])
            found.append(_doomed(files, job))
        except JobError as error:
            refused.append(error)
    _raise_all(refused, files)
    return found


def _doomed(files: Files, job: str) -> DeletionPlan:
    entries = _all_of(files, job)
    if not entries:
        load_job(files, job)  # says that there is none, and which there are
    return DeletionPlan(job, _state(files, job), len(entries), sum(entry.size for entry in entries))


def _all_of(files: Files, job: str) -> list[Entry]:
    root = JobPaths(job).root
    return [*files.list(root), *files.scraps(root, 0)]


def _state(files: Files, job: str) -> str:
    if files.get_many([JobPaths(job).record])[0] is None:
        return "incomplete"
    there = Job(files, job)
    there.require_no_runner(_stop_first(job))
    with suppress(CorruptRecord):  # a record that nobody can read is one more reason to delete the job
        return there.status().state
    return "unreadable"


def _stop_first(job: str) -> str:
    return f"stop it first: mops jobs cancel {job}"


def derived_jobs(files: Files) -> Mapping[str, list[str]]:
    """Return the names of the jobs that were derived from each job."""
    names, found = job_names(files), defaultdict[str, list[str]](list)
    for name, data in zip(names, files.get_many([JobPaths(name).record for name in names]), strict=True):
        if data is not None and (parent := parent_named(data)) is not None:
            found[parent].append(name)
    return found


def _children_first(jobs: Iterable[str], derived: Mapping[str, list[str]]) -> list[str]:
    wanted, order = dict.fromkeys(jobs), dict[str, None]()

    def visit(job: str) -> None:
        for child in derived[job]:
            if child in wanted and child not in order:
                visit(child)
        order[job] = None

    for job in wanted:
        visit(job)
    return list(order)


def _refuse_parent(files: Files, job: str, children: Sequence[str]) -> None:
    if children:
        what = f"job {job!r} is the parent of {', '.join(children)}: rows are read from there"
        raise JobError(what, where=files.url, hint="delete the derived jobs first, or name all of them at once")


def _raise_all(errors: Sequence[JobError], files: Files) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error.what}" for error in errors)
        what = f"{len(errors)} jobs cannot be deleted:{lines}"
        raise JobError(what, where=files.url, hint="what there is, and what runs: mops jobs list")


def delete(files: Files, jobs: Iterable[str]) -> Iterator[Deleted]:
    """Delete jobs, or what a killed deletion or submit left; yield each as soon as it is gone.

    Parameters
    ----------
    jobs
        From :func:`plan_deletion`, in its order.

    Raises
    ------
    JobError
        Meanwhile a runner has begun, or a job was derived: such jobs stay, and the others are deleted first.
    StorageError
        The storage refuses, or is out of reach; another call goes on where this one stopped.
    """
    taken, refused = [], []
    for job in jobs:
        try:
            taken.append(_hide_job(files, job))
        except JobError as error:
            refused.append(error)
    derived = derived_jobs(files)
    for one in taken:
        try:
            one.look_again(derived[one.job])
        except JobError as error:
            refused.append(error)
        else:
            yield _sweep(files, one)
    _raise_all(refused, files)


@dataclass(frozen=True)
class _Taken:
    """A job that is gone for every reader, while most of its files are still there.

    Parameters
    ----------
    record
        The job's record, as it was; None: there was none.
    log
        The log, claimed; None: nobody can claim it.
    hosts
        As in :class:`Deleted`.
    """

    files: Files
    job: str
    record: bytes | None
    log: JobLog | None
    hosts: tuple[str, ...]

    def look_again(self, derived: Sequence[str]) -> None:
        """Give the job back if somebody claimed it or derived one from it before its record was gone."""
        try:
            _refuse_parent(self.files, self.job, derived)
            if self.log:
                self.log.poll()
        except (JobError, Superseded) as error:
            self._give_back()
            if isinstance(error, JobError):
                raise
            what = f"somebody has gone on with job {self.job!r} meanwhile"
            raise JobError(what, where=self.files.url, hint=_stop_first(self.job)) from error

    def _give_back(self) -> None:
        paths = JobPaths(self.job)
        if self.record is not None:
            self.files.put_new(paths.record, self.record)
        self.files.remove([paths.deleted])


def _hide_job(files: Files, job: str) -> _Taken:
    """Fence runners, say that the job is being deleted, and only then remove its record."""
    paths = JobPaths(job)
    record = files.get_many([paths.record])[0]
    if record is None:
        return _take_remains(files, job)
    log = _stop_silent_runner(Job(files, job))
    hosts = _hosts_of_runners(files, job)
    _write_deletion(files, job, hosts)
    files.remove([paths.record])
    return _Taken(files, job, record, log, hosts)


def _stop_silent_runner(job: Job) -> JobLog | None:
    """Claim and end a job, so that a runner that was silent stops; None: it is complete, and none can do anything."""
    dead = job.require_no_runner(_stop_first(job.name))
    if dead.complete:
        return None
    with fenced(job, dead) as log:
        return log


def _take_remains(files: Files, job: str) -> _Taken:
    paths = JobPaths(job)
    begun = read_deletion(files, paths)
    if begun is None:
        _write_deletion(files, job, ())
        if files.get_many([paths.record])[0] is not None:
            files.remove([paths.deleted])
            raise JobError(f"job {job!r} was submitted meanwhile", where=files.url, hint=_stop_first(job))
    return _Taken(files, job, None, None, begun.hosts if begun else ())


def _write_deletion(files: Files, job: str, hosts: tuple[str, ...]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_deletion(files, JobPaths(job), Deletion(os.environ.get("USER", "unknown"), now, hosts))


def _hosts_of_runners(files: Files, job: str) -> tuple[str, ...]:
    """Return where runners may be that have not ended their attempts and are not known to be dead."""
    view = JobLog(files, JobPaths(job)).read()
    hosts = (_host_of_runner(files, job, claim) for claim in view.unended)
    return tuple(dict.fromkeys(host for host in hosts if host is not None))


def _host_of_runner(files: Files, job: str, claim: Claim) -> str | None:
    live = read_live(files, JobPaths(job), claim.n)
    if live is None:
        return claim.host
    dead = live.host == os.uname().nodename and not is_alive(live, here=driven_here(files, job))
    return None if dead else live.host


def _sweep(files: Files, taken: _Taken) -> Deleted:
    """Remove the files of a job whose record is gone; last what says that it is being deleted."""
    paths = JobPaths(taken.job)
    removed = [] if taken.record is None else [Entry(paths.record, len(taken.record))]
    # Twice: a runner that had read the record may have claimed just now, and not have learned yet that the job is gone.
    for _ in range(2):
        kept = {paths.deleted, *(_fences(files, paths) if taken.hosts else ())}
        left = [entry for entry in _all_of(files, taken.job) if entry.path not in kept]
        files.remove([entry.path for entry in left])
        removed += left
    files.prune(paths.root)
    if not taken.hosts:
        files.remove([paths.deleted])
        files.prune(paths.root)
    return Deleted(taken.job, len(removed), sum(entry.size for entry in removed), taken.hosts)


def _fences(files: Files, paths: JobPaths) -> Iterator[str]:
    """Yield the log's records that stop a runner of an older attempt: all but commits."""
    there = [entry.path for entry in files.list(paths.log)]
    for path, data in zip(there, files.get_many(there), strict=True):
        if data is not None and not isinstance(LOG_RECORDS.decode(data, path), Commit):
            yield path
