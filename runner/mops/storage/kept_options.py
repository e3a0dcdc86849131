"""Stores a job's options, and reads them for resume and retry.

``job.json`` has the options of the submit. A resume that names an option appends ``options/<k>.json``, create-only: the
last of these records is in effect for every later resume, and for the job that a retry derives. A record names the job
by the time of its submit: what a deleted job of the same name has left is passed over. A variable without a
value has only its name here: its value is the runner's and is never stored. What the settings (MODELOPS_JOB_*) say is
read afresh by each attempt and is not kept here. docs/internals/kubernetes.md has the table.
"""

from __future__ import annotations

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
    """Which job a record is of: the time of its submit."""

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
    """Return a job's options as the last command left them.

    Raises
    ------
    NewerFormat, CorruptRecord
        A record is of a newer mops, or is not one.
    """
    paths, kept = JobPaths(job.job), KeptOptions(0, job.options)
    while (data := files.get_many([paths.options(kept.k + 1)])[0]) is not None:
        options = kept.options
        # A record of a job that had this name before may be of any format.
        if (of := _SUBMITTED.glance(data)) is None or of.created == job.created:
            options = _RECORDS.decode(data, f"{files.url}/{paths.options(kept.k + 1)}").options
        kept = KeptOptions(kept.k + 1, options)
    return kept


def keep_options(files: Files, job: JobRecord, before: KeptOptions, now: JobOptions) -> None:
    """Keep the options of a command with the job, unless they are what the job has already.

    Parameters
    ----------
    before
        What the command has read and changed.

    Raises
    ------
    JobError
        Another command has changed them meanwhile.
    """
    if now == before.options:
        return
    path = JobPaths(job.job).options(before.k + 1)
    content = _RECORDS.encode(_Record(job.created, now))
    if not files.put_new(path, content) and files.get(path) != content:  # the same bytes: an answer was lost
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )
