"""The records of a job's log: claim, commit, cancel, end. docs/storage.md has their fields."""

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
"""States of an end that nothing follows."""


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

    path: Annotated[str, Field(pattern="^[^/]*(/[^/]*){3,}$")]  # what paths.table_of takes
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says. The fields are stored in their order here.

    Parameters
    ----------
    k
        Its number in the log; the first is 1.
    n
        The attempt that it belongs to: how many claims there are up to it.
    nonce
        128 random bits, hexadecimal, drawn for this record alone.
    time
        When it was drawn up (s since the epoch, its writer's clock); for people, never compared.
    """

    k: int
    kind: str
    n: int
    nonce: str
    time: float
    host: str


@dataclass(frozen=True)
class Asked:
    """That somebody has asked for a runner, and what they had seen of the log then.

    Parameters
    ----------
    k
        How many records they had read: the request is void if a cancel, an end or another claim came behind them.
    nonce
        Of this request: claims that carry it out have it too, so that a restarted runner knows them for its own.
    """

    k: int
    nonce: str

    @classmethod
    def behind(cls, k: int) -> Asked:
        """Return a new request of who has read ``k`` records."""
        return cls(k, os.urandom(8).hex())

    def __str__(self) -> str:
        return f"{self.k}-{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> Asked:
        """Return the request that is written so; ValueError: it is none."""
        k, _, nonce = text.partition("-")
        if not (k.isdecimal() and nonce):
            raise ValueError(f"{text!r} is no request: a number, a hyphen, and what tells it from others")
        return cls(int(k), nonce)


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """Begins an attempt, which inherits every commit before it.

    Parameters
    ----------
    asked
        The request that it carries out; None: nobody has asked, or an older mops wrote it.
    """

    kind: Literal["claim"] = "claim"
    by: By
    asked: Annotated[Asked | None, Field(exclude_if=not_)] = None


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """Makes groups durable: these ranges, with these parts.

    Parameters
    ----------
    families
        What these parts hold in columns of which neither ``schema.json`` nor an earlier commit says as much.
    """

    kind: Literal["commit"] = "commit"
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
    """Ends the attempt, and with a state of :data:`COMPLETE` the job."""

    kind: Literal["end"] = "end"
    state: State
    totals: Counts

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return self.state in COMPLETE


LOG_RECORDS: JsonCodec[Record] = JsonCodec(Annotated[Claim | Commit | Cancel | End, Field(discriminator="kind")])


def decode_record(data: bytes, k: int, where: str) -> Record:
    """Return record ``k`` of a log; raises as :meth:`JsonCodec.decode`."""
    record = LOG_RECORDS.decode(data, where)
    if record.k != k:
        raise CorruptRecord(f"this record says that it is number {record.k}", where=where, hint=RESTORE_HINT)
    return record
