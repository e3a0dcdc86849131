"""A job's own records: the submit, the reference schema, the copy of the end. Commits are in the log (`joblog/`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import not_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

import mops
from mops.errors import CorruptRecord, JobError, NewerFormat, similar
from mops.project.project import ModelSpec
from mops.storage.backends.base import Put
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.joblog.records import End
from mops.storage.json_records import FORMAT, JsonCodec, StoredFamilies, StoredRanges
from mops.storage.paths import JOBS, JobPaths, NamePaths, bundle_path, is_job_name
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
    id
        The parent's id: another job may get its name.
    groups
        Groups that run again, and groups that the parent does not have. The derived job takes over all others.
    counts
        Counts of all that the derived job takes over.
    simulated
        Some of ``groups``: the derived job takes over the simulations that the parent has of them, all of which are
        good. It runs their other simulations, and their targets.
    """

    job: str
    id: str
    groups: StoredRanges
    counts: Counts
    simulated: Annotated[StoredRanges, Field(exclude_if=not_)] = field(default_factory=Ranges)

    @property
    def simulated_again(self) -> Ranges:
        """The groups whose simulations of the parent do not count."""
        return self.groups - self.simulated

    @property
    def paths(self) -> JobPaths:
        """The paths of the parent."""
        return JobPaths(self.job, self.id)


@dataclass(frozen=True)
class ReuseSource:
    """A complete job from which another job takes simulations (docs/internals/storage.md, "Reuse").

    Parameters
    ----------
    id
        The source's id: another job may get its name.
    simulations
        How many simulations are taken from it.
    """

    job: str
    id: str
    simulations: int

    @property
    def paths(self) -> JobPaths:
        """The paths of the source."""
        return JobPaths(self.job, self.id)


@dataclass(frozen=True)
class Reuse:
    """The simulations that a job takes from other jobs. ``reused.parquet`` says which simulation comes from where."""

    sources: tuple[ReuseSource, ...]


@dataclass(frozen=True)
class JobRecord:
    """The job as a person submitted it. mops writes this record once, as the last of a new job's files.

    Parameters
    ----------
    id
        A random number, which is in the paths of the job's files (:func:`mops.storage.paths.new_job_id`).
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
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
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
    def paths(self) -> JobPaths:
        """The paths of the job."""
        return JobPaths(self.job, self.id)

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
        """How many simulations come from which other job: the parent, and the sources of a reuse."""
        found = Counter({self.parent.job: self.parent.counts.simulations} if self.parent else {})
        for source in self.reuse.sources if self.reuse else ():
            found[source.job] += source.simulations
        return dict(found)

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
        A job of this name exists, or someone has deleted the files meanwhile.
    StorageError
        The storage refuses.
    """
    _refuse_taken(files, record.job)
    paths, content = record.paths, files.spool()
    # With the digest of the parameters, because a study may name a file of parameter sets, and that file may change.
    content.write(f'{{"format":{FORMAT},"params_sha256":"{params.digest}","study":'.encode())
    for at in range(0, len(study), _PIECE_CHARACTERS):  # a copy of the whole text would be a submit's peak memory
        content.write(study[at : at + _PIECE_CHARACTERS].encode())
    content.write(b"}")
    files.create(paths.study, content)
    _keep_bundle(files, bundle)
    files.create(paths.params, params.content)
    if reused is not None:
        files.create(paths.reused, reused.content)
    give_name(files, record)


def _keep_bundle(files: Files, bundle: Bundle) -> None:
    """Store a bundle, unless the storage has it. Its digest names it, so every writer stores the same bytes."""
    path = bundle_path(bundle.digest)
    try:
        is_there = files.size(path) == len(bundle.data)
    except FileNotFoundError:
        is_there = False
    if not is_there:
        files.put(path, bundle.data)


def give_name(files: Files, record: JobRecord) -> None:
    """Write the record of a job whose other files exist: the last step of creating it. Raises as :func:`create_job`."""
    if files.put_new(record.paths.record, JOB_RECORDS.encode(record, mops=mops.__version__)) is Put.OTHER:
        files.remove([entry.path for entry in files.list(record.paths.root)])
        raise _taken(files, record.job)
    _withdraw_if_deleted(files, record, record.paths)


def _withdraw_if_deleted(files: Files, record: JobRecord, needed: JobPaths) -> None:
    """Remove a new job's record if a deletion of the job or of its parent has begun, and raise JobError."""
    try:
        check_not_deleted(files, needed)
    except JobError:
        if JOB_RECORDS.read(files, record.paths.record) == record:  # else another job has the name by now
            files.remove([record.paths.record])
        raise


def _refuse_taken(files: Files, job: str) -> None:
    """Refuse the name of a job that exists."""
    found = JOB_RECORDS.read(files, NamePaths(job).record)
    if found is not None:
        _refuse_marked(files, found.paths)
        raise _taken(files, job)


def _taken(files: Files, job: str) -> JobError:
    hint = f"choose another name; to continue a job that has stopped: mops jobs resume {job}"
    return JobError(f"job {job!r} exists already", where=files.url, hint=hint)


def _refuse_marked(files: Files, paths: JobPaths) -> None:
    """Refuse a job of which a deletion has begun."""
    if files.get_many([paths.deleted])[0] is not None:
        hint = f"if the deletion was killed, finish it: mops jobs delete {paths.job}"
        raise JobError(f"a deletion of job {paths.job!r} has begun", where=files.url, hint=hint)


@dataclass(frozen=True)
class Deletion:
    """Marks a job whose files mops removes."""

    who: str
    at: str


_DELETIONS = JsonCodec[Deletion](Deletion)


def mark_deletion(files: Files, paths: JobPaths, deletion: Deletion) -> None:
    """Mark the job as being deleted, unless it is marked already."""
    files.put_new(paths.deleted, _DELETIONS.encode(deletion))


def check_not_deleted(files: Files, paths: JobPaths) -> None:
    """Check that a job exists and no deletion of it has begun: the last step of a submit, a claim, and of deriving.

    A deletion marks the job, and then looks for what these have written: the record, a claim, a derived job. So at
    least one of the two sees the other. The mark is the last file that a deletion removes. So without a mark, the other
    files tell whether a deletion has ended.

    Raises
    ------
    JobError
        A deletion has begun, or has ended since this process read or wrote the record.
    """
    _refuse_marked(files, paths)
    found = JOB_RECORDS.read(files, paths.record)
    try:
        files.size(paths.study)
    except FileNotFoundError:
        found = None
    if found is None or found.id != paths.id:
        raise JobError(f"job {paths.job!r} was deleted meanwhile", where=files.url, hint="submit the study again")


# The jobs that this process runs. A living process does not mean a living runner: a notebook outlives its jobs.
_driven: list[tuple[str, JobPaths]] = []


@contextmanager
def driving(files: Files, job: JobPaths) -> Iterator[None]:
    """Note for :func:`driven_here` that this process runs a job, while the body runs."""
    _driven.append((files.url, job))
    try:
        yield
    finally:
        _driven.remove((files.url, job))


def driven_here(files: Files, job: JobPaths) -> bool:
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
        A job of this name exists; or a deletion removes the parent or the new job at the same time.
    StorageError
        The storage refuses.
    """
    _refuse_taken(files, record.job)
    own, its = record.paths, parent.paths
    study = files.get(its.study)
    if new.params is not None:
        study = _PARAMS_DIGEST.sub(rb"\g<1>" + new.params.digest.encode(), study, count=1)
    contents = [(own.study, study), (own.params, new.params.content.read() if new.params else files.get(its.params))]
    if read_reference(files, its) is not None:  # none: every simulation of the parent failed
        contents.append((own.schema, files.get(its.schema)))
    if new.bundle is not None:
        _keep_bundle(files, new.bundle)
    if new.reused is not None:
        files.create(own.reused, new.reused.content)
    for path, data in contents:
        files.create(path, data)
    give_name(files, record)
    _withdraw_if_deleted(files, record, its)


def job_exists(files: Files, job: str) -> bool:
    """Tell whether a job of this name exists."""
    return JOB_RECORDS.read(files, NamePaths(job).record) is not None


def params_digest(files: Files, paths: JobPaths) -> str | None:
    """Return the SHA-256 of the parameters that a job was submitted with; None: the job does not exist."""
    try:
        head = files.get(paths.study)[:_HEAD_BYTES]
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
    record = JOB_RECORDS.read(files, NamePaths(job).record)
    if record is not None:
        return record
    names = job_names(files)
    if job in names:
        what = f"job {job!r} does not exist, but files that a killed submit or deletion of it left"
        hint = f"submit the study again, or remove the files: mops jobs delete {job}"
        raise JobError(what, where=f"{files.url}/{NamePaths(job).root}", hint=hint)
    near = similar(job, names, 3) or names[-3:]
    records = files.get_many([NamePaths(name).record for name in near])
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


_ENDS = JsonCodec[End](End, advisory=True)


def keep_finished(files: Files, paths: JobPaths, end: End) -> None:
    """Keep a copy of the complete end, for quick listing."""
    files.put(paths.finished, _ENDS.encode(end))


def decode_finished(data: bytes, paths: JobPaths) -> End | None:
    """Return the copy of a job's end; None: the bytes are unusable, so read the log."""
    try:
        copy = _ENDS.decode(data, paths.finished)
    except (CorruptRecord, NewerFormat):
        return None
    return copy if copy.complete else None
