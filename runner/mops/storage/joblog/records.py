"""The records of a job's log: claim, ask, commit, cancel, end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from mops.errors import CorruptRecord, NewerFormat
from mops.storage.paths import table_of
from mops.study.column_families import Families, parse_families
from mops.study.ranges import Ranges
from mops.verdicts import Counts

FORMAT = 1

By: TypeAlias = Literal["auto", "person"]

State: TypeAlias = Literal["succeeded", "partial", "cancelled", "failed"]

COMPLETE = ("succeeded", "partial")
"""States of an end that nothing follows."""

_STATES: tuple[State, ...] = ("succeeded", "partial", "cancelled", "failed")

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Part:
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

    path: str
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says.

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

    kind: ClassVar[str]
    k: int
    n: int
    nonce: str
    time: float
    host: str

    def to_json(self) -> dict[str, object]:
        """Return the record as plain data."""
        head = {"format": FORMAT, "k": self.k, "kind": self.kind, "n": self.n}
        return {**head, "nonce": self.nonce, "time": self.time, "host": self.host, **self._body()}

    def _body(self) -> dict[str, object]:
        raise NotImplementedError


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

    kind: ClassVar[str] = "claim"
    by: By
    asked: Asked | None = None

    def _body(self) -> dict[str, object]:
        return {"by": self.by} | ({"asked": asdict(self.asked)} if self.asked else {})


@dataclass(frozen=True, kw_only=True)
class Commit(Record):
    """Makes groups durable: these ranges, with these parts.

    Parameters
    ----------
    families
        What these parts hold in columns of which neither ``schema.json`` nor an earlier commit says as much.
    """

    kind: ClassVar[str] = "commit"
    ranges: Ranges
    parts: tuple[Part, ...]
    counts: Counts
    families: Families = field(default_factory=dict)

    def _body(self) -> dict[str, object]:
        parts = [[part.path, part.rows, part.bytes, part.digest] for part in self.parts]
        body = {"ranges": self.ranges.to_json(), "parts": parts, "counts": vars(self.counts)}
        return body | {"families": self.families} if self.families else body


@dataclass(frozen=True, kw_only=True)
class Cancel(Record):
    """Asks the attempt to stop."""

    kind: ClassVar[str] = "cancel"
    who: str

    def _body(self) -> dict[str, object]:
        return {"who": self.who}


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """Ends the attempt, and with a state of :data:`COMPLETE` the job."""

    kind: ClassVar[str] = "end"
    state: State
    totals: Counts

    def _body(self) -> dict[str, object]:
        return {"state": self.state, "totals": vars(self.totals)}

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return self.state in COMPLETE


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record: JSON."""
    return json.dumps(record.to_json(), separators=(",", ":"), ensure_ascii=False).encode()


def parse_record(data: bytes, k: int | None, where: str) -> Record:
    """Return the record that these bytes are.

    Parameters
    ----------
    k
        The number that the file's name gives it; None: the file's name gives it none.
    where
        What errors name.

    Raises
    ------
    NewerFormat
        A newer mops wrote it.
    CorruptRecord
        It is not what mops wrote.
    """
    try:
        fields = json.loads(data)
        if _of(int, fields["format"]) > FORMAT:
            raise _newer(fields["format"], where)
        record = _KINDS[fields["kind"]](fields, _head(fields))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as bad:
        raise CorruptRecord(f"this record of the log is malformed ({bad!r})", where=where, hint=RESTORE_HINT) from bad
    if k not in (record.k, None):
        raise CorruptRecord(f"this record says that it is number {record.k}", where=where, hint=RESTORE_HINT)
    return record


RESTORE_HINT = "nobody but mops writes to the log: restore the file from a backup or the storage's own history"


def _newer(found: int, where: str) -> NewerFormat:
    what = f"this job's log has format {found}, this mops reads formats up to {FORMAT}"
    return NewerFormat(what, where=where, hint="install the version of mops-runner that runs the job, or a newer one")


def _of(kind: type[Kind], value: object) -> Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _one_of(choices: tuple[Kind, ...], value: object) -> Kind:
    for choice in choices:
        if choice == value:
            return choice
    raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}")


def _head(fields: dict[str, Any]) -> dict[str, Any]:
    head = {name: _of(kind, fields[name]) for name, kind in (("k", int), ("n", int), ("nonce", str), ("host", str))}
    return {**head, "time": float(fields["time"])}


def _claim(fields: dict[str, Any], head: dict[str, Any]) -> Claim:
    return Claim(by=_one_of(("auto", "person"), fields["by"]), asked=_asked(fields.get("asked")), **head)


def _asked(fields: dict[str, Any] | None) -> Asked | None:
    return None if fields is None else Asked(_of(int, fields["k"]), _of(str, fields["nonce"]))


def _commit(fields: dict[str, Any], head: dict[str, Any]) -> Commit:
    parts = tuple(_part(*part) for part in fields["parts"])
    ranges = Ranges.from_json(fields["ranges"])
    families = parse_families(fields.get("families", {}))
    return Commit(ranges=ranges, parts=parts, counts=counts_from(fields["counts"]), families=families, **head)


def _cancel(fields: dict[str, Any], head: dict[str, Any]) -> Cancel:
    return Cancel(who=_of(str, fields["who"]), **head)


def _end(fields: dict[str, Any], head: dict[str, Any]) -> End:
    return End(state=_one_of(_STATES, fields["state"]), totals=counts_from(fields["totals"]), **head)


def _part(path: object, rows: object, size: object, digest: object) -> Part:
    table_of(_of(str, path))  # a ValueError for what is no part's path
    return Part(_of(str, path), _of(int, rows), _of(int, size), _of(str, digest))


def counts_from(fields: dict[str, Any]) -> Counts:
    """Return the counts of a record; KeyError, TypeError, ValueError or AttributeError if they are none."""
    verdicts = {name: _of(int, n) for name, n in fields.get("verdicts", {}).items()}
    return Counts(**{name: _of(int, n) for name, n in fields.items() if name != "verdicts"}, verdicts=verdicts)


_KINDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Record]] = {
    "claim": _claim,
    "commit": _commit,
    "cancel": _cancel,
    "end": _end,
}
