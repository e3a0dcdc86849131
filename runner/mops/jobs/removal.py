"""Deletes jobs, and what killed runners left in the storage."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mops.errors import CorruptRecord, JobError, Superseded, UsageError
from mops.jobs.listing import STATES, list_jobs
from mops.jobs.location import service_with
from mops.jobs.owners import require_owner
from mops.jobs.status import JobMoment, JobState
from mops.storage.backends.base import Entry
from mops.storage.files import Files
from mops.storage.job_records import (
    JOB_RECORDS,
    Deletion,
    load_job,
    mark_deletion,
    sources_named,
    stored_records,
)
from mops.storage.joblog.log import JobLog, WholeLog, read_whole
from mops.storage.joblog.records import COMPACTIONS, Compaction, LogView, RunRequest
from mops.storage.paths import PART_KINDS, JobPaths, NamePaths, is_compacted, is_job_id, numbers_of

if TYPE_CHECKING:
    from mops.service.service import Service

# Jobs without an end: they run, wait for a runner, or have a damaged record that hides their age.
NOT_BY_AGE = frozenset({"submitted", "running", "unreadable"})


@dataclass(frozen=True)
class Cleaned:
    """What ``clean`` removed, or would remove."""

    job: str
    paths: tuple[str, ...]
    bytes: int  # of all these files
    # Files of the last attempt or of a compaction that do not count yet: their process may still make them count.
    kept: int


def clean(
    job: JobState,
    *,
    # Also remove files of the last attempt, after a claim that stops its runner, or of a killed compaction
    # of a complete job, which then can no longer be compacted. A job without an attempt does not change.
    last_attempt: bool = False,
    dry_run: bool = False,
    force: bool = False,  # also remove files of the last attempt if the job belongs to another person
) -> Cleaned:
    """Remove files that do not count from a job, while it runs or afterwards."""
    if not last_attempt:
        return _clean(job, dry_run=dry_run)
    hint = f"leave out --last-attempt to clean a job while it runs: mops jobs clean {job.name}"
    idle = job.require_no_runner(hint).view
    if dry_run or not idle.attempt:
        return _clean(job, dry_run=dry_run, assumed_over=dry_run)
    service = service_with(job.files, local=job.local)
    require_owner(job.record, service, force=force, command=f"mops jobs clean {job.name} --last-attempt")
    if idle.complete:
        if _clean(job, dry_run=True).kept:  # with this record no other compaction can count
            nothing = Compaction(time=time.time(), host=socket.gethostname(), merges=())
            job.files.put_new(job.record.paths.compaction, COMPACTIONS.encode(nothing))
        return _clean(job, dry_run=False)
    # A claim of an attempt that runs nothing: a silent runner stops when it wakes up. Raises Overtaken if someone has
    # resumed, cancelled or ended the job since `idle` was read. Until the end, no one can resume the job.
    log = JobLog(job.files, job.record.paths)
    log.claim("person", asked=RunRequest.behind(idle.k))
    try:
        return _clean(job, dry_run=False)
    finally:
        with suppress(Superseded):  # a newer attempt stops the silent runner as well
            log.end(idle.state or "cancelled", totals=log.view.counts)  # an interrupted job becomes cancelled


def _clean(
    job: JobState,
    *,
    dry_run: bool,
    # For a dry run, which claims nothing: whether a claim would end the last attempt, or a record every compaction.
    assumed_over: bool = False,
) -> Cleaned:
    files, paths = job.files, job.record.paths
    # Parts first, then the records: so these have every record that can ever name the parts of what is over.
    parts = [entry for kind in PART_KINDS for entry in files.list(f"{paths.root}/{kind}")]
    log = read_whole(files, paths)
    current = {one.part.path for one in log.parts}
    not_current = [(entry, _is_over(entry.path, log, assumed_over)) for entry in parts if entry.path not in current]
    found = [entry for entry, is_over in not_current if is_over]
    kept = sum(is_over is False for _, is_over in not_current)
    if not dry_run:
        files.remove([entry.path for entry in found])
    return Cleaned(job.name, tuple(entry.path for entry in found), sum(entry.size for entry in found), kept)


def _is_over(path: str, log: WholeLog, assumed_over: bool) -> bool | None:
    """Tell whether a part that does not count can never count; None: the file does not belong to this job."""
    if numbers := numbers_of(path):
        return numbers[0] <= last_attempt_over(log.view) + assumed_over
    if not (is_compacted(path) and log.view.complete):
        return None
    # Only the first compaction counts. Without its record, one may still come.
    return assumed_over or log.compaction is not None


def last_attempt_over(view: LogView) -> int:
    """Return the last attempt that can commit no more: the last one of a complete job, else the last but one."""
    # The view must be the one that shows which parts are named: it has every commit before its last claim.
    return view.attempt if view.complete else view.attempt - 1


@dataclass(frozen=True)
class DeletionPlan:
    """The files that a deletion would remove."""

    job: str
    # The job's state; `unreadable`: its record is damaged; `incomplete`: it has no record, because a submit or a
    # deletion was killed.
    state: str
    files: int
    bytes: int
    ended: float | None = None  # when the last attempt ended (s since the epoch); None: unknown, or there was none


@dataclass(frozen=True)
class Deleted:
    """The files that a deletion removed."""

    job: str
    files: int
    bytes: int


def plan_deletion(
    files: Files,
    jobs: Iterable[str],
    service: Service | None = None,  # that knows the person who deletes
    *,
    force: bool = False,  # also delete jobs of others, if the person may
    command: str = "",  # of the person, without --force; empty: `mops jobs delete`
) -> list[DeletionPlan]:
    """Return what a deletion would remove, in its order; raise JobError that names all jobs that must stay."""
    jobs = list(jobs)
    command = command or f"mops jobs delete {' '.join(jobs)}"
    derived = derived_jobs(files)
    found, refused = [], []
    for job in (one for one in _with_derived(jobs, derived) if one in jobs):
        if readers := [child for child in derived[job] if child not in jobs]:
            refused.append(_is_read(files, job, readers, derived))
            continue
        try:
            state = "incomplete"
            try:
                if (record := JOB_RECORDS.read(files, NamePaths(job).record)) is not None:
                    require_owner(record, service, force=force, command=command)
                    state = JobState(files, job).require_no_runner(_stop_hint(job)).state
            except CorruptRecord:  # a reason to delete the job, and no runner can continue it
                state = "unreadable"
            found.append(_planned(files, job, state))
            if not found[-1].files:
                load_job(files, job)  # raises, with the nearest names
        except JobError as error:
            refused.append(error)
    _raise_all(refused, files)
    return found


def _planned(files: Files, job: str, state: str, ended: float | None = None) -> DeletionPlan:
    entries = files.list(NamePaths(job).root)
    return DeletionPlan(job, state, len(entries), sum(entry.size for entry in entries), ended)


@dataclass(frozen=True)
class OldJobs:
    """The jobs that a deletion by age removes, in its order, and those that must stay."""

    jobs: Sequence[DeletionPlan]
    kept: Mapping[str, Sequence[str]]  # old jobs with rows that jobs read which stay, and these jobs
    of_others: Sequence[JobError]  # why this person may not delete some old jobs


def find_old(
    files: Files,
    ended_before: float,
    states: Collection[str],
    service: Service | None = None,  # that knows the person who deletes
    *,
    force: bool = False,  # also delete jobs of others, if the person may
) -> OldJobs:
    """Return the jobs in some states whose last attempt ended before a time (s since the epoch).

    With them come the remains of killed deletions. UsageError: a job in one of the states may still run.
    """
    if wrong := sorted(set(states) & NOT_BY_AGE):
        what = f"mops deletes no {wrong[0]} jobs by their age"
        hint = f"choose from: {', '.join(state for state in STATES if state not in NOT_BY_AGE)}"
        raise UsageError(what, where="--state", hint=hint)
    ended, of_others = dict[str, JobMoment](), list[JobError]()
    # The storage knows nothing of a resumed job until its runner claims it.
    wait = {job for job, phase in service.phases().items() if not phase.over} if service else ()
    for listed in list_jobs(files, states):
        is_young = not listed.created or datetime.fromisoformat(listed.created).timestamp() >= ended_before
        if is_young or listed.job in wait:
            continue
        with suppress(JobError):  # someone has resumed or deleted it since the list
            moment = JobState(files, listed.job).require_no_runner(_stop_hint(listed.job))
            if moment.state in states and moment.ended < ended_before:
                ended[listed.job] = moment
    for name, moment in list(ended.items()):
        try:
            require_owner(moment.record, service, force=force, command="mops jobs clean --older-than")
        except JobError as of_another:
            of_others.append(of_another)
            del ended[name]
    derived, kept = derived_jobs(files), dict[str, Sequence[str]]()
    order = [job for job in _with_derived(ended, derived) if job in ended]
    for job in order:
        if readers := [child for child in derived.get(job, ()) if child not in ended]:
            kept[job] = readers
            del ended[job]
    jobs = [_planned(files, job, ended[job].state, ended[job].ended) for job in order if job in ended]
    return OldJobs([*(_planned(files, name, "incomplete") for name in _remains(files)), *jobs], kept, of_others)


def _remains(files: Files) -> Iterator[str]:
    """Yield the names without a job that have files which a killed deletion left."""
    for name, record in stored_records(files).items():
        if record is None:
            folders = [JobPaths(name, one) for one in files.folders(NamePaths(name).root) if is_job_id(one)]
            if any(mark is not None for mark in files.get_many([paths.deleted for paths in folders])):
                yield name


def _stop_hint(job: str) -> str:
    return f"stop the job first: mops jobs cancel {job}"


def derived_jobs(files: Files) -> Mapping[str, list[str]]:
    """Return the jobs that have rows in the parts of each job."""
    found = defaultdict[str, list[str]](list)
    for name, data in stored_records(files).items():
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


def _is_read(files: Files, job: str, readers: Sequence[str], derived: Mapping[str, Sequence[str]]) -> JobError:
    what = f"job {job!r} has rows that other jobs read: {', '.join(readers)}"
    every = _with_derived([job], derived)
    return JobError(what, where=files.url, hint=f"delete them too: mops jobs delete {' '.join(every)}")


def _raise_all(errors: Sequence[JobError], files: Files) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "".join(f"\n  {error.what}" for error in errors)
        what = f"{len(errors)} jobs cannot be deleted:{lines}"
        hints = {error.hint for error in errors}
        hint = hints.pop() if len(hints) == 1 else "list the jobs and their states: mops jobs list"
        raise JobError(what, where=files.url, hint=hint)


def delete(
    files: Files,
    jobs: Iterable[str],  # from `plan_deletion` or `find_old`, in its order
    *,
    ended_before: float | None = None,  # the time that `find_old` got; None: the age does not count
) -> Iterator[Deleted]:
    """Delete jobs, or what a killed deletion or submit left; yield each job when it is deleted."""
    # A job that a runner has claimed since, or from which a job was derived, is a JobError after all others are
    # deleted. After a StorageError, another call continues.
    marked, refused = [], []
    for job in jobs:
        try:
            marked.append(_mark(files, job, ended_before))
        except JobError as error:
            refused.append(error)
    derived, deleted = derived_jobs(files), set[str]()
    for one in marked:
        readers = [child for child in derived[one.job] if child not in deleted]
        why_not = _is_read(files, one.job, readers, derived) if readers else one.changed()
        if why_not is None:
            yield one.remove()
            deleted.add(one.job)
        else:
            refused.append(why_not)
            files.remove([paths.deleted for paths in one.folders])  # withdraws the marks
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

    def changed(self) -> JobError | None:
        """Return an error if someone has submitted or claimed the job before its mark."""
        is_resumed = self.log is not None and self.log.read().attempt > self.attempts
        if not is_resumed and _record(self.files, self.job) == self.record:
            return None
        what = f"job {self.job!r} was {'resumed' if is_resumed else 'submitted'} during the deletion"
        return JobError(what, where=self.files.url, hint=_stop_hint(self.job))

    def remove(self) -> Deleted:
        """Remove the record, so that the job no longer exists, and then the other files; the marks last."""
        record, removed = NamePaths(self.job).record, list[Entry]()
        # Only that of the marked job: meanwhile someone may have submitted another one.
        if self.record is not None and _record(self.files, self.job) == self.record:
            self.files.remove([record])
            removed.append(Entry(record, len(self.record)))
        marks, ids = [paths.deleted for paths in self.folders], [paths.id for paths in self.folders]
        for _ in range(2):  # twice, for a runner that has not yet noticed the deletion
            listed = self.files.list(NamePaths(self.job).root)
            entries = [entry for entry in listed if entry.path not in (*marks, record)]
            # Not the files of a job that someone submits under this name meanwhile.
            left = [one for one in entries if not is_job_id(folder := one.path.split("/")[2]) or folder in ids]
            self.files.remove([entry.path for entry in left])
            removed += left
        self.files.remove(marks)
        self.files.prune(NamePaths(self.job).root)
        return Deleted(self.job, len(removed), sum(entry.size for entry in removed))


def _mark(files: Files, job: str, ended_before: float | None) -> _MarkedJob:
    """Mark what has the name of a job, so that no one submits, claims or derives from it."""
    record, log, attempts = _record(files, job), None, 0
    current = None
    with suppress(CorruptRecord):
        current = JOB_RECORDS.decode(record, f"{files.url}/{NamePaths(job).record}").paths if record else None
    if current is not None:
        with suppress(CorruptRecord):
            moment = JobState(files, job).require_no_runner(_stop_hint(job))
            if ended_before is not None and moment.ended >= ended_before:
                what = f"job {job!r} was submitted or resumed meanwhile, and has ended since"
                raise JobError(what, where=files.url, hint=f"show its state: mops jobs status {job}")
            idle = moment.view
            log, attempts = (None if idle.complete else JobLog(files, current)), idle.attempt
    ids = [name for name in files.folders(NamePaths(job).root) if is_job_id(name)]
    folders = [JobPaths(job, one) for one in dict.fromkeys([*ids, *([current.id] if current else [])])]
    mark = Deletion(os.environ.get("USER", "unknown"), datetime.now(UTC).isoformat(timespec="seconds"))
    for paths in folders:
        mark_deletion(files, paths, mark)
    return _MarkedJob(files, job, record, log, attempts, folders)


def _record(files: Files, job: str) -> bytes | None:
    return files.get_many([NamePaths(job).record])[0]
