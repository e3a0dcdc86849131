"""Stores a job's options, and reads them for resume and retry.

``job.json`` has the options of the submit. A resume with new options appends ``options/<k>.json``, create-only. The
last of these records is in effect for every later resume and retry. docs/internals/kubernetes.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mops.errors import JobError
from mops.storage.backends.base import Put
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.json_records import JsonCodec

if TYPE_CHECKING:
    from mops.storage.job_records import JobRecord


@dataclass(frozen=True)
class _Record:
    options: JobOptions


_RECORDS = JsonCodec[_Record](_Record)


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
    while (record := _RECORDS.read(files, paths.options(kept.k + 1))) is not None:
        kept = KeptOptions(kept.k + 1, record.options)
        yield kept


def keep_options(files: Files, job: JobRecord, before: KeptOptions, now: JobOptions) -> None:
    """Store a command's options with the job, if they differ from those that the command has read.

    JobError: another command has changed the options at the same time.
    """
    if now == before.options:
        return
    path = job.paths.options(before.k + 1)
    if files.put_new(path, _RECORDS.encode(_Record(now))) is Put.OTHER:
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )
