"""Reads and appends a job's log: numbered, create-only records that say what is committed.

docs/internals/storage.md describes the protocol and its rules, which the comments here name by number.
:mod:`mops.storage.joblog.records` defines the records, :mod:`mops.storage.joblog.view` says what they mean, and
:mod:`mops.storage.joblog.starting` decides whether an attempt may start. The attempt writes its parts before the record
that names them.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import RetryError, Retrying, retry_if_result

from mops.errors import CorruptRecord, StorageUnavailable, Superseded
from mops.storage import advisory
from mops.storage.backends.base import PATIENT
from mops.storage.files import AT_ONCE, Files
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
    decode_record,
)
from mops.storage.joblog.snapshot import SNAPSHOT_RECORDS, SNAPSHOTS, Snapshot, read_snapshot
from mops.storage.joblog.starting import check_start
from mops.storage.joblog.view import LogView
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import JobPaths
from mops.study.column_families import Families
from mops.study.ranges import Ranges
from mops.verdicts import Counts

Owned = TypeVar("Owned", Commit, End)


class JobLog:
    """The log of one job, as one process sees it. Use it from one thread; every process may have its own.

    Parameters
    ----------
    host
        The name that records carry.
    clock
        Seconds since the epoch, for people to read.
    nonce
        Draws 128 random bits, hexadecimal.
    retrying
        How long to wait for a record that exists and cannot be read yet.
    snapshot_records
        After how many further records :meth:`commit` writes a snapshot.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        nonce: Callable[[], str] = lambda: os.urandom(16).hex(),
        retrying: Retrying = PATIENT,
        snapshot_records: int = SNAPSHOT_RECORDS,
    ):
        self._files, self._paths, self._host = files, paths, host or socket.gethostname()
        self._clock, self._nonce = clock, nonce
        self._retrying = retrying.copy(retry=retry_if_result(lambda there: there is None))
        self._view = LogView()
        self._claim: Record | None = None
        self._open: Record | None = None
        self._advisory = advisory.Writer(files)
        self._snapshot_records, self._snapshot_k = snapshot_records, 0

    @property
    def view(self) -> LogView:
        """What this process has read and written so far."""
        return self._view

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

    def records(self) -> Iterator[Record]:
        """Yield the new records up to the first that is absent; the log does not keep them."""
        window = 1
        while not self._view.complete:
            numbers = range(self._view.k + 1, self._view.k + 1 + window)
            found = zip(numbers, self._files.get_many([self._paths.log_record(k) for k in numbers]), strict=True)
            there = itertools.takewhile(lambda pair: pair[1] is not None, found)
            records = [decode_record(data, k, self._where(k)) for k, data in there if data is not None]
            self._meet(records)
            yield from records
            if len(records) < window:
                return
            window = min(2 * window, AT_ONCE)

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
            A newer attempt owns the job; the groups do not count.
        StorageUnavailable
            No answer in time. The storage may still write the record: exit the process.
        """
        if ranges.overlaps(self._view.committed):
            raise ValueError(f"groups {ranges} are committed in part already")
        named, fixed = tuple(parts), families or {}
        record = self._append(
            lambda head: self._owned(Commit(ranges=ranges, parts=named, counts=counts, families=fixed, **head))
        )
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
        self._append(lambda head: self._owned(End(state=state, totals=totals, **head)))

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
            A newer attempt owns the job.
        StorageUnavailable
            No answer in time.
        """
        self.read()
        self._fence()
        return self._view

    def _decide_claim(self, by: By, asked: Asked | None, head: dict[str, Any]) -> Claim:
        where = self._where(self._view.k)
        by = check_start(self._view, by, asked, job=self._paths.job, where=where)
        return Claim(by=by, asked=asked, **{**head, "n": self._view.attempt + 1})

    def _owned(self, record: Owned) -> Owned:
        self._fence()
        if self._view.end:
            raise RuntimeError("this attempt has ended")
        return record

    def _fence(self) -> None:
        """Raise if a newer attempt owns the job (rule 8)."""
        if self._claim is None:
            raise RuntimeError("this process has not claimed")
        if self._view.owner != self._claim.nonce:
            raise Superseded(
                f"this runner was superseded by attempt {self._view.attempt}",
                where=f"{self._files.url}/{self._paths.log}",
                hint="leave the job to the newer runner",
            )

    def _append(self, draw_up: Callable[[dict[str, Any]], Record | None]) -> Record | None:
        """Write a record after all others (rule 3). If another process writes first, decide again.

        Parameters
        ----------
        draw_up
            Takes the common fields and returns the record; None: write nothing.
        """
        while True:
            head = {"k": self._view.k + 1, "n": self._view.attempt, "nonce": self._nonce()}
            record = draw_up({**head, "time": self._clock(), "host": self._host})
            if record is None:
                return None
            there = self._settle(record)
            if there.nonce == record.nonce:
                self._view = self._view.extended([there])
                return there
            self._meet([there])

    def _settle(self, record: Record) -> Record:
        """Put a record until its file exists; return the record in that file."""
        if self._open is not None:
            raise self._unanswered(self._open)
        self._open = record
        # The record stays open if an error leaves this method: its request may still land, so nothing else may be put.
        try:
            there = self._retrying(self._put, record)
        except RetryError:
            raise self._unanswered(record) from None
        assert there is not None
        self._open = None
        return there

    def _put(self, record: Record) -> Record | None:
        """Return the record at this one's path, perhaps another process's; None: it cannot be read yet."""
        path = self._paths.log_record(record.k)
        if self._files.put_new(path, LOG_RECORDS.encode(record)):
            return record
        data = self._files.get_many([path])[0]
        return None if data is None else decode_record(data, record.k, self._where(record.k))

    def _unanswered(self, record: Record) -> StorageUnavailable:
        return StorageUnavailable(
            f"it is unknown whether the {record.kind} was written",
            where=self._where(record.k),
            hint="end this process, then: mops jobs resume",
        )

    def _meet(self, records: Sequence[Record]) -> None:
        """Add records of other processes to the view."""
        self._view = self._view.extended(records)
        if self._claim is None or self._view.owner != self._claim.nonce:
            return
        for record in records:
            if isinstance(record, Commit | End):
                raise CorruptRecord(
                    f"this record is a {record.kind} that is not by the job's owner",
                    where=self._where(record.k),
                    hint=RESTORE_HINT,
                )

    def _where(self, k: int) -> str:
        return f"{self._files.url}/{self._paths.log_record(k)}"


@dataclass(frozen=True, eq=False)
class WholeLog:
    """A log with every commit, for readers of rows. It is large: do not keep it."""

    view: LogView
    commits: tuple[Commit, ...]


def read_whole(files: Files, paths: JobPaths) -> WholeLog:
    """Read a log to its end with every commit; raises as :meth:`JobLog.read`."""
    log = JobLog(files, paths)
    commits = tuple(record for record in log.records() if isinstance(record, Commit))
    return WholeLog(log.view, commits)
