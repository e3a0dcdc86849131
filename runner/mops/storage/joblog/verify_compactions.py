"""Checks that the records of a job's compactions fit its commits. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from mops.storage.joblog.compactions import CompactionView
from mops.storage.joblog.current_parts import Compact, CompactionRecord, CurrentPart
from mops.storage.joblog.records import Claim, Commit
from mops.storage.joblog.view import union
from mops.storage.paths import compaction_of, table_of


class _Tables:
    """The parts that count, each linked with its neighbours in its table."""

    def __init__(self, commits: Iterable[Commit]):
        self.parts: dict[str, CurrentPart] = {}
        self._next: dict[str, str] = {}
        self._previous: dict[str, str] = {}
        last: dict[tuple[str, str | None], str] = {}
        for part, ranges in ((part, commit.ranges) for commit in commits for part in commit.parts):
            self.parts[part.path] = CurrentPart(part, ranges)
            self._link(last.get(table_of(part.path)), part.path)
            last[table_of(part.path)] = part.path

    def _link(self, one: str | None, other: str | None) -> None:
        if one is not None and other is not None:
            self._next[one], self._previous[other] = other, one

    def are_neighbours(self, paths: Sequence[str]) -> bool:
        """Tell whether the parts follow one another."""
        return all(self._next.get(one) == other for one, other in itertools.pairwise(paths))

    def replace(self, paths: Sequence[str], new: CurrentPart) -> list[CurrentPart]:
        """Replace neighbours by one part; return them."""
        path = new.part.path
        before, behind = self._previous.pop(paths[0], None), self._next.pop(paths[-1], None)
        old = [self.parts.pop(one) for one in paths]
        self.parts[path] = new
        self._link(before, path)
        self._link(path, behind)
        return old


def compaction_problems(commits: Iterable[Commit], records: Iterable[CompactionRecord]) -> list[str]:
    """Return a sentence for each record that does not belong in its place, or replaces parts by other rows."""
    tables, view, problems = _Tables(commits), CompactionView(), list[str]()
    for record in records:
        found = [*_misplaced(view, record), *(_unlike(tables, record) if isinstance(record, Compact) else ())]
        problems += [f"record {record.k} of the compactions: {problem}" for problem in found]
        view = view.extended([record])
    return problems


def _misplaced(view: CompactionView, record: CompactionRecord) -> Iterator[str]:
    claims = isinstance(record, Claim)
    if record.n != view.attempt + claims:
        yield f"it names compaction {record.n} instead of compaction {view.attempt + claims}"
    if isinstance(record, Compact) and (n := compaction_of(record.part.path)) != view.attempt:
        said = "no compaction" if n is None else f"compaction {n}"
        yield f"its new part has the name of {said}, not of compaction {view.attempt}"


def _unlike(tables: _Tables, record: Compact) -> Iterator[str]:
    """Replace the parts; yield how the new part differs from them."""
    gone = [path for path in record.removed if path not in tables.parts]
    if gone or not record.removed:
        yield f"it removes parts that do not count: {', '.join(gone)}" if gone else "it names no part to remove"
        return
    if not tables.are_neighbours(record.removed) or table_of(record.removed[0]) != table_of(record.part.path):
        yield f"it removes parts that do not follow one another in the table of {record.part.path}"
        return
    old = tables.replace(record.removed, CurrentPart(record.part, record.ranges))
    rows = sum(one.part.rows for one in old)
    if record.part.rows != rows:
        yield f"its part has {record.part.rows} rows instead of {rows}"
    if record.ranges != union(one.ranges for one in old):
        yield "its groups are not those of the parts that it removes"
