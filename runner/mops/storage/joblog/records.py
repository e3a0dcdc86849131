"""The records of a job's log (claim, commit, cancel, end) and of its compaction.

docs/internals/storage.md lists their fields.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from operator import not_
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field

from mops.errors import CorruptRecord
from mops.storage.json_records import RESTORE_HINT, JsonCodec, StoredFamilies, StoredRanges
from mops.verdicts import Counts

By: TypeAlias = Literal["auto", "person"]

State: TypeAlias = Literal["succeeded", "partial", "cancelled", "failed"]

COMPLETE = ("succeeded", "partial")
"""States that end the job: no record follows."""


class Part(NamedTuple):
    """A file that a commit names.

    Parameters
    ----------
    path
        Relative to the storage's root.
    rows, bytes
        How many.
    digest
        SHA-256 of the bytes, hexadecimal.
    """

    path: Annotated[str, Field(pattern="^[^/]*(/[^/]*){4,}$")]  # what paths.table_of takes
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of every record, stored in this order.

    Parameters
    ----------
    k
        The record's number in the log; the first is 1.
    n
        The record's attempt: the number of claims up to this record.
    nonce
        128 random bits, hexadecimal, drawn for this record alone.
    time
        When the writer made the record (s since the epoch, by its clock). It is for people; mops never compares it.
    """

    k: int
    kind: str
    n: int
    nonce: str
    time: float
    host: str


@dataclass(frozen=True)
class Asked:
    """A person's request for a runner.

    Parameters
    ----------
    k
        How many records the person's command had read. A cancel, an end or another claim after them voids the request.
    nonce
        Identifies the request. Claims that carry it out have the same nonce, so a restarted runner recognises its own.
    job
        The id of the job, for a runner that another process starts; empty: the runner is this process.
    """

    k: int
    nonce: str
    job: Annotated[str, Field(exclude_if=not_)] = ""

    @classmethod
    def behind(cls, k: int) -> Asked:
        """Return a new request from a command that has read ``k`` records."""
        return cls(k, os.urandom(8).hex())

    def __str__(self) -> str:
        return "-".join([str(self.k), self.nonce, *([self.job] if self.job else [])])

    @classmethod
    def parse(cls, text: str) -> Asked:
        """Return the request that :meth:`__str__` wrote; ValueError: the text is not a request."""
        k, _, rest = text.partition("-")
        nonce, _, job = rest.partition("-")
        if not (k.isdecimal() and nonce):
            raise ValueError(f"{text!r} is not a request: expected a number, a hyphen and a nonce")
        return cls(int(k), nonce, job)


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """Starts an attempt, which inherits every commit before it.

    Parameters
    ----------
    asked
        The request that the claim carries out; None: no request, or an older mops wrote the claim.
    """

    kind: Literal["claim"] = "claim"
    by: By
    asked: Annotated[Asked | None, Field(exclude_if=not_)] = None


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """Makes groups count: these ranges, with these parts.

    Parameters
    ----------
    claim
        The nonce of the claim of the attempt that commits.
    families
        The families that these parts fix for their columns, beyond ``schema.json`` and earlier commits.
    """

    kind: Literal["commit"] = "commit"
    claim: str
    ranges: StoredRanges
    parts: tuple[Part, ...]
    counts: Counts
    families: Annotated[StoredFamilies, Field(exclude_if=not_)] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cancel(Record):
    """Asks the attempt to stop."""

    kind: Literal["cancel"] = "cancel"
    who: str


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """Ends the attempt. With a state of :data:`COMPLETE` it ends the job too.

    Parameters
    ----------
    claim
        The nonce of the claim of the attempt that ends.
    """

    kind: Literal["end"] = "end"
    claim: str
    state: State
    totals: Counts

    @property
    def complete(self) -> bool:
        """Whether this record is the log's last for good."""
        return self.state in COMPLETE


LOG_RECORDS: JsonCodec[Record] = JsonCodec(Annotated[Claim | Commit | Cancel | End, Field(discriminator="kind")])


def decode_record(data: bytes, k: int, where: str) -> Record:
    """Return record ``k`` of a job's log; raises as :meth:`JsonCodec.decode`."""
    record = LOG_RECORDS.decode(data, where)
    if record.k != k:
        what = f"this record has the number {record.k}, and its file another one"
        raise CorruptRecord(what, where=where, hint=RESTORE_HINT)
    return record


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Parts of a table that follow one another, and one part with the same rows in their place.

    Parameters
    ----------
    removed
        The paths of the parts that no longer count, in the order of the table.
    ranges
        The groups of the commits that wrote them.
    """

    removed: tuple[str, ...]
    part: Part
    ranges: StoredRanges


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The one record of a complete job that names larger parts in place of small ones: ``compacted.json``."""

    time: float
    host: str
    merges: tuple[Merge, ...]


COMPACTIONS: JsonCodec[Compaction] = JsonCodec(Compaction)
