"""The records of a job's log (claim, commit, cancel, end) and of its compaction: docs/internals/storage.md."""

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

COMPLETE = ("succeeded", "partial")  # states that end the job: no record follows


class Part(NamedTuple):
    """A file that a commit names."""

    path: Annotated[str, Field(pattern="^[^/]*(/[^/]*){4,}$")]  # what paths.table_of takes
    rows: int
    bytes: int
    digest: str  # SHA-256, hexadecimal


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of every record, stored in this order."""

    k: int  # the number in the log; the first is 1
    kind: str
    n: int  # the attempt: the number of claims up to this record
    nonce: str  # 128 random bits, hexadecimal, drawn for this record alone
    time: float  # s since the epoch, by the writer's clock; for people, and never compared
    host: str


@dataclass(frozen=True)
class Asked:
    """A person's request for a runner, made by a command that had read ``k`` records.

    A cancel, an end or another claim after these records voids the request. Claims that carry it out have its nonce,
    so a restarted runner recognises its own.
    """

    k: int
    nonce: str
    job: Annotated[str, Field(exclude_if=not_)] = ""  # the job's id; empty: the runner is this process

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
    """Starts an attempt, which inherits every commit before it."""

    kind: Literal["claim"] = "claim"
    by: By
    asked: Annotated[Asked | None, Field(exclude_if=not_)] = None  # the request that the claim carries out


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """Makes groups count: these ranges, with these parts."""

    kind: Literal["commit"] = "commit"
    claim: str  # the nonce of the claim of its attempt
    ranges: StoredRanges
    parts: tuple[Part, ...]
    counts: Counts
    # What these parts fix for their columns, beyond schema.json and earlier commits.
    families: Annotated[StoredFamilies, Field(exclude_if=not_)] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cancel(Record):
    """Asks the attempt to stop."""

    kind: Literal["cancel"] = "cancel"
    who: str


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """Ends the attempt. With a state of :data:`COMPLETE` it ends the job too."""

    kind: Literal["end"] = "end"
    claim: str  # the nonce of the claim of its attempt
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
    """Parts of a table that follow one another, and one part with the same rows in their place."""

    removed: tuple[str, ...]  # paths, in the order of the table
    part: Part
    ranges: StoredRanges  # the groups of the commits that wrote the removed parts


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The one record of a complete job that names larger parts in place of small ones: ``compacted.json``."""

    time: float
    host: str
    merges: tuple[Merge, ...]


COMPACTIONS: JsonCodec[Compaction] = JsonCodec(Compaction)
