"""A job's own records: the submit, changed options, the reference schema, the copy of the end, the mark of a deletion.

``job.json`` has the options of the submit. A resume with new options appends ``options/<k>.json``. The last of these
records is in effect for every later resume and retry (docs/internals/kubernetes.md). Commits are in the log (joblog/).
"""

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
from mops.errors import CorruptRecord, JobError, OtherFormat, similar
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
    from mops.storage.backends.base import Spool


_JOB_FIELD = re.compile(rb'"job":\s*"([A-Za-z0-9._-]+)"')
_PARAMS_DIGEST = re.compile(rb'("params_sha256":")([0-9a-f]{64})')


@dataclass(frozen=True)
class Source:
    """A complete job whose parts have rows of a derived job (docs/internals/storage.md, "Derived jobs")."""

    job: str
    id: str  # another job may get its name
    losses: StoredRanges  # the groups whose losses and failures are there
    outputs: StoredRanges  # the groups of whose outputs rows are there

    @property
    def paths(self) -> JobPaths:
        """The paths of the source."""
        return JobPaths(self.job, self.id)


@dataclass(frozen=True)
class ReuseSource:
    """A complete job from which another job copies simulations (docs/internals/storage.md, "Reuse")."""

    job: str
    id: str  # another job may get its name
    simulations: int  # how many are copied; ``reused.parquet`` says which

    @property
    def paths(self) -> JobPaths:
        """The paths of the source."""
        return JobPaths(self.job, self.id)


@dataclass(frozen=True)
class JobRecord:
    """The job as a person submitted it. mops writes this record once, as the last of a new job's files."""

    job: str
    id: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]  # random, in the paths of the job's files
    created: str  # UTC, ISO 8601
    bundle: str  # its digest
    spec: ModelSpec
    n_groups: int
    n_simulations: int
    options: JobOptions  # of the submit; a resume may change them (read_options)
    study: str  # its name, for people: a label of the runner's Kubernetes Job
    project: str  # its root on the machine of the submit; a resume there lists the files that have changed since
    parent: Annotated[str, Field(exclude_if=not_)] = ""  # for people; empty: the job is not derived
    # Every job whose parts have rows of this one, the oldest first: the parent, its parent, and so on.
    sources: Annotated[tuple[Source, ...], Field(exclude_if=not_)] = ()
    # Simulations and targets whose results are in the sources.
    taken_over_counts: Annotated[Counts, Field(exclude_if=Counts().__eq__)] = field(default_factory=Counts)
    study_file: Annotated[str, Field(exclude_if=not_)] = ""  # empty: a program gave the study
    owner: Annotated[str, Field(exclude_if=not_)] = ""  # who submitted it to a service, as Kubernetes knows the person
    # The jobs from which this one copies simulations. Unlike sources, they may be deleted: the simulations then run.
    reuse: Annotated[tuple[ReuseSource, ...], Field(exclude_if=not_)] = ()
    # Files that may belong to the model, of which some simulations that the job takes over ran with other versions.
    mixed_code: Annotated[tuple[str, ...], Field(exclude_if=not_)] = ()
    round_of: Annotated[str, Field(exclude_if=not_)] = ""  # a calibration's identity; empty: the job is no round of one

    @property
    def paths(self) -> JobPaths:
        """The paths of the job."""
        return JobPaths(self.job, self.id)

    @property
    def taken_over(self) -> Ranges:
        """The groups that the job takes over as they are."""
        return Ranges.joined(interval for source in self.sources for interval in source.losses.intervals)

    @property
    def due(self) -> Ranges:
        """The groups that the job's own log commits: those that run again, and new ones."""
        return self.taken_over.complement(self.n_groups)

    @property
    def simulated(self) -> Ranges:
        """The groups of :attr:`due` whose first simulations are in the sources, all of them good."""
        outputs = Ranges.joined(interval for source in self.sources for interval in source.outputs.intervals)
        return outputs & self.due

    @property
    def own(self) -> Source:
        """The job as a source of what its own log commits."""
        due = self.due
        return Source(self.job, self.id, due, due)

    @property
    def origins(self) -> dict[str, int]:
        """How many simulations come from which other job: the parent (with its sources), and those of a reuse."""
        found = Counter({self.parent: self.taken_over_counts.simulations} if self.parent else {})
        for source in self.reuse:
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
    study: str,  # the checked study as JSON text: as Python objects, 100,000 sets would take 25 MiB
    params: Encoded[Spool],  # the groups, from params_file.encode_groups
    reused: Encoded[Spool] | None = None,  # which simulations are taken from other jobs
) -> None:
    """Write a job's files. The job exists as soon as its record does, which comes last.

    JobError: a job of this name exists, or someone has deleted the files meanwhile.
    """
    _refuse_taken(files, record.job)
    paths, content = record.paths, files.spool()
    # With the digest of the parameters, because a study may name a file of parameter sets, and that file may change.
    content.write(f'{{"format":{FORMAT},"params_sha256":"{params.digest}","study":'.encode())
    for at in range(0, len(study), 2**20):  # a copy of the whole text would be a submit's peak memory
        content.write(study[at : at + 2**20].encode())
    content.write(b"}")
    files.create(paths.study, content)
    _keep_bundle(files, bundle)
    files.create(paths.params, params.content)
    if reused is not None:
        files.create(paths.reused, reused.content)
    give_name(files, record)


@dataclass(frozen=True)
class DerivedFiles:
    """The files of a derived job that are not copies of its parent's; None: they are, or do not exist."""

    params: Encoded[Spool] | None = None  # the groups, from params_file.encode_groups
    bundle: Bundle | None = None
    reused: Encoded[Spool] | None = None  # which simulations are taken by a reuse


def create_derived(files: Files, record: JobRecord, its: JobPaths, new: DerivedFiles = DerivedFiles()) -> None:
    """Write a derived job: copies of its parent's files, whose paths are ``its``, and its record last.

    JobError: a job of this name exists, or a deletion removes a source or the new job at the same time.
    """
    _refuse_taken(files, record.job)
    own = record.paths
    try:
        study = files.get(its.study)
        if new.params is not None:
            study = _PARAMS_DIGEST.sub(rb"\g<1>" + new.params.digest.encode(), study, count=1)
        params = new.params.content.read() if new.params is not None else files.get(its.params)
        contents = [(own.study, study), (own.params, params)]
        if read_reference(files, its) is not None:  # none: every simulation of the parent failed
            contents.append((own.schema, files.get(its.schema)))
    except FileNotFoundError:
        check_not_deleted(files, its)
        raise
    if new.bundle is not None:
        _keep_bundle(files, new.bundle)
    if new.reused is not None:
        files.create(own.reused, new.reused.content)
    for path, data in contents:
        files.create(path, data)
    give_name(files, record)
    for source in record.sources:  # after the record, which a deletion of the source looks for after its mark
        _withdraw_if_deleted(files, record, source.paths)


def _keep_bundle(files: Files, bundle: Bundle) -> None:
    # Every writer stores the same bytes, because the digest names the bundle.
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
    """Remove a new job's record, and raise JobError, if a deletion of a job that it needs has begun."""
    try:
        check_not_deleted(files, needed)
    except JobError:
        if JOB_RECORDS.read(files, record.paths.record) == record:  # else another job has the name by now
            files.remove([record.paths.record])
        raise


def _refuse_taken(files: Files, job: str) -> None:
    found = JOB_RECORDS.read(files, NamePaths(job).record)
    if found is not None:
        _refuse_marked(files, found.paths)
        raise _taken(files, job)


def _taken(files: Files, job: str) -> JobError:
    hint = f"choose another name; to continue a job that has stopped: mops jobs resume {job}"
    return JobError(f"job {job!r} exists already", where=files.url, hint=hint)


def _refuse_marked(files: Files, paths: JobPaths) -> None:
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

    JobError: a deletion has begun, or has ended since this process read or wrote the record.
    """
    # A deletion marks the job, and then looks for what these have written: the record, a claim, a derived job. So at
    # least one of the two sees the other (rules 25 and 26). The mark is the last file that a deletion removes. So
    # without a mark, the other files tell whether a deletion has ended.
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


def job_exists(files: Files, job: str) -> bool:
    """Tell whether a job of this name exists."""
    return JOB_RECORDS.read(files, NamePaths(job).record) is not None


def params_digest(files: Files, paths: JobPaths) -> str | None:
    """Return the SHA-256 of the parameters that a job was submitted with; None: the job does not exist."""
    try:
        head = files.get(paths.study)[:200]
    except FileNotFoundError:
        return None
    found = _PARAMS_DIGEST.search(head)
    return found[2].decode() if found else None


def load_job(files: Files, job: str) -> JobRecord:
    """Return a job's record. JobError: the job does not exist; the error gives similar names."""
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


def sources_named(job: str, data: bytes) -> list[str]:
    """Return the sources of a job, from the bytes of its record; if they cannot be read, every job that they name."""
    try:
        return [source.job for source in JOB_RECORDS.decode(data, NamePaths(job).record).sources]
    except (CorruptRecord, OtherFormat):
        # In every format so far, a record names another job as {"job": NAME, ...}. Its own name comes in the same way.
        named = _JOB_FIELD.findall(data)
        return [name for name in dict.fromkeys(map(bytes.decode, named)) if name != job]


def job_names(files: Files) -> list[str]:
    """Return the names that have files in a storage: jobs, and remains of a killed submit or delete."""
    return [name for name in files.folders(JOBS) if is_job_name(name)]


def stored_records(files: Files) -> dict[str, bytes | None]:
    """Return the bytes of each job's record, by name; None: the name has only remains of a killed submit or delete."""
    names = job_names(files)
    return dict(zip(names, files.get_many([NamePaths(name).record for name in names]), strict=True))


@dataclass(frozen=True)
class _OptionsRecord:
    options: JobOptions


_OPTIONS = JsonCodec[_OptionsRecord](_OptionsRecord)


@dataclass(frozen=True)
class KeptOptions:
    """The options in effect, and the number of the last record: 0 is ``job.json``."""

    k: int
    options: JobOptions


def read_options(files: Files, job: JobRecord) -> KeptOptions:
    """Return the job's options that are in effect."""
    *_, last = options_records(files, job)
    return last


def options_records(files: Files, job: JobRecord) -> Iterator[KeptOptions]:
    """Yield the job's options as of the submit and after each change."""
    paths, kept = job.paths, KeptOptions(0, job.options)
    yield kept
    while (record := _OPTIONS.read(files, paths.options(kept.k + 1))) is not None:
        kept = KeptOptions(kept.k + 1, record.options)
        yield kept


def keep_options(files: Files, job: JobRecord, before: KeptOptions, now: JobOptions) -> None:
    """Store a command's options with the job, if they differ from those that the command has read.

    JobError: another command has changed the options at the same time.
    """
    if now == before.options:
        return
    path = job.paths.options(before.k + 1)
    if files.put_new(path, _OPTIONS.encode(_OptionsRecord(now))) is Put.OTHER:
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )


@dataclass(frozen=True)
class _Reference:
    outputs: StoredFamilies


_REFERENCES = JsonCodec[_Reference](_Reference)


def read_reference(files: Files, paths: JobPaths) -> Families | None:
    """Return the job's reference schema, from the first good simulation; None before that."""
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
    except (CorruptRecord, OtherFormat):
        return None
    return copy if copy.complete else None
