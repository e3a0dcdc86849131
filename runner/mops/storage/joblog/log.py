"""Reads and appends a job's log: numbered, create-only records that say what is committed.

docs/internals/storage.md describes the protocol and its rules, which the comments here name by number.
:mod:`mops.storage.joblog.records` defines the records, :mod:`mops.storage.joblog.view` says what they mean, and
:mod:`mops.storage.joblog.starting` decides whether an attempt may start. The attempt writes its parts before the record
that names them. :mod:`mops.storage.joblog.whole` reads a log with every commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mops.errors import CorruptRecord, Superseded
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.belonging import foreign_records
from mops.storage.joblog.numbered import NumberedLog
from mops.storage.joblog.records import (
    LOG_RECORDS,
    Asked,
    By,
    Cancel,
    Claim,
    Commit,
    End,
    Part,
    Record,
    State,
)
from mops.storage.joblog.snapshot import SNAPSHOT_RECORDS, SNAPSHOTS, Snapshot, read_snapshot
from mops.storage.joblog.starting import check_start
from mops.storage.joblog.view import LogView
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import JobPaths
from mops.study.column_families import Families
from mops.study.ranges import Ranges
from mops.verdicts import Counts


class JobLog(NumberedLog[Record, LogView]):
    """The log of one job.

    Parameters
    ----------
    snapshot_records
        After how many further records :meth:`commit` writes a snapshot.
    options
        Those of :class:`mops.storage.joblog.numbered.NumberedLog`.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        *,
        snapshot_records: int = SNAPSHOT_RECORDS,
        **options: Any,
    ):
        super().__init__(files, paths.log, LOG_RECORDS, LogView(), "mops jobs resume", **options)
        self._paths = paths
        self._claim: Record | None = None
        self._advisory = advisory.Writer(files)
        self._snapshot_records, self._snapshot_k = snapshot_records, 0

    @property
    def cancelled(self) -> bool:
        """Whether a cancel follows the last claim. The attempt may still commit what is finished."""
        return self._view.cancelled

    def read(self) -> LogView:
        """Read the new records, several at a time, up to the first that is absent (rule 12); return the view.

        The first call begins after the records of which there is a snapshot (rule 15).

        Raises
        ------
        NewerFormat, CorruptRecord
            A newer mops wrote a record, or a record is not what mops wrote.
        StorageError
            The storage refuses, or is out of reach.
        """
        if not self._view.k and (snapshot := read_snapshot(self._files, self._paths)) is not None:
            self._view, self._snapshot_k = snapshot.view(), snapshot.k
        for _ in self.records():
            pass
        return self._view

    def _is_over(self) -> bool:
        return self._view.complete

    def claim(self, by: By, *, asked: Asked | None = None) -> LogView:
        """Become the owner (rule 5).

        Parameters
        ----------
        by
            ``person``: a person asked for it. ``auto``: Kubernetes restarted a pod; a job that has ended stays ended.
        asked
            The request that this claim carries out, if it is still valid
            (:func:`mops.storage.joblog.starting.overtaking`). None: no request.

        Returns
        -------
        LogView
            The log up to this claim. The attempt inherits its ``committed`` and does not run those groups again.

        Raises
        ------
        NothingToRun
            There is nothing to run.
        Overtaken
            The request is void.
        StorageUnavailable
            No answer in time. The storage may still write the claim: exit the process.
        """
        if self._claim is not None:
            raise RuntimeError("this process has claimed already")
        self.read()
        self._claim = self._append(lambda head: self._decide_claim(by, asked, head))
        return self._view

    def commit(self, ranges: Ranges, parts: Iterable[Part], counts: Counts, families: Families | None = None) -> None:
        """Commit groups whose parts are durable already (rule 7).

        Parameters
        ----------
        families
            The families that the parts fix for their columns; None: no new ones.

        Raises
        ------
        Superseded
            A newer attempt owns the job, or someone has deleted it; the groups do not count.
        StorageUnavailable
            No answer in time. The storage may still write the record: exit the process.
        """
        if ranges.overlaps(self._view.committed):
            raise ValueError(f"groups {ranges} are committed in part already")
        fixed: dict[str, Any] = {"ranges": ranges, "parts": tuple(parts), "counts": counts, "families": families or {}}
        record = self._append(lambda head: Commit(claim=self._owning(), **fixed, **head))
        if record is not None and record.k - self._snapshot_k >= self._snapshot_records:
            self._snapshot_k = record.k
            snapshot = SNAPSHOTS.encode(Snapshot.of(self._view, record))
            self._advisory.write("a snapshot of the log", lambda files: files.put(self._paths.snapshot, snapshot))

    def end(self, state: State, totals: Counts) -> None:
        """End the attempt (rules 10 and 11). For a complete end, the caller has committed every group.

        Raises
        ------
        Superseded, StorageUnavailable
            As for :meth:`commit`.
        """
        self._append(lambda head: End(claim=self._owning(), state=state, totals=totals, **head))

    def cancel(self, who: str) -> bool:
        """Ask the owner to stop (rule 10); False: the job is complete already.

        Raises
        ------
        StorageUnavailable
            No answer in time; the storage may still write the cancel.
        """
        self.read()
        written = self._append(lambda head: None if self._view.complete else Cancel(who=who, **head))
        return written is not None

    def poll(self) -> LogView:
        """Look for a newer claim or a cancel (rule 9).

        Raises
        ------
        Superseded
            A newer attempt owns the job, or someone has deleted it.
        StorageUnavailable
            No answer in time.
        """
        self._require(self._view.k)
        self.read()
        self._fence()
        return self._view

    def _decide_claim(self, by: By, asked: Asked | None, head: dict[str, Any]) -> Claim:
        where = self._where(self._view.k)
        by = check_start(self._view, by, asked, job=self._paths.job, where=where)
        return Claim(by=by, asked=asked, **{**head, "n": self._view.attempt + 1})

    def _owning(self) -> str:
        """Return the nonce of this process's claim, which commits and ends carry."""
        nonce = self._fence()
        if self._view.end:
            raise RuntimeError("this attempt has ended")
        return nonce

    def _fence(self) -> str:
        """Return the nonce of this process's claim; raise if a newer attempt owns the job (rule 8)."""
        if self._claim is None:
            raise RuntimeError("this process has not claimed")
        if self._view.owner != self._claim.nonce:
            raise Superseded(
                f"this runner was superseded by attempt {self._view.attempt}",
                where=f"{self._files.url}/{self._paths.log}",
                hint="leave the job to the newer runner",
            )
        return self._claim.nonce

    def _meet(self, records: Sequence[Record]) -> None:
        for record, why in foreign_records(self._view.owner, records, self._paths):
            raise CorruptRecord(f"this record is damaged: {why}", where=self._where(record.k), hint=RESTORE_HINT)
        super()._meet(records)
