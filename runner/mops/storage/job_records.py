"""A job's own records: the submit, the reference schema, the copy of the end. Commits are in the log (`joblog/`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import not_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

import mops
from mops.errors import CorruptRecord, JobError, NewerFormat, similar
from mops.project.project import ModelSpec
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.joblog.records import End
from mops.storage.json_records import FORMAT, JsonCodec, StoredFamilies, StoredRanges
from mops.storage.paths import JOBS, JobPaths, bundle_path, is_job_name
from mops.study.column_families import Families
from mops.study.ranges import Ranges
from mops.verdicts import Counts

if TYPE_CHECKING:
    from mops.parquet.encoder import Encoded
    from mops.project.bundle import Bundle
    from mops.storage.backends.spool import Spool

_HEAD_BYTES = 200
_PARAMS_DIGEST = re.compile(rb'("params_sha256":")([0-9a-f]{64})')
_PIECE_CHARACTERS = 2**20


@dataclass(frozen=True)
class Parent:
    """The complete job from which a derived job takes rows over (docs/internals/storage.md, "Derived jobs").

    Parameters
    ----------
    k, nonce
        These identify the parent's last record, and so the parent.
    groups
        Groups that run again, and groups that the parent does not have. The derived job takes over all others.
    counts
        Counts of all that the derived job takes over.
    simulated
        Some of ``groups``: the derived job takes over the simulations that the parent has of them, all of which are
        good. It runs their other simulations, and their targets.
    """

    job: str
    k: int
    nonce: str
    groups: StoredRanges
    counts: Counts
    simulated: Annotated[StoredRanges, Field(exclude_if=not_)] = field(default_factory=Ranges)

    @property
    def simulated_again(self) -> Ranges:
        """The groups whose simulations of the parent do not count."""
        return self.groups - self.simulated


@dataclass(frozen=True)
class ReuseSource:
    """A complete job from which another job takes simulations (docs/internals/storage.md, "Reuse").

    Parameters
    ----------
    k, nonce
        These identify the source's last record, and so the source.
    simulations
        How many simulations are taken from it.
    """

    job: str
    k: int
    nonce: str
    simulations: int


@dataclass(frozen=True)
class Reuse:
    """The simulations that a job takes from other jobs instead of running them.

    Parameters
    ----------
    sources
        The jobs from which it takes simulations.
    digest
        The SHA-256 of the table that says which simulation comes from where.
    """

    sources: tuple[ReuseSource, ...]
    digest: str


@dataclass(frozen=True)
class JobRecord:
    """The job as a person submitted it. mops writes this record once, as the last of a new job's files.

    Parameters
    ----------
    created
        When the person submitted the job (UTC, ISO 8601).
    bundle
        The bundle's digest.
    options
        The options of the submit. A resume may change them: :func:`mops.storage.kept_options.read_options`.
    study
        The study's name, for people: a label of the runner's Kubernetes Job.
    project
        The project root on the machine of the submit. A resume there lists the files that have changed since.
    parent
        The parent of a derived job; None: the job is not derived.
    study_file
        The study file on the machine of the submit; empty: a program gave the study.
    reuse
        What the job takes from other jobs; None: every simulation runs.
    mixed_code
        Files that may belong to the model, of which this job has other versions than some simulations that it takes
        over ran with.
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
    study_file: Annotated[str, Field(exclude_if=not_)] = ""
    reuse: Annotated[Reuse | None, Field(exclude_if=not_)] = None
    mixed_code: Annotated[tuple[str, ...], Field(exclude_if=not_)] = ()

    @property
    def due(self) -> Ranges:
        """The groups that the job's own log commits."""
        return self.parent.groups if self.parent else Ranges().complement(self.n_groups)

    @property
    def taken_over(self) -> Ranges:
        """The groups that the job takes over from its parent."""
        return self.due.complement(self.n_groups)

    @property
    def taken_over_counts(self) -> Counts:
        """Simulations and targets of :attr:`taken_over`."""
        return self.parent.counts if self.parent else Counts()

    @property
    def origins(self) -> dict[str, int]:
        """How many simulations come from which other job: the parent, or the sources of a reuse."""
        if self.parent is not None:
            return {self.parent.job: self.parent.counts.simulations}
        return {source.job: source.simulations for source in self.reuse.sources} if self.reuse else {}

    def todo(self, committed: Ranges) -> Ranges:
        """Return the groups that are left to run after the job's own log has committed these."""
        return self.due & committed.complement(self.n_groups)


JOB_RECORDS = JsonCodec[JobRecord](JobRecord)


def create_job(
    files: Files,
    record: JobRecord,
    bundle: Bundle,
    study: str,
    params: Encoded[Spool],
    reused: Encoded[Spool] | None = None,
) -> None:
    """Write a job's files. The job exists as soon as its record does, which comes last.

    Parameters
    ----------
    study
        The checked study as JSON text. As Python objects, 100,000 sets would take 25 MiB.
    params
        The groups, from :func:`mops.storage.params_file.encode_groups`.
    reused
        Which simulations are taken from other jobs, if any are.

    Raises
    ------
    JobError
        A job of this name exists, or files of a deleted job of this name are left.
    StorageError
        The storage refuses.
    """
    paths = JobPaths(record.job)
    refuse_deleted(files, paths)
    taken = _taken(files, record.job)
    content = files.spool()
    # With the digest of the parameters, because a study may name a file of parameter sets, and that file may change.
    content.write(f'{{"format":{FORMAT},"params_sha256":"{params.digest}","study":'.encode())
    for at in range(0, len(study), _PIECE_CHARACTERS):  # a copy of the whole text would be a submit's peak memory
        content.write(study[at : at + _PIECE_CHARACTERS].encode())
    content.write(b"}")
    # A killed submit leaves the same study without a job record; the next submit continues from there.
    if not files.put_new(paths.study, content) and files.get(paths.study) != content.read():
        raise taken
    files.put_new(bundle_path(bundle.digest), bundle.data)  # the digest names it: another job's file is the same
    files.put_new(paths.params, params.content)
    if reused is not None:
        files.put_new(paths.reused(reused.digest), reused.content)
    if not _put_record(files, record):
        raise taken
    withdraw_deleted(files, paths)


def withdraw_deleted(files: Files, paths: JobPaths) -> None:
    """Remove a new job's record if a deletion of the name runs: the last step of creating a job.

    A deletion writes ``deleted.json`` first and then looks for the record. A submit does both in the opposite order, so
    at least one of the two sees the other and stops.

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
    """Refuse a name under which files of a deleted job are left: the first step of creating a job.

    Raises
    ------
    JobError
        Files are left.
    """
    deletion = read_deletion(files, paths)
    if deletion is None:
        return
    where = f"{files.url}/{paths.deleted}"
    if deletion.hosts:
        what = f"job {paths.job!r} was deleted, but its runner on {', '.join(deletion.hosts)} may still be alive"
        raise JobError(what, where=where, hint="choose another name")
    hint = f"finish the deletion: mops jobs delete {paths.job}; or choose another name"
    raise JobError(f"job {paths.job!r} is only partly deleted", where=where, hint=hint)


@dataclass(frozen=True)
class Deletion:
    """Marks a job whose files mops removes, and a removed job of which a runner may still be alive.

    Parameters
    ----------
    hosts
        Where a runner may be alive. The log's claims stay to stop it, and mops refuses new jobs of the name.
    """

    who: str
    at: str
    hosts: tuple[str, ...]


_DELETIONS = JsonCodec[Deletion](Deletion)


def write_deletion(files: Files, paths: JobPaths, deletion: Deletion) -> None:
    """Mark the job as being deleted."""
    files.put(paths.deleted, _DELETIONS.encode(deletion))


def read_deletion(files: Files, paths: JobPaths) -> Deletion | None:
    """Return the mark of the job's deletion; None: there is none."""
    return _DELETIONS.read(files, paths.deleted)


def check_still_there(files: Files, record: JobRecord) -> None:
    """Check after a claim that the job still exists.

    A deletion removes the record and then looks for new claims, so at least one of the two sees the other.

    Raises
    ------
    JobError
        A deletion has removed the job since this process read its record.
    """
    found = JOB_RECORDS.read(files, JobPaths(record.job).record)
    if found is None or found.created != record.created:
        raise JobError(f"job {record.job!r} was deleted meanwhile", where=files.url, hint="submit the study again")


# The jobs that this process runs. A living process does not mean a living runner: a notebook outlives its jobs.
_driven: list[tuple[str, str]] = []


@contextmanager
def driving(files: Files, job: str) -> Iterator[None]:
    """Note for :func:`driven_here` that this process runs a job, while the body runs."""
    _driven.append((files.url, job))
    try:
        yield
    finally:
        _driven.remove((files.url, job))


def driven_here(files: Files, job: str) -> bool:
    """Tell whether this process runs a job."""
    return (files.url, job) in _driven


@dataclass(frozen=True)
class DerivedFiles:
    """The files of a derived job that are not copies of its parent's.

    Parameters
    ----------
    params
        The groups, from :func:`mops.storage.params_file.encode_groups`; None: the parent's.
    bundle
        The project's files; None: the parent's.
    reused
        Which simulations are taken by a reuse, if any are.
    """

    params: Encoded[Spool] | None = None
    bundle: Bundle | None = None
    reused: Encoded[Spool] | None = None


def create_derived(files: Files, record: JobRecord, parent: Parent, new: DerivedFiles = DerivedFiles()) -> None:
    """Write a derived job: copies of its parent's files, and its record last.

    Parameters
    ----------
    new
        The files that differ from those of the parent.

    Raises
    ------
    JobError
        A job of this name exists, or files of a deleted job of this name are left; or a deletion removes the parent
        at the same time.
    StorageError
        The storage refuses.
    """
    own, its = JobPaths(record.job), JobPaths(parent.job)
    refuse_deleted(files, own)
    study = files.get(its.study)
    if new.params is not None:
        study = _PARAMS_DIGEST.sub(rb"\g<1>" + new.params.digest.encode(), study, count=1)
    contents = [(own.study, study), (own.params, new.params.content.read() if new.params else files.get(its.params))]
    if read_reference(files, its) is not None:  # none: every simulation of the parent failed
        contents.append((own.schema, files.get(its.schema)))
    if new.bundle is not None:
        files.put_new(bundle_path(new.bundle.digest), new.bundle.data)
    if new.reused is not None:
        files.put_new(own.reused(new.reused.digest), new.reused.content)
    for path, data in contents:
        # A killed submit of the derived job leaves the same bytes without a job record.
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
    hint = f"choose another name; to continue a job that has stopped: mops jobs resume {job}"
    return JobError(f"job {job!r} exists already", where=files.url, hint=hint)


def job_exists(files: Files, job: str) -> bool:
    """Tell whether a job of this name exists."""
    return JOB_RECORDS.read(files, JobPaths(job).record) is not None


def params_digest(files: Files, job: str) -> str | None:
    """Return the SHA-256 of the parameters that a job was submitted with; None: the job does not exist."""
    try:
        head = files.get(JobPaths(job).study)[:_HEAD_BYTES]
    except FileNotFoundError:
        return None
    found = _PARAMS_DIGEST.search(head)
    return found[2].decode() if found else None


def load_job(files: Files, job: str) -> JobRecord:
    """Return a job's record.

    Raises
    ------
    JobError
        The job does not exist; the error gives similar names.
    NewerFormat, CorruptRecord
        A newer mops wrote the record, or it is not what mops wrote.
    """
    record = JOB_RECORDS.read(files, JobPaths(job).record)
    if record is not None:
        return record
    names = job_names(files)
    near = similar(job, names, 3) or names[-3:]
    records = files.get_many([JobPaths(name).record for name in near])
    there = [name for name, data in zip(near, records, strict=True) if data is not None]
    if there:
        hint = f"use the name of an existing job: {', '.join(there)}"
    elif names:
        hint = "list the existing jobs: mops jobs list"
    else:
        hint = "this storage has no jobs; name another one: --storage FOLDER|URL"
    raise JobError(f"job {job!r} does not exist", where=files.url, hint=hint)


@dataclass(frozen=True)
class _ParentName:
    job: str


@dataclass(frozen=True)
class _Derived:
    parent: _ParentName


_DERIVED = JsonCodec[_Derived](_Derived)


def parent_named(data: bytes) -> str | None:
    """Return the parent in the bytes of a job's record, even if a newer mops wrote them or other fields are broken."""
    derived = _DERIVED.glance(data)
    return derived.parent.job if derived else None


def job_names(files: Files) -> list[str]:
    """Return the names that have files in a storage: jobs, and remains of a killed submit or delete."""
    return [name for name in files.folders(JOBS) if is_job_name(name)]


@dataclass(frozen=True)
class _Reference:
    outputs: StoredFamilies


_REFERENCES = JsonCodec[_Reference](_Reference)


def read_reference(files: Files, paths: JobPaths) -> Families | None:
    """Return the job's reference schema, from the first good simulation; None before that.

    :attr:`mops.storage.joblog.view.LogView.families` has what later values fixed beyond it.
    """
    reference = _REFERENCES.read(files, paths.schema)
    return reference.outputs if reference else None


def keep_reference(files: Files, paths: JobPaths, families: Families) -> Families:
    """Store the job's reference schema unless there is one; return the stored one."""
    files.put_new(paths.schema, _REFERENCES.encode(_Reference(families)))
    return read_reference(files, paths) or families


@dataclass(frozen=True, kw_only=True)
class Finished(End):
    """A copy of a job's complete end.

    Parameters
    ----------
    created
        The creation time of the job, which distinguishes it from another job of the same name.
    """

    created: str


_FINISHED = JsonCodec[Finished](Finished, advisory=True)


def keep_finished(files: Files, record: JobRecord, end: End) -> None:
    """Keep a copy of the complete end, for quick listing."""
    copy = Finished(**vars(end), created=record.created)
    files.put(JobPaths(record.job).finished, _FINISHED.encode(copy))


def decode_finished(data: bytes, record: JobRecord) -> Finished | None:
    """Return the copy of a job's end; None: the bytes are unusable or of another job, so read the log."""
    try:
        copy = _FINISHED.decode(data, JobPaths(record.job).finished)
    except (CorruptRecord, NewerFormat):
        return None
    return copy if copy.created == record.created and copy.complete else None
