"""Which parts of a job count: those of its commits, and the larger ones that a compaction has put in their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from mops.errors import CorruptRecord
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import COMPACTIONS, Commit, Compaction, Part
from mops.storage.joblog.view import LogView
from mops.storage.json_records import RESTORE_HINT
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges


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
