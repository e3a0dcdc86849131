"""The log of a job's compactions: which larger parts replace smaller ones after the complete end.

docs/internals/storage.md, "Compaction", describes the protocol and its rules, which the comments here name by number.
:mod:`mops.storage.compaction.compactor` writes the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mops.errors import Superseded
from mops.storage.files import Files
from mops.storage.joblog.current_parts import COMPACTION_RECORDS, Compact, CompactionRecord
from mops.storage.joblog.numbered import NumberedLog
from mops.storage.joblog.records import By, Claim, Part
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges


@dataclass(frozen=True)
class CompactionView:
    """The meaning of records 1 to ``k`` of a log of compactions.

    Parameters
    ----------
    k
        The number of records.
    attempt
        The number of claims, which is the number of the last compaction.
    owner
        The nonce of the last claim; None: without a claim.
    compacts
        The records that replace parts.
    """

    k: int = 0
    attempt: int = 0
    owner: str | None = None
    compacts: tuple[Compact, ...] = ()

    def extended(self, records: Sequence[CompactionRecord]) -> CompactionView:
        """Return the view after these further records."""
        claims = [record for record in records if isinstance(record, Claim)]
        compacts = [record for record in records if isinstance(record, Compact)]
        return CompactionView(
            k=self.k + len(records),
            attempt=self.attempt + len(claims),
            owner=claims[-1].nonce if claims else self.owner,
            compacts=(*self.compacts, *compacts),
        )


class CompactionLog(NumberedLog[CompactionRecord, CompactionView]):
    """The log of a job's compactions. Only a complete job has any (rule 16).

    Parameters
    ----------
    options
        Those of :class:`mops.storage.joblog.numbered.NumberedLog`.
    """

    def __init__(self, files: Files, paths: JobPaths, **options: Any):
        hint = f"mops jobs compact {paths.job}"
        super().__init__(files, paths.compactions, COMPACTION_RECORDS, CompactionView(), hint, **options)
        self._claim: CompactionRecord | None = None

    def read(self) -> CompactionView:
        """Read the new records up to the first that is absent; return the view.

        Raises
        ------
        NewerFormat, CorruptRecord
            A newer mops wrote a record, or a record is not what mops wrote.
        StorageError
            The storage refuses, or is out of reach.
        """
        for _ in self.records():
            pass
        return self._view

    def claim(self, by: By) -> CompactionView:
        """Become the owner (rule 16); return the log up to this claim.

        Raises
        ------
        StorageUnavailable
            No answer in time. The storage may still write the claim: exit the process.
        """
        self.read()
        self._claim = self._append(lambda head: Claim(by=by, **{**head, "n": self._view.attempt + 1}))
        return self._view

    def compact(self, removed: Sequence[str], part: Part, ranges: Ranges) -> None:
        """Replace parts by a durable part (rules 17 and 19).

        Raises
        ------
        Superseded
            A newer compaction owns the job; the new part does not count.
        StorageUnavailable
            No answer in time. The storage may still write the record: exit the process.
        """
        self._append(lambda head: self._owned(Compact(removed=tuple(removed), part=part, ranges=ranges, **head)))

    def poll(self) -> None:
        """Look for a newer compaction.

        Raises
        ------
        Superseded
            A newer compaction owns the job.
        """
        self.read()
        self._fence()

    def _owned(self, record: Compact) -> Compact:
        self._fence()
        return record

    def _fence(self) -> None:
        """Raise if a newer compaction owns the job (rule 17)."""
        if self._claim is None:
            raise RuntimeError("this process has not claimed")
        if self._view.owner != self._claim.nonce:
            raise Superseded(
                f"compaction {self._view.attempt} of this job began later, so this one stopped",
                where=self._where(self._view.k),
                hint="wait for the other one; if parts are still small, run mops jobs compact again",
            )
