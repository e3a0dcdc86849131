"""The records of a job's log (claim, commit, cancel, end) and of its compaction, and what the log says as a whole.

docs/internals/storage.md has the rules that the comments here name by number.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import not_
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field

from mops.errors import CorruptRecord, JobError, Superseded
from mops.storage.json_records import RESTORE_HINT, JsonCodec, StoredFamilies, StoredRanges
from mops.storage.paths import table_of
from mops.study.column_families import Families, join_families
from mops.study.ranges import Ranges
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
    time: float  # s since the epoch, by the writer's clock; for people, and for a deletion by age; no rule compares it
    host: str


@dataclass(frozen=True)
class RunRequest:
    """A person's request for a runner, made by a command that had read ``k`` records.

    A cancel, an end or another claim after these records voids the request. Claims that carry it out have its nonce,
    so a restarted runner recognises its own.
    """

    k: int
    nonce: str
    job: Annotated[str, Field(exclude_if=not_)] = ""  # the job's id; empty: the runner is this process

    @classmethod
    def behind(cls, k: int) -> RunRequest:
        """Return a new request from a command that has read ``k`` records."""
        return cls(k, os.urandom(8).hex())

    def __str__(self) -> str:
        return "-".join([str(self.k), self.nonce, *([self.job] if self.job else [])])

    @classmethod
    def parse(cls, text: str) -> RunRequest:
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
    asked: Annotated[RunRequest | None, Field(exclude_if=not_)] = None  # the request that the claim carries out


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


TableKey: TypeAlias = tuple[str, str | None]  # kind and output: ("outputs", "daily"), ("losses", None)


@dataclass(frozen=True)
class TableSize:
    """How many parts one table has, and how large they are."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: TableSize) -> TableSize:
        return TableSize(self.parts + other.parts, self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True, eq=False)
class LogView:
    """The meaning of records 1 to ``k`` of a log. A later view only adds to an earlier one.

    A runner holds a view while its job runs. The view has sums, and neither commits nor names of parts, so it is as
    large after a million commits as after ten. Readers of rows use :func:`mops.storage.joblog.log.read_whole`.
    """

    k: int = 0
    attempt: int = 0  # the number of claims
    committed: Ranges = field(default_factory=Ranges)
    counts: Counts = field(default_factory=Counts)  # sums over all commits, as `sizes`
    sizes: Mapping[TableKey, TableSize] = field(default_factory=dict)
    marks: tuple[Record, ...] = ()  # claims, cancels and ends
    cancelled: bool = False  # whether a cancel follows the last claim
    families: Families = field(default_factory=dict)  # what the commits fix for the columns, beyond schema.json

    def extended(self, records: Sequence[Record]) -> LogView:
        """Return the view after these further records. The cost of a call grows with the log: add many at once."""
        commits = [record for record in records if isinstance(record, Commit)]
        marks = [record for record in records if not isinstance(record, Commit)]
        claims = [record for record in marks if isinstance(record, Claim)]
        since_claim = marks[marks.index(claims[-1]) :] if claims else marks
        sizes = defaultdict(TableSize, self.sizes)
        for commit in commits:
            for part in commit.parts:
                sizes[table_of(part.path)] += TableSize(1, part.rows, part.bytes)
        return LogView(
            k=self.k + len(records),
            attempt=self.attempt + len(claims),
            # The union is the only cost that grows with the log.
            committed=union([self.committed, *(commit.ranges for commit in commits)]),
            counts=sum((commit.counts for commit in commits), self.counts),
            sizes=dict(sizes),
            marks=(*self.marks, *marks),
            cancelled=(self.cancelled and not claims) or any(isinstance(mark, Cancel) for mark in since_claim),
            families=join_families(self.families, *(commit.families for commit in commits if commit.families)),
        )

    @property
    def mark(self) -> Record | None:
        """The last claim, cancel or end."""
        return self.marks[-1] if self.marks else None

    @property
    def claim(self) -> Claim | None:
        """The last claim; None: no attempt has started."""
        return next((mark for mark in reversed(self.marks) if isinstance(mark, Claim)), None)

    @property
    def owner(self) -> str | None:
        """The nonce of the last claim."""
        return self.claim.nonce if self.claim else None

    @property
    def unended(self) -> list[Claim]:
        """The claims of attempts without an end: the runner is alive, was killed, or was superseded."""
        found = {mark.n: mark for mark in self.marks if isinstance(mark, Claim)}
        for mark in self.marks:
            if isinstance(mark, End):
                found.pop(mark.n, None)
        return list(found.values())

    @property
    def end(self) -> End | None:
        """The end of the last attempt; None: there is none, or a cancel follows it."""
        return self.mark if isinstance(self.mark, End) else None

    @property
    def state(self) -> State | None:
        """The state at the end of the last attempt; None: the attempt runs, or was interrupted."""
        return self.end.state if self.end else None

    @property
    def complete(self) -> bool:
        """Whether the job is complete: no record follows."""
        return self.end is not None and self.end.complete


def union(ranges: Iterable[Ranges]) -> Ranges:
    """Return the union of several sets."""
    return Ranges.joined(interval for some in ranges for interval in some.intervals)


class NothingToRun(JobError):
    """There is nothing to claim, and mops wrote nothing: the job is complete, or only a person may resume it."""

    def __init__(self, state: State, view: LogView, *, where: str):
        hint = "read the results: mops jobs results" if view.complete else "continue the job: mops jobs resume"
        super().__init__(f"the job has ended: {state}", where=where, hint=hint)
        self.state, self.view = state, view


class Overtaken(JobError):
    """The request is void: ``mark``, a cancel, an end or a claim, came before it. mops wrote nothing."""

    exit_code = Superseded.exit_code

    def __init__(self, job: str, mark: Record, *, where: str):
        hint = f"show its state: mops jobs status {job}; continue the job: mops jobs resume {job}"
        if isinstance(mark, Cancel):
            what = f"job {job!r} was cancelled meanwhile by {mark.who}"
        elif isinstance(mark, End):
            what = f"attempt {mark.n} of job {job!r} ended meanwhile: {mark.state}"
        else:
            what = f"attempt {mark.n} of job {job!r} was started meanwhile on {mark.host}"
        super().__init__(what, where=where, hint=hint)
        self.mark = mark


def settled_state(view: LogView, by: By) -> State | None:
    """Return the state of a job that this start must not claim (rule 5); None: the start may claim it."""
    if view.complete or (by == "auto" and view.end):
        return view.state
    return "cancelled" if by == "auto" and isinstance(view.mark, Cancel) else None


def overtaking(view: LogView, asked: RunRequest) -> Record | None:
    """Return the record that makes a request void (rule 5); None: the request is valid.

    A request is valid while no cancel, end or claim follows the records that its maker had read. After a claim has
    carried it out, it is valid while the last claim belongs to it.
    """
    behind = [mark for mark in view.marks if mark.k > asked.k]
    if any(_carries_out(mark, asked) for mark in behind):
        return None if view.claim and _carries_out(view.claim, asked) else view.claim
    return behind[0] if behind else None


def _carries_out(mark: Record, asked: RunRequest) -> bool:
    return isinstance(mark, Claim) and mark.asked is not None and mark.asked.nonce == asked.nonce


def check_start(view: LogView, by: By, asked: RunRequest | None, *, job: str, where: str) -> By:
    """Decide whether a runner may claim (rule 5); return the claim's ``by``, or raise NothingToRun or Overtaken."""
    # Only the first claim of a request counts as a person's. A restarted runner finds that claim, and starts by auto.
    if asked and any(_carries_out(mark, asked) for mark in view.marks):
        by = "auto"
    if not view.complete and asked and (mark := overtaking(view, asked)):
        raise Overtaken(job, mark, where=where)
    if (state := settled_state(view, by)) is not None:
        raise NothingToRun(state, view, where=where)
    return by
