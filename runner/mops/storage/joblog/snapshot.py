"""A snapshot of a job's log: what records 1 to k mean, so that readers begin after record k.

Records never change, so their meaning never changes. A snapshot has the nonce of record k. A reader uses the snapshot
only if record k of the log has this nonce: a snapshot of a deleted job of the same name is useless. A missing,
unreadable or old snapshot costs time only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.records import LOG_RECORDS, Cancel, Claim, End, Record
from mops.storage.joblog.view import LogView, Stored
from mops.storage.json_records import JsonCodec, StoredFamilies, StoredRanges
from mops.storage.paths import JobPaths
from mops.verdicts import Counts

SNAPSHOT_RECORDS = 1_000
"""A runner writes a snapshot each time when the log has so many more records. Reading as many takes about 0.2 s."""

_SAME = ("k", "attempt", "committed", "counts", "marks", "cancelled", "families")
"""The fields that a snapshot and its view have alike."""

_Mark = Annotated[Claim | Cancel | End, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A :class:`LogView` as it is stored.

    Parameters
    ----------
    nonce
        The nonce of record ``k``.
    stored
        For each table: its kind, its output, and the number of parts, rows and bytes.
    """

    k: int
    nonce: str
    attempt: int
    committed: StoredRanges
    counts: Counts
    stored: tuple[tuple[str, str | None, int, int, int], ...]
    marks: tuple[_Mark, ...]
    cancelled: bool
    families: StoredFamilies

    @classmethod
    def of(cls, view: LogView, last: Record) -> Snapshot:
        """Return the snapshot of a view whose last record is ``last``."""
        stored = tuple((*table, of.parts, of.rows, of.bytes) for table, of in view.stored.items())
        return cls(nonce=last.nonce, stored=stored, **{name: getattr(view, name) for name in _SAME})

    def view(self) -> LogView:
        """Return the view."""
        stored = {(kind, output): Stored(*sums) for kind, output, *sums in self.stored}
        return LogView(stored=stored, **{name: getattr(self, name) for name in _SAME})


SNAPSHOTS: JsonCodec[Snapshot] = JsonCodec(Snapshot, advisory=True)


def read_snapshot(files: Files, paths: JobPaths) -> Snapshot | None:
    """Return the snapshot of a job's log; None: there is none of this log.

    Raises
    ------
    NewerFormat, CorruptRecord
        The log's record is not what this mops reads.
    StorageError
        The storage refuses, or is out of reach.
    """
    snapshot = advisory.read(files, paths.snapshot, SNAPSHOTS.decode)
    if snapshot is None:
        return None
    record = LOG_RECORDS.read(files, paths.log_record(snapshot.k))
    return snapshot if record is not None and record.nonce == snapshot.nonce else None
