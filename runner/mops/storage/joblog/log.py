"""A job's log: numbered, create-only records that say what is committed. docs/storage.md has the protocol.

First what is pure: the records, and :class:`LogView`, what a prefix of the log means for who decides. Then
:class:`JobLog`, which reads and appends, :func:`read_whole` for who looks for rows, and :func:`verify`. The rules named
below are those of docs/storage.md. Parts are written by others, before the record that names them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from mops.errors import CorruptRecord, JobError, NewerFormat, StorageUnavailable, Superseded
from mops.storage.files import AT_ONCE, PATIENT, Files, Retry
from mops.storage.paths import JobPaths, table_of
from mops.study.column_families import Families, join_families, parse_families
from mops.study.ranges import Ranges

FORMAT = 1
By: TypeAlias = Literal["auto", "person"]
State: TypeAlias = Literal["succeeded", "partial", "cancelled", "failed"]
COMPLETE = ("succeeded", "partial")
"""States of an end that nothing follows."""
_STATES: tuple[State, ...] = ("succeeded", "partial", "cancelled", "failed")

_NOTHING = Ranges()

_PARTS_AT_ONCE = 4  # verify holds this many parts in memory, each of at most about 64 MiB
_Kind = TypeVar("_Kind")


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


@dataclass(frozen=True)
class Counts:
    """Simulations and targets, good and failed.

    Parameters
    ----------
    verdicts
        How many simulations and targets failed by themselves, by verdict. Targets that had nothing to score, because
        a simulation failed, are in ``targets_failed`` alone.
    """

    simulations_good: int = 0
    simulations_failed: int = 0
    targets_good: int = 0
    targets_failed: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.simulations_good + other.simulations_good,
            self.simulations_failed + other.simulations_failed,
            self.targets_good + other.targets_good,
            self.targets_failed + other.targets_failed,
            dict(Counter(self.verdicts) + Counter(other.verdicts)),
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.simulations_good - other.simulations_good,
            self.simulations_failed - other.simulations_failed,
            self.targets_good - other.targets_good,
            self.targets_failed - other.targets_failed,
            dict(Counter(self.verdicts) - Counter(other.verdicts)),
        )

    @property
    def simulations(self) -> int:
        """Simulations, good and failed."""
        return self.simulations_good + self.simulations_failed

    @property
    def failed(self) -> int:
        """Failed simulations and failed targets."""
        return self.simulations_failed + self.targets_failed


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
        raise CorruptRecord(f"this record of the log is malformed ({bad!r})", where=where, hint=_RESTORE) from bad
    if k not in (record.k, None):
        raise CorruptRecord(f"this record says that it is number {record.k}", where=where, hint=_RESTORE)
    return record


_RESTORE = "nobody but mops writes to the log: restore the file from a backup or the storage's own history"


def _newer(found: int, where: str) -> NewerFormat:
    what = f"this job's log has format {found}, this mops reads formats up to {FORMAT}"
    return NewerFormat(what, where=where, hint="install the version of mops-runner that runs the job, or a newer one")


def _of(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _one_of(choices: tuple[_Kind, ...], value: object) -> _Kind:
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

TableKey: TypeAlias = tuple[str, str | None]
"""A table of a job by kind and output: ``("outputs", "daily")``, ``("losses", None)``."""


@dataclass(frozen=True)
class Stored:
    """How much the parts of one table are."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.parts + other.parts, self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True, eq=False)
class LogView:
    """What records 1 to ``k`` of a log say. A later view extends an earlier one: nothing in it becomes void.

    A runner holds one for as long as its job runs. So it has what decisions need, and is as large after a million
    commits as after ten: sums, and neither commits nor names of parts. Who looks for rows reads these
    (:func:`read_whole`).

    Parameters
    ----------
    k
        How many records were read.
    attempt
        The number of claims.
    committed
        The groups of all commits.
    counts, stored
        Sums over all commits: simulations and targets; parts, by table.
    marks
        The records that are no commits: claims, cancels, ends.
    cancelled
        Whether a cancel stands behind the last claim.
    families
        What the commits say of the columns' families, beyond ``schema.json``.
    """

    k: int = 0
    attempt: int = 0
    committed: Ranges = field(default_factory=Ranges)
    counts: Counts = Counts()
    stored: Mapping[TableKey, Stored] = field(default_factory=dict)
    marks: tuple[Record, ...] = ()
    cancelled: bool = False
    families: Families = field(default_factory=dict)

    def extended(self, records: Sequence[Record]) -> LogView:
        """Return the view after these further records.

        Costs one union of ranges; nothing else depends on how many records there are already. So fold many
        at once.
        """
        commits = [record for record in records if isinstance(record, Commit)]
        marks = [record for record in records if not isinstance(record, Commit)]
        claims = [record for record in marks if isinstance(record, Claim)]
        since_claim = marks[marks.index(claims[-1]) :] if claims else marks
        return LogView(
            k=self.k + len(records),
            attempt=self.attempt + len(claims),
            committed=_union([self.committed, *(commit.ranges for commit in commits)]),
            counts=sum((commit.counts for commit in commits), self.counts),
            stored=_stored(self.stored, commits),
            marks=(*self.marks, *marks),
            cancelled=(self.cancelled and not claims) or any(isinstance(mark, Cancel) for mark in since_claim),
            families=join_families(self.families, *(commit.families for commit in commits if commit.families)),
        )

    @property
    def mark(self) -> Record | None:
        """The last record that is no commit."""
        return self.marks[-1] if self.marks else None

    @property
    def claim(self) -> Claim | None:
        """The last claim; None: nobody has claimed."""
        return next((mark for mark in reversed(self.marks) if isinstance(mark, Claim)), None)

    @property
    def owner(self) -> str | None:
        """The nonce of the last claim."""
        return self.claim.nonce if self.claim else None

    @property
    def unended(self) -> list[Claim]:
        """The claims of attempts without an end: their runners live, were killed, or have met a newer attempt."""
        found = {mark.n: mark for mark in self.marks if isinstance(mark, Claim)}
        for mark in self.marks:
            if isinstance(mark, End):
                found.pop(mark.n, None)
        return list(found.values())

    @property
    def end(self) -> End | None:
        """The end of the last attempt; None: it has none, or a cancel stands behind it."""
        return self.mark if isinstance(self.mark, End) else None

    @property
    def state(self) -> State | None:
        """The state that the last attempt ended with; None: it runs, or was interrupted."""
        return self.end.state if self.end else None

    @property
    def complete(self) -> bool:
        """Whether the job is over: nothing can follow."""
        return self.end is not None and self.end.complete


def _stored(before: Mapping[TableKey, Stored], commits: Sequence[Commit]) -> Mapping[TableKey, Stored]:
    """Add the parts of further commits to the sums."""
    sums = defaultdict(Stored, before)
    for commit in commits:
        for part in commit.parts:
            sums[table_of(part.path)] += Stored(1, part.rows, part.bytes)
    return dict(sums)


def _union(ranges: Iterable[Ranges]) -> Ranges:
    return Ranges.joined(interval for some in ranges for interval in some.intervals)


class Settled(JobError):
    """There was nothing to claim: the job stands in ``state``, and nothing was written.

    Parameters
    ----------
    state
        ``succeeded`` or ``partial``: the job is complete. ``cancelled`` or ``failed``: only a person resumes.
    view
        The whole log.
    """

    def __init__(self, state: State, view: LogView, *, where: str):
        hint = "it is complete: mops jobs results" if view.complete else "mops jobs resume goes on"
        super().__init__(f"the job has ended: {state}", where=where, hint=hint)
        self.state = state
        self.view = view


class Overtaken(JobError):
    """What was asked for is void: somebody has cancelled, ended or claimed the job since. Nothing was written.

    Parameters
    ----------
    mark
        The record that came first.
    """

    exit_code = Superseded.exit_code

    def __init__(self, job: str, mark: Record, *, where: str):
        hint = f"mops jobs status {job} says where it stands; if it is to go on: mops jobs resume {job}"
        super().__init__(_what_overtook(job, mark), where=where, hint=hint)
        self.mark = mark


def _what_overtook(job: str, mark: Record) -> str:
    if isinstance(mark, Cancel):
        return f"job {job!r} was cancelled meanwhile by {mark.who}"
    if isinstance(mark, End):
        return f"attempt {mark.n} of job {job!r} ended meanwhile: {mark.state}"
    return f"attempt {mark.n} of job {job!r} was started meanwhile on {mark.host}"


def settled_state(view: LogView, by: By) -> State | None:
    """Decide whether a claim is out of place (rule 5): return the state to stop with; None: claim."""
    if view.complete or (by == "auto" and view.end):
        return view.state
    return "cancelled" if by == "auto" and isinstance(view.mark, Cancel) else None


def overtaking(view: LogView, asked: Asked) -> Record | None:
    """Decide whether a request is void (rule 5): return the record that came first; None: it stands.

    A request stands while no cancel, end or claim is behind what its maker had seen. Once a claim has carried it out,
    it stands while that claim, or another one of the same request, is the last.
    """
    behind = [mark for mark in view.marks if mark.k > asked.k]
    if any(_carries_out(mark, asked) for mark in behind):
        return None if view.claim and _carries_out(view.claim, asked) else view.claim
    return behind[0] if behind else None


def _carries_out(mark: Record, asked: Asked) -> bool:
    return isinstance(mark, Claim) and mark.asked is not None and mark.asked.nonce == asked.nonce


def check_start(view: LogView, by: By, asked: Asked | None, *, job: str, where: str) -> By:
    """Decide whether a runner may claim (rule 5); return by whom its claim is.

    A request is a person's once. A runner that is restarted to carry it out finds its own claim, and is automatic.

    Raises
    ------
    Settled
        There is nothing to run.
    Overtaken
        The request is void.
    """
    if asked and any(_carries_out(mark, asked) for mark in view.marks):
        by = "auto"
    if not view.complete and asked and (mark := overtaking(view, asked)):
        raise Overtaken(job, mark, where=where)
    if (state := settled_state(view, by)) is not None:
        raise Settled(state, view, where=where)
    return by


class JobLog:
    """The log of one job, as one process sees it. Used from one thread; many processes may each have one.

    Parameters
    ----------
    host
        The name that records carry.
    clock
        Seconds since the epoch, for people to read.
    nonce
        Draws 128 random bits, hexadecimal.
    retry
        How long a record that exists, but cannot be read yet, is waited for.
    """

    def __init__(
        self,
        files: Files,
        paths: JobPaths,
        *,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
        nonce: Callable[[], str] = lambda: os.urandom(16).hex(),
        retry: Retry = PATIENT,
    ):
        self._files, self._paths, self._host = files, paths, host or socket.gethostname()
        self._clock, self._nonce, self._retry = clock, nonce, retry
        self._view = LogView()
        self._claim: Record | None = None
        self._open: Record | None = None

    @property
    def view(self) -> LogView:
        """What was read and written so far."""
        return self._view

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked this attempt to stop; it may still commit what is finished."""
        return self._view.cancelled

    def read(self) -> LogView:
        """Read on until a record is absent (rule 12), several at a time; return all that was read.

        Raises
        ------
        NewerFormat, CorruptRecord
            A record is of a newer mops, or not what mops wrote.
        StorageError
            The storage refuses, or is out of reach.
        """
        for _ in self.records():
            pass
        return self._view

    def records(self) -> Iterator[Record]:
        """Yield what :meth:`read` reads, record by record; none of them is kept here."""
        window = 1
        while not self._view.complete:
            records = self._get(window)
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
            ``person``: somebody asked for it. ``auto``: a pod was restarted; a job that has ended stays so.
        asked
            The request that this claim carries out: only if it stands (:func:`overtaking`). None: nobody decided on
            what the log said before.

        Returns
        -------
        LogView
            The log up to the own claim: its ``committed`` is inherited and not to be run again.

        Raises
        ------
        Settled
            There is nothing to run.
        Overtaken
            The request is void.
        StorageUnavailable
            No answer in time. The claim may still land: end the process.
        """
        if self._claim is not None:
            raise RuntimeError("this process has claimed already")
        self.read()
        self._claim = self._append(lambda head: self._decide_claim(by, asked, head))
        return self._view

    def commit(self, ranges: Ranges, parts: Iterable[Part], counts: Counts, families: Families | None = None) -> None:
        """Make groups count (rule 7): their parts are durable already.

        Parameters
        ----------
        families
            Those that the parts fix; None: they fix none.

        Raises
        ------
        Superseded
            A newer attempt owns the job; the groups do not count.
        StorageUnavailable
            No answer in time. The record may still land: end the process.
        """
        if ranges.overlaps(self._view.committed):
            raise ValueError(f"groups {ranges} are committed in part already")
        named, fixed = tuple(parts), families or {}
        self._append(
            lambda head: self._owned(Commit(ranges=ranges, parts=named, counts=counts, families=fixed, **head))
        )

    def end(self, state: State, totals: Counts) -> None:
        """End the attempt (rules 10 and 11); the caller knows that a complete end covers every group.

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
            No answer in time; the cancel may still land.
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

    def _owned(self, record: _Kind) -> _Kind:
        self._fence()
        if self._view.end:
            raise RuntimeError("this attempt has ended")
        return record

    def _fence(self) -> None:
        """Rule 8."""
        if self._claim is None:
            raise RuntimeError("this process has not claimed")
        if self._view.owner != self._claim.nonce:
            raise Superseded(
                f"superseded by attempt {self._view.attempt}",
                where=f"{self._files.url}/{self._paths.log}",
                hint="nothing is to be done here: the newer runner goes on",
            )

    def _append(self, draw_up: Callable[[dict[str, Any]], Record | None]) -> Record | None:
        """Write a record behind all others (rule 3), decided afresh behind each that comes first.

        Parameters
        ----------
        draw_up
            Makes the record from what all have, or raises, or returns None: nothing is to be written.
        """
        while (record := draw_up(self._head())) is not None:
            there = self._settle(record)
            if there.nonce == record.nonce:
                self._view = self._view.extended([there])
                return there
            self._meet([there])
        return None

    def _head(self) -> dict[str, Any]:
        head = {"k": self._view.k + 1, "n": self._view.attempt, "nonce": self._nonce()}
        return {**head, "time": self._clock(), "host": self._host}

    def _settle(self, record: Record) -> Record:
        """Put a record until its place is taken; return the one that stands there."""
        if self._open is not None:
            raise self._unanswered(self._open)
        self._open = record
        # Open also when an error leaves this loop: its request may still land, so nothing else may be put.
        for _ in self._retry.attempts():
            there = self._put(record)
            if there is not None:
                self._open = None
                return there
        raise self._unanswered(record)

    def _put(self, record: Record) -> Record | None:
        """Return the record that stands in this one's place; None: there is one that cannot be read yet."""
        path = self._paths.log_record(record.k)
        if self._files.put_new(path, encode_record(record)):
            return record
        data = self._files.get_many([path])[0]
        return None if data is None else parse_record(data, record.k, self._where(record.k))

    def _unanswered(self, record: Record) -> StorageUnavailable:
        return StorageUnavailable(
            f"nobody knows whether the {record.kind} was written",
            where=self._where(record.k),
            hint="end this process; mops jobs resume finds out and goes on",
        )

    def _get(self, count: int) -> list[Record]:
        """Return the next records, at most ``count``, up to the first that is absent."""
        numbers = range(self._view.k + 1, self._view.k + 1 + count)
        found = zip(numbers, self._files.get_many([self._paths.log_record(k) for k in numbers]), strict=True)
        there = itertools.takewhile(lambda pair: pair[1] is not None, found)
        return [parse_record(data, k, self._where(k)) for k, data in there if data is not None]

    def _meet(self, records: Sequence[Record]) -> None:
        """Take in records of others."""
        self._view = self._view.extended(records)
        if self._claim is None or self._view.owner != self._claim.nonce:
            return
        for record in records:
            if isinstance(record, Commit | End):
                raise CorruptRecord(
                    f"a {record.kind} that is not by the job's owner",
                    where=self._where(record.k),
                    hint=_RESTORE,
                )

    def _where(self, k: int) -> str:
        return f"{self._files.url}/{self._paths.log_record(k)}"


@dataclass(frozen=True, eq=False)
class WholeLog:
    """A log with every commit: for who looks for rows, and keeps it no longer than that takes."""

    view: LogView
    commits: tuple[Commit, ...]

    @functools.cached_property
    def parts(self) -> dict[TableKey, tuple[Part, ...]]:
        """The parts of all commits in their order, by table."""
        found = defaultdict(list)
        for commit in self.commits:
            for part in commit.parts:
                found[table_of(part.path)].append(part)
        return {table: tuple(parts) for table, parts in found.items()}

    def parts_of(self, kind: str, output: str | None = None) -> tuple[Part, ...]:
        """Return the parts of one table; kind and output as for :meth:`JobPaths.part`."""
        return self.parts.get((kind, output), ())


def read_whole(files: Files, paths: JobPaths) -> WholeLog:
    """Read a log to its end with every commit; raises as :meth:`JobLog.read`."""
    log = JobLog(files, paths)
    commits = tuple(record for record in log.records() if isinstance(record, Commit))
    return WholeLog(log.view, commits)


def verify(files: Files, paths: JobPaths, total_groups: int, taken_over: Ranges = _NOTHING) -> list[str]:
    """Check a job's log and parts (rule 14); reads every part.

    Parameters
    ----------
    taken_over
        The groups that a derived job has from its parent: its own log is to hold all others.

    Returns
    -------
    list[str]
        One sentence for each thing that is wrong.

    Raises
    ------
    NewerFormat
        A newer mops wrote the log.
    StorageError
        The storage refuses, or is out of reach.
    """
    records, problems = _readable(files, paths)
    problems += order_problems(records)
    problems += coverage_problems(records, total_groups, taken_over)
    return problems + _part_problems(files, [part for record in records for part in getattr(record, "parts", ())])


def _readable(files: Files, paths: JobPaths) -> tuple[list[Record], list[str]]:
    """Return the records that can be read, and what is wrong with the others."""
    records, problems = [], []
    there = [entry.path for entry in files.list(paths.log)]
    for k, path in enumerate(there, start=1):
        if path != paths.log_record(k):
            problems.append(f"{paths.log_record(k)}: missing, yet there is {path}")
            break
        try:
            records.append(parse_record(files.get(path), k, path))
        except CorruptRecord as bad:
            problems.append(f"{path}: {bad.what}")
            break
    return records, problems


def order_problems(records: Iterable[Record]) -> list[str]:
    """Say which records should not stand where they do: rules 4, 5 and 12."""
    view, problems = LogView(), []
    for record in records:
        problems += [f"record {record.k}: {problem}" for problem in _misplaced(view, record)]
        view = view.extended([record])
    return problems


def _misplaced(view: LogView, record: Record) -> Iterator[str]:
    claims = isinstance(record, Claim)
    if view.complete:
        yield "it follows a complete end"
    if record.n != view.attempt + claims:
        yield f"it names attempt {record.n}, where attempt {view.attempt + claims} stands"
    if isinstance(record, Claim) and settled_state(view, record.by):
        yield f"a claim by {record.by!r} of a job that is {settled_state(view, record.by)}"
    if isinstance(record, Claim) and record.asked and (mark := overtaking(view, record.asked)):
        yield f"a claim for a request that record {mark.k} ({mark.kind}) had made void"
    if isinstance(record, Commit | End) and (not view.attempt or view.end):
        yield f"a {record.kind} while no attempt runs"


def coverage_problems(records: Iterable[Record], total_groups: int, taken_over: Ranges = _NOTHING) -> list[str]:
    """Say which groups are in two commits or none, and whether the totals add up: rules 7 and 11."""
    commits = [record for record in records if isinstance(record, Commit)]
    spans = sorted((*span, commit.k) for commit in commits for span in commit.ranges.intervals)
    problems = [
        f"record {k}: groups {start} to {stop - 1} are not all among the job's {total_groups}"
        for start, stop, k in spans
        if start < 0 or stop > total_groups
    ]
    for (_, before, one), (start, stop, other) in itertools.pairwise(spans):
        if start < before:
            problems.append(f"records {one} and {other}: both commit groups {start} to {min(before, stop) - 1}")
    problems += [
        f"record {commit.k}: commits groups {start} to {stop - 1}, which are the parent's"
        for commit in commits
        for start, stop in (commit.ranges & taken_over).intervals
    ]
    return problems + _end_problems(records, commits, total_groups - len(taken_over))


def _end_problems(records: Iterable[Record], commits: Sequence[Commit], total_groups: int) -> list[str]:
    problems = []
    covered = len(_union(commit.ranges for commit in commits))
    counted = sum((commit.counts for commit in commits), Counts())
    for end in (record for record in records if isinstance(record, End) and record.complete):
        if covered != total_groups:
            problems.append(f"record {end.k}: the job is {end.state} with {covered} of {total_groups} groups")
        if end.totals != counted:
            problems.append(f"record {end.k}: its totals are {end.totals}, its commits' are {counted}")
    return problems


def _part_problems(files: Files, parts: Sequence[Part]) -> list[str]:
    problems = []
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        some = parts[start : start + _PARTS_AT_ONCE]
        for part, data in zip(some, files.get_many([part.path for part in some]), strict=True):
            problems += [f"{part.path}: {problem}" for problem in _differences(part, data)]
    return problems


def _differences(part: Part, data: bytes | None) -> Iterator[str]:
    if data is None:
        yield "missing"
    elif len(data) != part.bytes:
        yield f"{len(data)} bytes instead of {part.bytes}"
    elif hashlib.sha256(data).hexdigest() != part.digest:
        yield "its SHA-256 is not the one that was committed"
