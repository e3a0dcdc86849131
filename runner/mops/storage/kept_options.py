"""Stores a job's options, and reads them for resume and retry.

``job.json`` has the options of the submit. A resume with new options appends ``options/<k>.json``, create-only. The
last of these records is in effect for every later resume and retry. Each record holds the time of its job's submit, so
that readers skip records of a deleted job of the same name. If a variable has no value, mops stores only the name, and
the value comes from the runner's environment. Of the settings, only the limits of simulations are here.
Each attempt reads the others again.
docs/internals/kubernetes.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mops.errors import JobError
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.json_records import JsonCodec
from mops.storage.paths import JobPaths

if TYPE_CHECKING:
    from mops.storage.job_records import JobRecord


@dataclass(frozen=True)
class _Submitted:
    """The time of the submit, which identifies the job."""

    created: str


@dataclass(frozen=True)
class _Record(_Submitted):
    options: JobOptions


_SUBMITTED, _RECORDS = JsonCodec[_Submitted](_Submitted), JsonCodec[_Record](_Record)


@dataclass(frozen=True)
class KeptOptions:
    """The options in effect, and the number of the last record: 0 is ``job.json``."""

    k: int
    options: JobOptions


def read_options(files: Files, job: JobRecord) -> KeptOptions:
    """Return the job's options that are in effect; errors as for :func:`options_records`."""
    *_, last = options_records(files, job)
    return last


def options_records(files: Files, job: JobRecord) -> Iterator[KeptOptions]:
    """Yield the job's options as of the submit and after each change.

    Raises
    ------
    NewerFormat, CorruptRecord
        A newer mops wrote a record, or a record is not what mops wrote.
    """
    paths, kept = JobPaths(job.job), KeptOptions(0, job.options)
    yield kept
    while (data := files.get_many([paths.options(kept.k + 1)])[0]) is not None:
        options = kept.options
        # An earlier job of this name may have left a record of any format.
        if (of := _SUBMITTED.glance(data)) is None or of.created == job.created:
            options = _RECORDS.decode(data, f"{files.url}/{paths.options(kept.k + 1)}").options
        kept = KeptOptions(kept.k + 1, options)
        yield kept


def keep_options(files: Files, job: JobRecord, before: KeptOptions, now: JobOptions) -> None:
    """Store a command's options with the job, if they differ from the job's.

    Parameters
    ----------
    before
        The options that the command has read and changed.

    Raises
    ------
    JobError
        Another command has changed the options at the same time.
    """
    if now == before.options:
        return
    path = JobPaths(job.job).options(before.k + 1)
    content = _RECORDS.encode(_Record(job.created, now))
    if not files.put_new(path, content) and files.get(path) != content:  # same bytes: an answer got lost
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )
