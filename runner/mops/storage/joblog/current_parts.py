"""Which parts of a job count: those of its commits, and those that replace them after a compaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from mops.errors import CorruptRecord
from mops.storage.joblog.records import Claim, Commit, Part, Record
from mops.storage.json_records import RESTORE_HINT, JsonCodec, StoredRanges
from mops.study.ranges import Ranges


@dataclass(frozen=True, kw_only=True)
class Compact(Record):
    """Replaces parts of a table by one part with the same rows.

    Parameters
    ----------
    removed
        The paths of the parts that no longer count, in the order of the table.
    ranges
        The groups of the commits that wrote them.
    """

    kind: Literal["compact"] = "compact"
    removed: tuple[str, ...]
    part: Part
    ranges: StoredRanges


CompactionRecord: TypeAlias = Claim | Compact

COMPACTION_RECORDS: JsonCodec[CompactionRecord] = JsonCodec(Annotated[Claim | Compact, Field(discriminator="kind")])


@dataclass(frozen=True)
class CurrentPart:
    """A part that counts, and the groups of the commits that wrote its rows."""

    part: Part
    ranges: Ranges


def current_parts(commits: Iterable[Commit], compacts: Iterable[Compact]) -> list[CurrentPart]:
    """Return the parts that count, in the order of the commits.

    Raises
    ------
    CorruptRecord
        A record removes a part that does not count.
    """
    found = [CurrentPart(part, commit.ranges) for commit in commits for part in commit.parts]
    current, successors = {one.part.path for one in found}, dict[str, CurrentPart | None]()
    for compact in compacts:
        if not compact.removed or not current.issuperset(compact.removed):
            raise CorruptRecord(
                f"record {compact.k} of the compaction log is damaged: it removes parts that do not count",
                where=compact.part.path,
                hint=RESTORE_HINT,
            )
        current.difference_update(compact.removed)
        current.add(compact.part.path)
        successors |= dict.fromkeys(compact.removed)
        successors[compact.removed[0]] = CurrentPart(compact.part, compact.ranges)
    latest = (_latest(one, successors) for one in found)
    return [one for one in latest if one is not None]


def _latest(part: CurrentPart, successors: dict[str, CurrentPart | None]) -> CurrentPart | None:
    """Return the part in the place of this one; None: its rows are in a part in an earlier place."""
    now: CurrentPart | None = part
    while now is not None and now.part.path in successors:
        now = successors[now.part.path]
    return now
