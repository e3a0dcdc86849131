"""Stores a job's options, and reads them for resume and retry.

``job.json`` has the options of the submit. A resume that names an option appends ``options/<k>.json``, create-only: the
last of these records is in effect for every later resume, and for the job that a retry derives. A record names the job
by the time of its submit: what a deleted job of the same name has left is passed over. A variable without a
value has only its name here: its value is the runner's and is never stored. What the settings (MODELOPS_JOB_*) say is
read afresh by each attempt and is not kept here. docs/internals/kubernetes.md has the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mops.errors import CorruptRecord, JobError, NewerFormat
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.paths import JobPaths

if TYPE_CHECKING:
    from mops.storage.job_records import JobRecord

FORMAT = 1


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
        found = _parse(data, job, f"{files.url}/{paths.options(kept.k + 1)}")
        kept = KeptOptions(kept.k + 1, found or kept.options)
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
    record = {"format": FORMAT, "created": job.created, "options": now.to_json()}
    content = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    if not files.put_new(path, content) and files.get(path) != content:  # the same bytes: an answer was lost
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )


def _parse(data: bytes, job: JobRecord, where: str) -> JobOptions | None:
    """Return the options of a record; None: it is of a job that had the same name before."""
    try:
        record = json.loads(data)
        if record["created"] != job.created:
            return None
        if record["format"] > FORMAT:
            raise NewerFormat(
                f"this record has format {record['format']}, and this mops reads {FORMAT}",
                where=where,
                hint="install the version of mops that resumed the job, or a newer one",
            )
        return JobOptions.from_json(record["options"])
    except (ValueError, KeyError, TypeError) as bad:
        raise CorruptRecord("this record is not what mops wrote", where=where) from bad
