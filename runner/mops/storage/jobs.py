"""A job's own records: what was submitted, the reference schema, the live record. What is finished is log.py's."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import mops
from mops.errors import CorruptRecord, JobError, NewerFormat
from mops.storage.bundles import Bundle
from mops.storage.files import Files
from mops.storage.log import Counts
from mops.storage.paths import JobPaths, bundle_path
from mops.storage.tables import GroupTable, encode_groups, read_groups
from mops.study.project import ModelSpec
from mops.study.ranges import Ranges
from mops.study.schema import Group

FORMAT = 1
Kinds = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Parent:
    """The complete job that a derived one takes rows over from (docs/storage.md, "Derived jobs").

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
    groups: Ranges
    counts: Counts

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {**vars(self), "groups": self.groups.to_json(), "counts": vars(self.counts)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Parent:
        """Return what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it is not that."""
        plain = {name: fields[name] for name in ("job", "k", "nonce")}
        return cls(**plain, groups=Ranges.from_json(fields["groups"]), counts=Counts(**fields["counts"]))


@dataclass(frozen=True)
class JobRecord:
    """What a job is: written once at submit, last of the job's objects.

    Parameters
    ----------
    created
        When it was submitted (UTC, ISO 8601).
    bundle
        The bundle's digest.
    parent
        Of a derived job.
    env
        Variables for the model; None: its value is the runner's and is not kept.
    python
        The interpreter that runs simulations, an absolute path; None: the worker's own.
    """

    job: str
    created: str
    bundle: str
    spec: ModelSpec
    n_groups: int
    n_simulations: int
    parent: Parent | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    python: str | None = None

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

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        fields = {**vars(self), "spec": self.spec.to_json()}
        del fields["parent"]
        return fields | {"parent": self.parent.to_json()} if self.parent else fields


def create_job(files: Files, record: JobRecord, bundle: Bundle, study: object, groups: Sequence[Group]) -> None:
    """Write a job; it exists when its record does, which comes last.

    Raises
    ------
    JobError
        There is a job of this name.
    StorageError
        The storage refuses.
    """
    paths = JobPaths(record.job)
    taken = _taken(files, record.job)
    text = _json({"format": FORMAT, "study": study})
    # The same study without a job record is what a killed submit leaves: the next one goes on from it.
    if not files.put_new(paths.study, text) and files.get(paths.study) != text:
        raise taken
    files.put_new(bundle_path(bundle.digest), bundle.data)  # named by content: another job's is the same
    files.put_new(paths.params, encode_groups(groups).chunks)
    if not _put_record(files, record):
        raise taken


def create_derived(files: Files, record: JobRecord, parent: Parent) -> None:
    """Write a derived job: what its parent is, copied, and its record last.

    Raises
    ------
    JobError
        There is a job of this name.
    StorageError
        The storage refuses.
    """
    own, its = JobPaths(record.job), JobPaths(parent.job)
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


def _put_record(files: Files, record: JobRecord) -> bool:
    text = _json({"format": FORMAT, "mops": mops.__version__, **record.to_json()})
    return files.put_new(JobPaths(record.job).record, text)


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
    path = JobPaths(job).record
    try:
        fields = read_record(files, path)
    except FileNotFoundError:
        raise _no_job(files, job) from None
    try:
        spec = ModelSpec.from_json(fields["spec"])
        names = ("job", "created", "bundle", "n_groups", "n_simulations", "env", "python")
        parent = Parent.from_json(fields["parent"]) if fields.get("parent") else None
        return JobRecord(spec=spec, parent=parent, **{name: fields[name] for name in names})
    except (KeyError, TypeError, ValueError) as bad:
        raise CorruptRecord(f"the job's record lacks {bad}", where=f"{files.url}/{path}") from bad


def _no_job(files: Files, job: str) -> JobError:
    there = list_jobs(files)
    near = difflib.get_close_matches(job, there, 3) or there[-3:]
    hint = f"there are: {', '.join(near)}" if near else "this storage holds no jobs: name another by MODELOPS_STORAGE"
    return JobError(f"there is no job {job!r}", where=files.url, hint=hint)


def list_jobs(files: Files) -> list[str]:
    """Return the names of the jobs in a storage."""
    return sorted(entry.path.split("/")[1] for entry in files.list("jobs") if entry.path.endswith("/job.json"))


def load_groups(files: Files, job: str) -> GroupTable:
    """Return a job's groups."""
    path = JobPaths(job).params
    return read_groups(files.get(path), f"{files.url}/{path}")


def load_bundle(files: Files, digest: str) -> bytes:
    """Return a bundle's bytes."""
    return files.get(bundle_path(digest))


def read_reference(files: Files, paths: JobPaths) -> Kinds | None:
    """Return the job's reference schema; None before the first good simulation."""
    try:
        kinds: Kinds = read_record(files, paths.schema)["outputs"]
    except FileNotFoundError:
        return None
    return kinds


def keep_reference(files: Files, paths: JobPaths, kinds: Kinds) -> Kinds:
    """Make this the job's reference schema, unless it has one; return the one that it has now."""
    files.put_new(paths.schema, _json({"format": FORMAT, "outputs": kinds}))
    return read_reference(files, paths) or kinds


@dataclass(frozen=True)
class Live:
    """A sign of life: the only object that is overwritten, and none that decides anything.

    Parameters
    ----------
    at
        When it was written (s since the epoch, the runner's clock).
    counts
        What has reached the runner, and what earlier attempts committed.
    rate
        Simulations per second.
    memory_bytes
        Resident memory of the runner's process tree.
    settings
        What the attempt runs with: JSON values by field.
    durable
        Simulations that are committed.
    seconds
        Since the attempt began.
    peak_bytes, runner_bytes
        The tree's memory at its highest in this attempt, and the runner's own now.
    in_flight, slots
        Groups sent and not yet back, and simulations that run at once.
    open_bytes
        Results in the runner that are not durable yet.
    expected
        What the attempt was expected to take and give when it had looked: ``seconds``, ``rows``, ``bytes``.
    lines
        The last lines of the job's log.
    """

    at: float
    host: str
    pid: int
    counts: Counts
    rate: float
    memory_bytes: int
    settings: dict[str, Any]
    durable: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    runner_bytes: int = 0
    in_flight: int = 0
    slots: int = 0
    open_bytes: int = 0
    expected: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)


def write_live(files: Files, paths: JobPaths, attempt: int, live: Live) -> None:
    """Overwrite the attempt's sign of life."""
    files.put(paths.live(attempt), _json({"format": FORMAT, **asdict(live)}))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Live | None:
    """Return the attempt's last sign of life; None if it left none."""
    path = paths.live(attempt)
    try:
        found = read_record(files, path)
        known = {one.name: found[one.name] for one in fields(Live) if one.name in found}
        return Live(**known | {"counts": Counts(**found["counts"])})
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as bad:
        raise CorruptRecord(f"the sign of life lacks {bad}", where=f"{files.url}/{path}") from bad


def read_record(files: Files, path: str) -> dict[str, Any]:
    """Return a JSON record.

    Raises
    ------
    FileNotFoundError
        There is none.
    NewerFormat, CorruptRecord
        It is of a newer mops, or no JSON object.
    """
    try:
        fields = json.loads(files.get(path))
        newer = fields["format"] > FORMAT
    except (ValueError, KeyError, TypeError) as bad:
        raise CorruptRecord("this record is not what mops wrote", where=f"{files.url}/{path}") from bad
    if newer:
        raise NewerFormat(
            f"this record has format {fields['format']}, and this mops reads {FORMAT}",
            where=f"{files.url}/{path}",
            hint=f"install mops {fields.get('mops', 'of a newer version')} or newer",
        )
    return dict(fields)


def _json(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
