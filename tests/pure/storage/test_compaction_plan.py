"""Which parts a compaction merges, and which parts count afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import CorruptRecord
from mops.storage.compaction.plan import FEWEST_PARTS, FULL_BYTES, SMALL_BYTES, merges
from mops.storage.joblog.compactions import CompactionView
from mops.storage.joblog.current_parts import Compact, CurrentPart, current_parts
from mops.storage.joblog.records import Commit, Part
from mops.storage.joblog.verify_compactions import compaction_problems
from mops.storage.joblog.view import union
from mops.storage.paths import JobPaths, table_of
from mops.study.ranges import Ranges
from mops.verdicts import Counts

PATHS = JobPaths("job", "0123456789abcdef")
HEAD = {"nonce": "", "time": 0.0, "host": ""}
TABLES = (("losses", None), ("outputs", "daily"))


def commits_of(sizes: list[list[int]]) -> list[Commit]:
    """Return commits of one group each, whose parts of each table have these sizes."""
    return [
        Commit(
            k=k,
            n=1,
            claim="",
            ranges=Ranges.of([k]),
            parts=tuple(Part(PATHS.part(*TABLES[t], 1, 10 * k + t), k, size, "") for t, size in enumerate(of_tables)),
            counts=Counts(),
            **HEAD,
        )
        for k, of_tables in enumerate(sizes)
    ]


def compact_of(run: list[CurrentPart], k: int, c: int) -> Compact:
    kind, output = table_of(run[0].part.path)
    part = Part(PATHS.compacted(kind, output, 1, c), sum(one.part.rows for one in run), 1, "")
    removed = tuple(one.part.path for one in run)
    return Compact(k=k, n=1, removed=removed, part=part, ranges=union(one.ranges for one in run), **HEAD)


sizes = st.one_of(st.integers(1, 1000), st.integers(SMALL_BYTES - 2, SMALL_BYTES + 1), st.integers(1, 2 * FULL_BYTES))


@given(st.lists(st.tuples(sizes, sizes).map(list), max_size=40))
def test_merged_parts_are_small_neighbours_that_fit_into_one(of_parts):
    parts = current_parts(commits_of(of_parts), ())
    seen = set()
    for run in merges(parts):
        table = [one for one in parts if table_of(one.part.path) == table_of(run[0].part.path)]
        start = table.index(run[0])
        assert table[start : start + len(run)] == list(run)
        assert len(run) >= FEWEST_PARTS
        assert max(one.part.bytes for one in run) < SMALL_BYTES
        assert sum(one.part.bytes for one in run) <= FULL_BYTES
        assert seen.isdisjoint(one.part.path for one in run)
        seen.update(one.part.path for one in run)


@given(st.lists(st.tuples(sizes, sizes).map(list), max_size=40))
def test_after_a_compaction_the_same_rows_count_in_the_same_order(of_parts):
    commits = commits_of(of_parts)
    before = current_parts(commits, ())
    compacts = [compact_of(list(run), k, k) for k, run in enumerate(merges(before), start=2)]
    after = current_parts(commits, compacts)
    for table in TABLES:
        groups = [
            [g for one in parts if table_of(one.part.path) == table for g in one.ranges] for parts in (before, after)
        ]
        assert groups[0] == groups[1]
    assert sum(one.part.rows for one in after) == sum(one.part.rows for one in before)
    claim = CompactionView(k=1, attempt=1)
    assert claim.extended(compacts).compacts == tuple(compacts)


def test_a_part_that_was_merged_can_be_merged_again():
    commits = commits_of([[1, 1]] * 6)
    losses = [one for one in current_parts(commits, ()) if table_of(one.part.path) == TABLES[0]]
    first, second = compact_of(losses[2:4], 2, 1), compact_of(losses[4:], 3, 2)
    merged = [CurrentPart(first.part, first.ranges), CurrentPart(second.part, second.ranges)]
    last = compact_of([losses[1], *merged], 4, 3)
    found = [one for one in current_parts(commits, [first, second, last]) if table_of(one.part.path) == TABLES[0]]
    assert [list(one.ranges) for one in found] == [[0], [1, 2, 3, 4, 5]]


def test_tables_with_fewer_parts_than_asked_are_left_alone():
    parts = current_parts(commits_of([[1, 1]] * 5 + [[1]]), ())
    assert {table_of(run[0].part.path) for run in merges(parts, fewest_in_table=6)} == {TABLES[0]}


def test_a_merge_has_at_most_as_many_parts_as_asked():
    parts = current_parts(commits_of([[1]] * 20), ())
    assert [len(run) for run in merges(parts, most_in_merge=8)] == [8, 8, 4]


def test_a_record_that_removes_parts_that_do_not_count_is_corrupt():
    commits = commits_of([[1, 1]] * 4)
    compact = compact_of(current_parts(commits, ())[::2], 2, 1)
    with pytest.raises(CorruptRecord, match="record 2 of the compaction log is damaged: it removes parts"):
        current_parts(commits, [compact, compact])
    assert compaction_problems(commits, [compact]) == [
        "record 2 of the compactions: it names compaction 1 instead of compaction 0",
        "record 2 of the compactions: its new part has the name of compaction 1, not of compaction 0",
    ]
