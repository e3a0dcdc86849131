"""The meaning of the records of a job's log: which groups are committed, which attempt may write, the job's state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mops.storage.joblog.records import Cancel, Claim, Commit, End, Record, State
from mops.storage.paths import table_of
from mops.study.column_families import Families, join_families
from mops.study.ranges import Ranges
from mops.verdicts import Counts

TableKey: TypeAlias = tuple[str, str | None]
"""A table of a job by kind and output: ``("outputs", "daily")``, ``("losses", None)``."""


@dataclass(frozen=True)
class Stored:
    """How many parts one table has, and how large they are."""

    parts: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.parts + other.parts, self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True, eq=False)
class LogView:
    """The meaning of records 1 to ``k`` of a log. A later view only adds to an earlier one.

    A runner holds a view while its job runs. The view has sums, and neither commits nor names of parts, so it is as
    large after a million commits as after ten. Readers of rows use :func:`mops.storage.joblog.whole.read_whole`.

    Parameters
    ----------
    k
        The number of records.
    attempt
        The number of claims.
    committed
        The groups of all commits.
    counts, stored
        Sums over all commits: simulations and targets; parts, by table.
    marks
        The claims, cancels and ends.
    cancelled
        Whether a cancel follows the last claim.
    families
        The families that the commits fix for the columns, beyond ``schema.json``.
    """

    k: int = 0
    attempt: int = 0
    committed: Ranges = field(default_factory=Ranges)
    counts: Counts = field(default_factory=Counts)
    stored: Mapping[TableKey, Stored] = field(default_factory=dict)
    marks: tuple[Record, ...] = ()
    cancelled: bool = False
    families: Families = field(default_factory=dict)

    def extended(self, records: Sequence[Record]) -> LogView:
        """Return the view after these further records.

        Each call makes one union of ranges, the only cost that grows with the log. So add many records at once.
        """
        commits = [record for record in records if isinstance(record, Commit)]
        marks = [record for record in records if not isinstance(record, Commit)]
        claims = [record for record in marks if isinstance(record, Claim)]
        since_claim = marks[marks.index(claims[-1]) :] if claims else marks
        stored = defaultdict(Stored, self.stored)
        for commit in commits:
            for part in commit.parts:
                stored[table_of(part.path)] += Stored(1, part.rows, part.bytes)
        return LogView(
            k=self.k + len(records),
            attempt=self.attempt + len(claims),
            committed=union([self.committed, *(commit.ranges for commit in commits)]),
            counts=sum((commit.counts for commit in commits), self.counts),
            stored=dict(stored),
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
