"""Reads and appends a job's log: numbered, create-only records that say what is committed.

docs/internals/storage.md has the protocol and its rules, which the comments here name by number. A runner uses
:class:`JobLog`, which keeps no commits. Readers of rows use :func:`read_whole`, which also says which parts count.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mops.errors import CorruptRecord, JobDeleted, StorageUnavailable, Superseded
from mops.storage.backends.base import Put
from mops.storage.files import AT_ONCE, Files
from mops.storage.joblog.records import (
    COMPACTIONS,
    LOG_RECORDS,
    By,
    Cancel,
    Claim,
    Commit,
    Compaction,
    End,
    LogView,
    Part,
    Record,
    RunRequest,
    State,
    check_start,
    decode_record,
)
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import JobPaths
from mops.study.column_families import Families
from mops.study.ranges import Ranges
from mops.verdicts import Counts


class JobLog:
    """The log of one job, as one process sees it. Use it from one thread; every process may have its own.

    Methods that write raise :class:`mops.errors.StorageUnavailable` if no answer comes in time. The storage may still
    write the record, so the caller must exit the process.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        nonce: Callable[[], str] = lambda: os.urandom(16).hex(),
    ):
        self._files, self._paths, self._host = files, paths, host or socket.gethostname()
        self._clock, self._nonce = clock, nonce
        self._view = LogView()
        self._claim: Record | None = None
        self._open: Record | None = None  # unknown whether the storage has it; until then, nothing else may be put

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

        OtherFormat, CorruptRecord: a record has another format, or is not what mops wrote.
        """
        for _ in self.records():
            pass
        return self._view

    def records(self) -> Iterator[Record]:
        """Yield the new records as :meth:`read` reads them; the log does not keep them."""
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

    def claim(self, by: By, *, asked: RunRequest | None = None) -> LogView:
        """Become the owner (rule 5); return the log up to this claim: its ``committed`` do not run again.

        Parameters
        ----------
        by
            ``person``: a person asked for it. ``auto``: Kubernetes restarted a pod; a job that has ended stays ended.
        asked
            The request that this claim carries out; None: no request.

        Raises
        ------
        NothingToRun
            There is nothing to run.
        Overtaken
            The request is void (:func:`mops.storage.joblog.records.overtaking`).
        """
        if self._claim is not None:
            raise RuntimeError("this process has claimed already")
        self.read()
        self._claim = self._append(lambda head: self._decide_claim(by, asked, head))
        return self._view

    def commit(self, ranges: Ranges, parts: Iterable[Part], counts: Counts, families: Families | None = None) -> None:
        """Commit groups whose parts are durable already (rule 7); ``families`` are new ones for their columns.

        Superseded: a newer attempt owns the job, or someone has deleted it; the groups do not count.
        """
        if ranges.overlaps(self._view.committed):
            raise ValueError(f"groups {ranges} are committed in part already")
        fixed: dict[str, Any] = {"ranges": ranges, "parts": tuple(parts), "counts": counts, "families": families or {}}
        self._append(lambda head: Commit(claim=self._owning(), **fixed, **head))

    def end(self, state: State, totals: Counts) -> None:
        """End the attempt (rules 10 and 11). For a complete end, the caller has committed every group.

        Superseded: as for :meth:`commit`.
        """
        self._append(lambda head: End(claim=self._owning(), state=state, totals=totals, **head))

    def cancel(self, who: str) -> bool:
        """Ask the owner to stop (rule 10); False: the job is complete already."""
        self.read()
        return self._append(lambda head: None if self._view.complete else Cancel(who=who, **head)) is not None

    def poll(self) -> LogView:
        """Look for a newer claim or a cancel (rule 9). Superseded: as for :meth:`commit`."""
        if self._view.k:
            self._there(self._view.k)
        self.read()
        self._fence()
        return self._view

    def _decide_claim(self, by: By, asked: RunRequest | None, head: dict[str, Any]) -> Claim:
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

    def _append(self, draw_up: Callable[[dict[str, Any]], Record | None]) -> Record | None:
        """Write a record after all others (rule 3); return it, or None if ``draw_up`` returns None.

        ``draw_up`` takes the common fields, and decides again whenever another process has written first.
        """
        while True:
            head = {"k": self._view.k + 1, "n": self._view.attempt, "nonce": self._nonce()}
            record = draw_up({**head, "time": self._clock(), "host": self._host})
            if record is None:
                return None
            there = self._settle(record)
            if there.nonce == record.nonce:
                if self._view.k:
                    self._there(self._view.k)
                self._view = self._view.extended([there])
                return there
            self._meet([there])

    def _settle(self, record: Record) -> Record:
        """Put a record until its file exists; return the record in that file."""
        if self._open is not None:
            raise StorageUnavailable(
                f"it is unknown whether the storage has the {self._open.kind} record",
                where=self._where(self._open.k),
                hint="stop this process, then: mops jobs resume",
            )
        # The record stays open if an error leaves this method: its request may still land, so nothing else may be put.
        self._open = record
        if self._files.put_new(self._paths.log_record(record.k), LOG_RECORDS.encode(record)) is Put.OTHER:
            record = decode_record(self._there(record.k), record.k, self._where(record.k))
        self._open = None
        return record

    def _there(self, k: int) -> bytes:
        """Return the bytes of a record that this process knows; JobDeleted: it no longer exists (rule 23)."""
        data = self._files.get_many([self._paths.log_record(k)])[0]
        if data is None:
            what = f"someone has deleted the job or its storage: record {k} of its log no longer exists"
            raise JobDeleted(what, where=self._where(k), hint="submit the study again")
        return data

    def _meet(self, records: Sequence[Record]) -> None:
        """Add records of other processes to the view."""
        for record, why in foreign_records(self._view.owner, records, self._paths):
            raise CorruptRecord(f"this record is damaged: {why}", where=self._where(record.k), hint=RESTORE_HINT)
        self._view = self._view.extended(records)

    def _where(self, k: int) -> str:
        return f"{self._files.url}/{self._paths.log_record(k)}"


def foreign_records(
    owner: str | None,  # the nonce of the last claim before these records
    records: Iterable[Record],
    paths: JobPaths,
) -> Iterator[tuple[Record, str]]:
    """Yield each record that does not belong to the job and its attempt (rule 24), with the reason."""
    for record in records:
        if isinstance(record, Claim):
            owner = record.nonce
        if isinstance(record, Commit | End) and record.claim != owner:
            yield record, f"a {record.kind} that is not by the job's owner"
        if isinstance(record, Commit):
            for part in record.parts:
                if not paths.has_part(part.path, record.n):
                    yield record, f"it commits {part.path}, which is not a part of attempt {record.n} of this job"


@dataclass(frozen=True)
class CurrentPart:
    """A part that counts, and the groups of the commits that wrote its rows."""

    part: Part
    ranges: Ranges


@dataclass(frozen=True, eq=False)
class WholeLog:
    """A log with every commit, and the job's compaction. It is large: do not keep it."""

    view: LogView
    commits: tuple[Commit, ...]
    compaction: Compaction | None

    @cached_property
    def parts(self) -> list[CurrentPart]:
        """As :func:`current_parts`."""
        return current_parts(self.commits, self.compaction)


def read_whole(files: Files, paths: JobPaths) -> WholeLog:
    """Read a log to its end with every commit, and then the compaction (rule 19)."""
    log = JobLog(files, paths)
    commits = tuple(record for record in log.records() if isinstance(record, Commit))
    compaction = COMPACTIONS.read(files, paths.compaction) if log.view.complete else None
    return WholeLog(log.view, commits, compaction)


def current_parts(commits: Iterable[Commit], compaction: Compaction | None) -> list[CurrentPart]:
    """Return the parts that count, in the order of the commits.

    CorruptRecord: the compaction replaces a part that no commit names, or replaces it twice.
    """
    parts = {part.path: CurrentPart(part, commit.ranges) for commit in commits for part in commit.parts}
    current: dict[str, CurrentPart | None] = {**parts}
    for merge in compaction.merges if compaction is not None else ():
        if not merge.removed or not all(current.get(path) is parts.get(path, merge) for path in merge.removed):
            what = "the record of the compaction is damaged: it replaces parts that do not count"
            raise CorruptRecord(what, where=merge.part.path, hint=RESTORE_HINT)
        current |= dict.fromkeys(merge.removed)
        current[merge.removed[0]] = CurrentPart(merge.part, merge.ranges)
    return [one for one in current.values() if one is not None]
