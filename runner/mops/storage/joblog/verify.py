"""Checks that a job's log and its parts fit together (``mops jobs verify``)."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

from mops.errors import CorruptRecord
from mops.storage import advisory
from mops.storage.files import AT_ONCE, Files
from mops.storage.joblog.belonging import foreign_records
from mops.storage.joblog.current_parts import COMPACTION_RECORDS, Compact, CompactionRecord, current_parts
from mops.storage.joblog.records import LOG_RECORDS, Claim, Commit, End, Part, R, Record, decode_numbered
from mops.storage.joblog.snapshot import SNAPSHOTS, Snapshot
from mops.storage.joblog.starting import overtaking, settled_state
from mops.storage.joblog.verify_compactions import compaction_problems
from mops.storage.joblog.view import LogView, union
from mops.storage.json_records import JsonCodec
from mops.storage.paths import JobPaths, record_path
from mops.study.ranges import Ranges
from mops.verdicts import Counts

_NOTHING = Ranges()

_PARTS_AT_ONCE = 4  # verify holds this many parts in memory, each of at most about 64 MiB


def verify(files: Files, paths: JobPaths, total_groups: int, taken_over: Ranges = _NOTHING) -> list[str]:
    """Check a job's log and parts (rule 14); reads every part.

    Parameters
    ----------
    taken_over
        The groups that a derived job takes over from its parent. The job's own log holds all others.

    Returns
    -------
    list[str]
        One sentence for each problem.

    Raises
    ------
    NewerFormat
        A newer mops wrote the log.
    StorageError
        The storage refuses, or is out of reach.
    """
    records, problems = _readable(files, paths.log, LOG_RECORDS)
    problems += order_problems(records, paths)
    problems += _snapshot_problems(files, paths, records)
    problems += coverage_problems(records, total_groups, taken_over)
    commits = [record for record in records if isinstance(record, Commit)]
    complete = any(isinstance(record, End) and record.complete for record in records)
    while True:
        compactions, bad = _compactions(files, paths, complete)
        bad += compaction_problems(commits, compactions)
        # Without records that do not fit, because it is unknown which parts count.
        compacts = [] if bad else [record for record in compactions if isinstance(record, Compact)]
        bad += _part_problems(files, [one.part for one in current_parts(commits, compacts)])
        if bad and not complete and len(_readable(files, paths.log, LOG_RECORDS)[0]) > len(records):
            return verify(files, paths, total_groups, taken_over)  # the job has ended meanwhile, and was compacted
        if not bad or len(_compactions(files, paths, complete)[0]) == len(compactions):
            return problems + bad


def _compactions(files: Files, paths: JobPaths, complete: bool) -> tuple[list[CompactionRecord], list[str]]:
    """Return the records of the job's compactions, and the problem with the first that cannot be read."""
    return _readable(files, paths.compactions, COMPACTION_RECORDS) if complete else ([], [])


def _readable(files: Files, folder: str, codec: JsonCodec[R]) -> tuple[list[R], list[str]]:
    """Return the records up to the first that cannot be read, and the problem with that one."""
    records: list[R] = []
    there = [entry.path for entry in files.list(folder)]
    for start in range(0, len(there), AT_ONCE):
        some = there[start : start + AT_ONCE]
        for k, (path, data) in enumerate(zip(some, files.get_many(some), strict=True), start=start + 1):
            if path != record_path(folder, k):
                return records, [f"{record_path(folder, k)}: missing, but {path} exists"]
            if data is None:
                raise FileNotFoundError(path)  # removed since it was listed
            try:
                records.append(decode_numbered(codec, data, k, path))
            except CorruptRecord as bad:
                return records, [f"{path}: {bad.what}"]
    return records, []


def _snapshot_problems(files: Files, paths: JobPaths, records: Sequence[Record]) -> list[str]:
    """Return a sentence if the snapshot is of this log and says something else (rule 15)."""
    snapshot = advisory.read(files, paths.snapshot, SNAPSHOTS.decode)
    last = records[snapshot.k - 1] if snapshot is not None and 0 < snapshot.k <= len(records) else None
    if snapshot is None or last is None or last.nonce != snapshot.nonce:
        return []
    if Snapshot.of(LogView().extended(records[: last.k]), last) == snapshot:
        return []
    return [f"{paths.snapshot}: it differs from records 1 to {last.k}; remove the file"]


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
        f"record {commit.k}: commits groups {start} to {stop - 1}, which belong to the parent"
        for commit in commits
        for start, stop in (commit.ranges & taken_over).intervals
    ]
    return problems + _end_problems(records, commits, total_groups - len(taken_over))


def _end_problems(records: Iterable[Record], commits: Sequence[Commit], total_groups: int) -> list[str]:
    problems = []
    covered = len(union(commit.ranges for commit in commits))
    counted = sum((commit.counts for commit in commits), Counts())
    for end in (record for record in records if isinstance(record, End) and record.complete):
        if covered != total_groups:
            problems.append(f"record {end.k}: the job is {end.state} with {covered} of {total_groups} groups")
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
