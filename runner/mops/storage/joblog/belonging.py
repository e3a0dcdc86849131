"""Finds records of a job's log that another job or attempt has written: rule 24 of docs/internals/storage.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mops.storage.joblog.records import Claim, Commit, End, Record
from mops.storage.paths import JobPaths


def foreign_records(owner: str | None, records: Iterable[Record], paths: JobPaths) -> Iterator[tuple[Record, str]]:
    """Yield each record that does not belong to the job and its attempt, with the reason.

    Parameters
    ----------
    owner
        The nonce of the last claim before these records; None: without a claim.
    paths
        The paths of the job.
    """
    for record in records:
        if isinstance(record, Claim):
            owner = record.nonce
        if isinstance(record, Commit | End) and record.claim != owner:
            yield record, f"a {record.kind} that is not by the job's owner"
        if isinstance(record, Commit):
            for part in record.parts:
                if not paths.has_part(part.path, record.n):
                    yield record, f"it commits {part.path}, which is not a part of attempt {record.n} of this job"
