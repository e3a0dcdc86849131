"""Deletes jobs, so that a kill in between leaves no job that looks complete.

"Deleting a job" in docs/internals/storage.md explains the order of the steps. Bundles stay: jobs share them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from mops.errors import CorruptRecord, JobError, Superseded
from mops.jobs.clean import claimed
from mops.jobs.status import JobState, is_alive
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
from mops.storage.joblog.records import LOG_RECORDS, Commit
from mops.storage.live_record import read_live
from mops.storage.paths import JobPaths


@dataclass(frozen=True)
class DeletionPlan:
    """The files that a deletion would remove.

    Parameters
    ----------
    state
        The job's state; ``unreadable``: its record is damaged; ``incomplete``: it has no record, because a submit or a
        deletion was killed.
    """

    job: str
    state: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Deleted:
    """The files that a deletion removed.

    Parameters
    ----------
    hosts
        Hosts on which a runner of the job may still be alive. If there are any, no other job can use the job's name.
    """

    job: str
    files: int
    bytes: int
    hosts: tuple[str, ...]


def plan_deletion(files: Files, jobs: Iterable[str]) -> list[DeletionPlan]:
    """Return what a deletion of these jobs would remove, in the order of deletion.

    Raises
    ------
    JobError
        A job does not exist, or runs, or is the parent of a job that is not among them; the error names all of these.
    """
    jobs = list(jobs)
    derived = derived_jobs(files)
    found, refused = [], []
    for job in _children_first(jobs, derived):
        try:
            _refuse_parent(files, job, [child for child in derived[job] if child not in jobs], derived)
            entries = _all_of(files, job)
            if not entries:
                load_job(files, job)  # raises, with the nearest names
            found.append(DeletionPlan(job, _state(files, job), len(entries), sum(entry.size for entry in entries)))
        except JobError as error:
            refused.append(error)
    _raise_all(refused, files)
    return found


def _all_of(files: Files, job: str) -> list[Entry]:
    root = JobPaths(job).root
    return [*files.list(root), *files.scraps(root, 0)]


def _state(files: Files, job: str) -> str:
    if files.get_many([JobPaths(job).record])[0] is None:
        return "incomplete"
    found = JobState(files, job)
    found.require_no_runner(_stop_hint(job))
    with suppress(CorruptRecord):  # a damaged record is a reason to delete the job
        return found.status().state
    return "unreadable"


def _stop_hint(job: str) -> str:
    return f"stop the job first: mops jobs cancel {job}"


def derived_jobs(files: Files) -> Mapping[str, list[str]]:
    """Return the jobs that were derived from each job."""
    names, found = job_names(files), defaultdict[str, list[str]](list)
    for name, data in zip(names, files.get_many([JobPaths(name).record for name in names]), strict=True):
        if data is not None and (parent := parent_named(data)) is not None:
            found[parent].append(name)
    return found


def _children_first(jobs: Iterable[str], derived: Mapping[str, Sequence[str]]) -> list[str]:
    wanted, order = dict.fromkeys(jobs), dict[str, None]()

    def visit(job: str) -> None:
        for child in derived.get(job, ()):
            if child in wanted and child not in order:
                visit(child)
        order[job] = None

    for job in wanted:
        visit(job)
    return list(order)


def _refuse_parent(files: Files, job: str, children: Sequence[str], derived: Mapping[str, Sequence[str]]) -> None:
    if children:
        what = f"job {job!r} is the parent of {', '.join(children)}, which read rows from it"
        every = _children_first([job, *_descendants(job, derived)], derived)
        raise JobError(what, where=files.url, hint=f"delete them too: mops jobs delete {' '.join(every)}")


def _descendants(job: str, derived: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for child in derived.get(job, ()):
        yield child
        yield from _descendants(child, derived)


def _raise_all(errors: Sequence[JobError], files: Files) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error.what}" for error in errors)
        what = f"{len(errors)} jobs cannot be deleted:{lines}"
        raise JobError(what, where=files.url, hint="list the jobs and their states: mops jobs list")


def delete(files: Files, jobs: Iterable[str]) -> Iterator[Deleted]:
    """Delete jobs, or what a killed deletion or submit left; yield each job when it is deleted.

    Parameters
    ----------
    jobs
        From :func:`plan_deletion`, in its order.

    Raises
    ------
    JobError
        A runner has started since, or a job was derived: these jobs stay, and the others are deleted first.
    StorageError
        The storage refuses, or is out of reach. Another call continues where this one stopped.
    """
    hidden_jobs, refused = [], []
    for job in jobs:
        try:
            hidden_jobs.append(_hide_job(files, job))
        except JobError as error:
            refused.append(error)
    derived = derived_jobs(files)
    for hidden in hidden_jobs:
        try:
            hidden.check_unused(derived)
        except JobError as error:
            refused.append(error)
        else:
            yield _remove_files(files, hidden)
    _raise_all(refused, files)


@dataclass(frozen=True)
class _HiddenJob:
    """A job without its record, so that no reader finds it, while most of its files still exist.

    Parameters
    ----------
    record
        The job's record before; None: it had none.
    log
        The log with our claim; None: no one can claim the job.
    hosts
        As in :class:`Deleted`.
    """

    files: Files
    job: str
    record: bytes | None
    log: JobLog | None
    hosts: tuple[str, ...]

    def check_unused(self, derived: Mapping[str, Sequence[str]]) -> None:
        """Restore the job and raise if someone claimed it, or derived a job from it, before its record was removed."""
        try:
            _refuse_parent(self.files, self.job, derived.get(self.job, ()), derived)
            if self.log:
                self.log.poll()
        except (JobError, Superseded) as error:
            paths = JobPaths(self.job)
            if self.record is not None:
                self.files.put_new(paths.record, self.record)
            self.files.remove([paths.deleted])
            if isinstance(error, JobError):
                raise
            what = f"job {self.job!r} was resumed during the deletion"
            raise JobError(what, where=self.files.url, hint=_stop_hint(self.job)) from error


def _hide_job(files: Files, job: str) -> _HiddenJob:
    """Claim the job, so that silent runners stop, write that it is being deleted, and then remove its record."""
    paths = JobPaths(job)
    record = files.get_many([paths.record])[0]
    if record is None:
        return _hide_remains(files, job)
    found, log = JobState(files, job), None
    idle = found.require_no_runner(_stop_hint(job))
    if not idle.complete:  # runners of a complete job can write nothing
        with claimed(found, idle) as log:
            pass
    hosts = _hosts_of_runners(files, job)
    _write_deletion(files, job, hosts)
    files.remove([paths.record])
    return _HiddenJob(files, job, record, log, hosts)


def _hide_remains(files: Files, job: str) -> _HiddenJob:
    """Return a job that has lost its record to a killed deletion, or never had one after a killed submit."""
    paths = JobPaths(job)
    earlier = read_deletion(files, paths)
    if earlier is None:
        _write_deletion(files, job, ())
        if files.get_many([paths.record])[0] is not None:
            files.remove([paths.deleted])
            raise JobError(f"job {job!r} was submitted during the deletion", where=files.url, hint=_stop_hint(job))
    return _HiddenJob(files, job, None, None, earlier.hosts if earlier else ())


def _write_deletion(files: Files, job: str, hosts: tuple[str, ...]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_deletion(files, JobPaths(job), Deletion(os.environ.get("USER", "unknown"), now, hosts))


def _hosts_of_runners(files: Files, job: str) -> tuple[str, ...]:
    """Return the hosts of runners that have not ended their attempts and may be alive."""
    paths, hosts = JobPaths(job), dict[str, None]()
    for claim in JobLog(files, paths).read().unended:
        live = read_live(files, paths, claim.n)
        if live is None:
            hosts[claim.host] = None
        elif live.host != os.uname().nodename or is_alive(live, here=driven_here(files, job)):
            hosts[live.host] = None
    return tuple(hosts)


def _remove_files(files: Files, hidden: _HiddenJob) -> Deleted:
    """Remove the files of a hidden job; the record of the deletion last.

    If a runner may be alive, the records of the log that stop it stay: all but commits.
    """
    paths = JobPaths(hidden.job)
    removed = [] if hidden.record is None else [Entry(paths.record, len(hidden.record))]
    # Twice, because a runner that read the record before may have claimed the job just now.
    for _ in range(2):
        kept = {paths.deleted}
        if hidden.hosts:
            records = [entry.path for entry in files.list(paths.log)]
            for path, data in zip(records, files.get_many(records), strict=True):
                if data is not None and not isinstance(LOG_RECORDS.decode(data, path), Commit):
                    kept.add(path)
        left = [entry for entry in _all_of(files, hidden.job) if entry.path not in kept]
        files.remove([entry.path for entry in left])
        removed += left
    files.prune(paths.root)
    if not hidden.hosts:
        files.remove([paths.deleted])
        files.prune(paths.root)
    return Deleted(hidden.job, len(removed), sum(entry.size for entry in removed), hidden.hosts)
