"""A job's own records: what was submitted, the reference schema, the copy of its end. Commits are joblog's."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import not_
from typing import Annotated

from pydantic import Field

import mops
from mops.errors import CorruptRecord, JobError, NewerFormat
from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.backends.spool import Spool
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.joblog.records import End
from mops.storage.json_records import FORMAT, JsonCodec, StoredFamilies, StoredRanges
from mops.storage.params_file import encode_groups, read_groups
from mops.storage.paths import JOBS, JobPaths, bundle_path, is_job_name
from mops.study.column_families import Families
from mops.study.group_builder import StudyGroups
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.verdicts import Counts

_PIECE_CHARACTERS = 2**20


@dataclass(frozen=True)
class Parent:
    """The complete job that a derived one takes rows over from (docs/internals/storage.md, "Derived jobs").

    Parameters
    ----------
    k, nonce
        Its last record: by these it is known again.
    groups
        Groups that run again; every other is taken over.
    counts
        What is taken over.
    """

    job: str
    k: int
    nonce: str
    groups: StoredRanges
    counts: Counts


@dataclass(frozen=True)
class JobRecord:
    """What a job is: written once at submit, last of the job's objects.

    Parameters
    ----------
    created
        When it was submitted (UTC, ISO 8601).
    bundle
        The bundle's digest.
    options
        How it was started. A resume may have changed them: :func:`mops.storage.kept_options.read_options`.
    study
        The study's name, for people: a label of its runner's Kubernetes Job.
    project
        The project root on the machine that submitted it: a resume there tells what has changed since.
    parent
        Of a derived job.
    """

    job: str
    created: str
    bundle: str
    spec: ModelSpec
    n_groups: int
    n_simulations: int
    options: JobOptions
    study: str
    project: str
    parent: Annotated[Parent | None, Field(exclude_if=not_)] = None

    @property
    def due(self) -> Ranges:
        """The groups that the job's own log is to commit."""
        return self.parent.groups if self.parent else Ranges().complement(self.n_groups)

    @property
    def taken_over(self) -> Ranges:
        """The groups that the job has from its parent."""
        return self.due.complement(self.n_groups)

    @property
    def taken_over_counts(self) -> Counts:
        """Simulations and targets of the groups taken over."""
        return self.parent.counts if self.parent else Counts()

    def todo(self, committed: Ranges) -> Ranges:
        """Return the groups that are left to run when the job's own log has committed these."""
        return self.due & committed.complement(self.n_groups)


JOB_RECORDS = JsonCodec[JobRecord](JobRecord)


def create_job(files: Files, record: JobRecord, bundle: Bundle, study: str, groups: StudyGroups) -> None:
    """Write a job; it exists when its record does, which comes last.

    Parameters
    ----------
    study
        The study as it was given: JSON, and checked. It goes in as it is: as objects, 100,000 sets are 25 MiB.

    Raises
    ------
    JobError
        There is a job of this name, or what is left of one that was deleted.
    StorageError
        The storage refuses.
    """
    paths = JobPaths(record.job)
    refuse_deleted(files, paths)
    taken = _taken(files, record.job)
    params = encode_groups(groups, files.spool())
    content = _encode_study(study, params.digest, files.spool())
    # The same study without a job record is what a killed submit leaves: the next one goes on from it.
    if not files.put_new(paths.study, content) and files.get(paths.study) != content.read():
        raise taken
    files.put_new(bundle_path(bundle.digest), bundle.data)  # named by content: another job's is the same
    files.put_new(paths.params, params.content)
    if not _put_record(files, record):
        raise taken
    withdraw_deleted(files, paths)


def _encode_study(study: str, params_digest: str, spool: Spool) -> Spool:
    """Write ``study.json`` piece by piece: a copy of the whole would be the most that a submit holds.

    The digest is in it because a study that names a file of sets is another one when the file is.
    """
    spool.write(f'{{"format":{FORMAT},"params_sha256":"{params_digest}","study":'.encode())
    for at in range(0, len(study), _PIECE_CHARACTERS):
        spool.write(study[at : at + _PIECE_CHARACTERS].encode())
    spool.write(b"}")
    return spool


def withdraw_deleted(files: Files, paths: JobPaths) -> None:
    """Take a new job's record back if the name is being deleted: the last step of creating a job.

    A deletion first writes ``deleted.json`` and then looks for the record. Here the order is the other one, so that
    at least one of the two sees the other and gives way.

    Raises
    ------
    JobError
        As for :func:`refuse_deleted`.
    """
    try:
        refuse_deleted(files, paths)
    except JobError:
        files.remove([paths.record])
        raise


def refuse_deleted(files: Files, paths: JobPaths) -> None:
    """Refuse a name under which something of a deleted job is left: the first step of creating a job.

    Raises
    ------
    JobError
        Something is left.
    """
    deletion = read_deletion(files, paths)
    if deletion is None:
        return
    where = f"{files.url}/{paths.deleted}"
    if deletion.hosts:
        what = f"a job {paths.job!r} was deleted whose runner on {', '.join(deletion.hosts)} may still be alive"
        raise JobError(what, where=where, hint="choose another name")
    hint = f"finish that with: mops jobs delete {paths.job}; or choose another name"
    raise JobError(f"a job {paths.job!r} is deleted in part", where=where, hint=hint)


@dataclass(frozen=True)
class Deletion:
    """What stands while a job's files are removed, and after it where a runner of it may still be alive.

    Parameters
    ----------
    hosts
        Where such a runner may be: it is to meet the claims of the log, which stay, and nobody uses the name again.
    """

    who: str
    at: str
    hosts: tuple[str, ...]


_DELETIONS = JsonCodec[Deletion](Deletion)


def write_deletion(files: Files, paths: JobPaths, deletion: Deletion) -> None:
    """Say that the job is being deleted."""
    files.put(paths.deleted, _DELETIONS.encode(deletion))


def read_deletion(files: Files, paths: JobPaths) -> Deletion | None:
    """Return what is said of the job's deletion; None: it is not being deleted."""
    return _DELETIONS.read(files, paths.deleted)


def check_still_there(files: Files, record: JobRecord) -> None:
    """Look, behind a claim, whether this job was deleted since its record was read.

    A deletion removes the record and then looks for new claims: at least one of the two sees the other.

    Raises
    ------
    JobError
        It was.
    """
    found = JOB_RECORDS.read(files, JobPaths(record.job).record)
    if found is None or found.created != record.created:
        raise JobError(f"job {record.job!r} was deleted meanwhile", where=files.url, hint="submit the study again")


# The jobs that runners of this very process are at. Their processes' lives say nothing about them: a notebook lives on.
_driven: list[tuple[str, str]] = []


@contextmanager
def driving(files: Files, job: str) -> Iterator[None]:
    """Note, for :func:`driven_here`, that this process runs a job in the body."""
    _driven.append((files.url, job))
    try:
        yield
    finally:
        _driven.remove((files.url, job))


def driven_here(files: Files, job: str) -> bool:
    """Tell whether this process is running a job."""
    return (files.url, job) in _driven


def create_derived(files: Files, record: JobRecord, parent: Parent) -> None:
    """Write a derived job: what its parent is, copied, and its record last.

    Raises
    ------
    JobError
        There is a job of this name, or what is left of one that was deleted; or the parent is deleted meanwhile.
    StorageError
        The storage refuses.
    """
    own, its = JobPaths(record.job), JobPaths(parent.job)
    refuse_deleted(files, own)
    copied = [(own.study, its.study), (own.params, its.params)]
    if read_reference(files, its) is not None:  # none: not one simulation of the parent was good
        copied.append((own.schema, its.schema))
    for path, source in copied:
        data = files.get(source)
        # The same bytes without a job record are what a killed retry leaves.
        if not files.put_new(path, data) and files.get(path) != data:
            raise _taken(files, record.job)
    if not _put_record(files, record):
        raise _taken(files, record.job)
    withdraw_deleted(files, own)
    # A deletion removes the parent's record and then looks for derived jobs: at least one of the two sees the other.
    if files.get_many([its.record])[0] is None:
        files.remove([own.record])
        raise JobError(f"job {parent.job!r} was deleted meanwhile", where=files.url, hint="submit the study again")


def _put_record(files: Files, record: JobRecord) -> bool:
    return files.put_new(JobPaths(record.job).record, JOB_RECORDS.encode(record, mops=mops.__version__))


def _taken(files: Files, job: str) -> JobError:
    return JobError(f"there is a job {job!r} already", where=files.url, hint="choose another name")


def load_job(files: Files, job: str) -> JobRecord:
    """Return a job's record.

    Raises
    ------
    JobError
        There is no such job; the nearest names are given.
    NewerFormat, CorruptRecord
        The record is of a newer mops, or is not one.
    """
    record = JOB_RECORDS.read(files, JobPaths(job).record)
    if record is None:
        raise _no_job(files, job)
    return record


@dataclass(frozen=True)
class _ParentName:
    job: str


@dataclass(frozen=True)
class _Derived:
    parent: _ParentName


_DERIVED = JsonCodec[_Derived](_Derived)


def parent_named(data: bytes) -> str | None:
    """Return the parent that a job's record names, whatever else is in it: it may be a newer mops's, or broken."""
    derived = _DERIVED.glance(data)
    return derived.parent.job if derived else None


def _no_job(files: Files, job: str) -> JobError:
    names = job_names(files)
    near = difflib.get_close_matches(job, names, 3) or names[-3:]
    records = files.get_many([JobPaths(name).record for name in near])
    there = [name for name, record in zip(near, records, strict=True) if record is not None]
    if there:
        hint = f"there are: {', '.join(there)}"
    elif names:
        hint = "what there is: mops jobs list"
    else:
        hint = "this storage holds no jobs: name another by MODELOPS_STORAGE"
    return JobError(f"there is no job {job!r}", where=files.url, hint=hint)


def job_names(files: Files) -> list[str]:
    """Return the names under which something lies in a storage: a job, or what a killed submit or delete left."""
    return [name for name in files.folders(JOBS) if is_job_name(name)]


def load_groups(files: Files, job: str) -> GroupTable:
    """Return a job's groups; pieces of them are read as they are needed."""
    path = JobPaths(job).params
    return read_groups(files.reader(path), f"{files.url}/{path}")


@dataclass(frozen=True)
class _Reference:
    outputs: StoredFamilies


_REFERENCES = JsonCodec[_Reference](_Reference)


def read_reference(files: Files, paths: JobPaths) -> Families | None:
    """Return the job's reference schema: what the first good simulation gave; None before that.

    What later values fixed beyond it, the commits say (:attr:`mops.storage.joblog.view.LogView.families`).
    """
    reference = _REFERENCES.read(files, paths.schema)
    return reference.outputs if reference else None


def keep_reference(files: Files, paths: JobPaths, families: Families) -> Families:
    """Make this the job's reference schema, unless it has one; return the one that it has now."""
    files.put_new(paths.schema, _REFERENCES.encode(_Reference(families)))
    return read_reference(files, paths) or families


@dataclass(frozen=True, kw_only=True)
class Finished(End):
    """A copy of a job's complete end.

    Parameters
    ----------
    created
        Tells this job from another of its name.
    """

    created: str


_FINISHED = JsonCodec[Finished](Finished, advisory=True)


def keep_finished(files: Files, record: JobRecord, end: End) -> None:
    """Keep a copy of the complete end, for quick listing."""
    copy = Finished(**vars(end), created=record.created)
    files.put(JobPaths(record.job).finished, _FINISHED.encode(copy))


def decode_finished(data: bytes, record: JobRecord) -> Finished | None:
    """Return the copy of a job's end; None: these bytes are none, or of another job, and the log is to be read."""
    try:
        copy = _FINISHED.decode(data, JobPaths(record.job).finished)
    except (CorruptRecord, NewerFormat):
        return None
    return copy if copy.created == record.created and copy.complete else None
