"""Checks that a job's log and its parts fit together (``mops jobs verify``)."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mops.errors import CorruptRecord
from mops.storage.files import AT_ONCE, Files
from mops.storage.joblog.log import CurrentPart, current_parts, foreign_records
from mops.storage.joblog.records import (
    COMPACTIONS,
    Claim,
    Commit,
    Compaction,
    End,
    LogView,
    Merge,
    Part,
    Record,
    decode_record,
    overtaking,
    settled_state,
    union,
)
from mops.storage.paths import JobPaths, table_of
from mops.study.ranges import Ranges
from mops.verdicts import Counts

_NOTHING = Ranges()

_PARTS_AT_ONCE = 4  # verify holds this many parts in memory, each of at most about 64 MiB


def verify(
    files: Files, paths: JobPaths, total_groups: int, taken_over: Ranges = _NOTHING, *, is_first: bool = True
) -> list[str]:
    """Check a job's log and parts (rule 14); return a sentence for each problem. Reads every part.

    The job's own log holds all groups but ``taken_over``. OtherFormat: a mops of another version wrote the log.
    """
    records, problems = _readable(files, paths)
    problems += order_problems(records, paths)
    problems += coverage_problems(records, total_groups, taken_over)
    commits = [record for record in records if isinstance(record, Commit)]
    compaction = None
    if any(isinstance(record, End) and record.complete for record in records):
        try:
            compaction = COMPACTIONS.read(files, paths.compaction)
        except CorruptRecord as bad:
            problems.append(f"{paths.compaction}: {bad.what}")
    found = compaction_problems(commits, compaction)
    # Without a compaction that does not fit, because it is unknown which parts count.
    parts = current_parts(commits, None if found else compaction)
    missing = _part_problems(files, [one.part for one in parts])
    if missing and is_first and compaction is None and files.get_many([paths.compaction])[0] is not None:
        # Perhaps the job has ended, or was compacted, and was cleaned meanwhile.
        return verify(files, paths, total_groups, taken_over, is_first=False)
    return problems + found + missing


def _readable(files: Files, paths: JobPaths) -> tuple[list[Record], list[str]]:
    """Return the records up to the first that cannot be read, and the problem with that one."""
    records: list[Record] = []
    there = [entry.path for entry in files.list(paths.log)]
    for start in range(0, len(there), AT_ONCE):
        some = there[start : start + AT_ONCE]
        for k, (path, data) in enumerate(zip(some, files.get_many(some), strict=True), start=start + 1):
            if path != paths.log_record(k):
                return records, [f"{paths.log_record(k)}: missing, but {path} exists"]
            if data is None:
                raise FileNotFoundError(path)  # removed since it was listed
            try:
                records.append(decode_record(data, k, path))
            except CorruptRecord as bad:
                return records, [f"{path}: {bad.what}"]
    return records, []


def compaction_problems(commits: Iterable[Commit], compaction: Compaction | None) -> list[str]:
    """Return a sentence for each merge that replaces parts by other rows, or parts that do not follow one another."""
    tables, places = defaultdict[tuple[str, str | None], list[CurrentPart]](list), dict[str, int]()
    for commit in commits:
        for part in commit.parts:
            table = tables[table_of(part.path)]
            places[part.path] = len(table)
            table.append(CurrentPart(part, commit.ranges))
    problems, seen = [], set[str]()
    for merge in compaction.merges if compaction is not None else ():
        problem = _misfit(merge, tables[table_of(merge.part.path)], places, seen)
        problems += [f"the compaction, {merge.part.path}: {problem}"] if problem else []
        seen.update(merge.removed)
    return problems


def _misfit(merge: Merge, table: Sequence[CurrentPart], places: Mapping[str, int], seen: set[str]) -> str:
    """Return how a merge does not fit the parts of its table; empty: it does."""
    if not merge.removed:
        return "it replaces no part"
    if gone := [path for path in merge.removed if path not in places or path in seen]:
        return f"it replaces parts that do not count: {', '.join(gone)}"
    first = places[merge.removed[0]]
    old = table[first : first + len(merge.removed)]
    if [one.part.path for one in old] != [*merge.removed]:
        return "it replaces parts that do not follow one another"
    if merge.part.rows != (rows := sum(one.part.rows for one in old)):
        return f"its part has {merge.part.rows} rows instead of {rows}"
    return "" if merge.ranges == union(one.ranges for one in old) else "its groups are not those of its parts"


def order_problems(records: Iterable[Record], paths: JobPaths) -> list[str]:
    """Return a sentence for each record that does not belong in its place (rules 4, 5, 12 and 24)."""
    view, problems = LogView(), []
    for record in records:
        found = [*_misplaced(view, record), *(why for _, why in foreign_records(view.owner, [record], paths))]
        problems += [f"record {record.k}: {problem}" for problem in found]
        view = view.extended([record])
    return problems


def _misplaced(view: LogView, record: Record) -> Iterator[str]:
    claims = isinstance(record, Claim)
    if view.complete:
        yield "it follows a complete end"
    if record.n != view.attempt + claims:
        yield f"it names attempt {record.n} instead of attempt {view.attempt + claims}"
    if isinstance(record, Claim) and settled_state(view, record.by):
        yield f"a claim by {record.by!r} of a job that is {settled_state(view, record.by)}"
    if isinstance(record, Claim) and record.asked and (mark := overtaking(view, record.asked)):
        yield f"a claim for a request that record {mark.k} ({mark.kind}) had made void"
    if isinstance(record, Commit | End) and (not view.attempt or view.end):
        yield f"a {record.kind} while no attempt runs"


def coverage_problems(records: Iterable[Record], total_groups: int, taken_over: Ranges = _NOTHING) -> list[str]:
    """Return a sentence for each group in two commits or none, and for each wrong total (rules 7 and 11)."""
    commits = [record for record in records if isinstance(record, Commit)]
    spans = sorted((*span, commit.k) for commit in commits for span in commit.ranges.intervals)
    problems = [
        f"record {k}: commits groups {start} to {stop - 1}, but the job has only {total_groups} groups"
        for start, stop, k in spans
        if start < 0 or stop > total_groups
    ]
    for (_, before, one), (start, stop, other) in itertools.pairwise(spans):
        if start < before:
            problems.append(f"records {one} and {other}: both commit groups {start} to {min(before, stop) - 1}")
    problems += [
        f"record {commit.k}: commits groups {start} to {stop - 1}, which the job takes over"
        for commit in commits
        for start, stop in (commit.ranges & taken_over).intervals
    ]
    due = total_groups - len(taken_over)
    covered = len(union(commit.ranges for commit in commits))
    counted = sum((commit.counts for commit in commits), Counts())
    for end in (record for record in records if isinstance(record, End) and record.complete):
        if covered != due:
            problems.append(f"record {end.k}: the job is {end.state} with {covered} of {due} groups")
        if end.totals != counted:
            problems.append(f"record {end.k}: its totals are {end.totals}, but the commits add up to {counted}")
    return problems


def _part_problems(files: Files, parts: Sequence[Part]) -> list[str]:
    problems = []
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        some = parts[start : start + _PARTS_AT_ONCE]
        for part, data in zip(some, files.get_many([part.path for part in some]), strict=True):
            if data is None:
                problems.append(f"{part.path}: missing")
            elif len(data) != part.bytes:
                problems.append(f"{part.path}: {len(data)} bytes instead of {part.bytes}")
            elif hashlib.sha256(data).hexdigest() != part.digest:
                problems.append(f"{part.path}: its SHA-256 differs from the committed one")
    return problems
