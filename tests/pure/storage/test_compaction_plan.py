"""Which parts a compaction merges, and which parts count afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.errors import CorruptRecord
from mops.storage.compaction import FEWEST_PARTS, FULL_BYTES, SMALL_BYTES, runs
from mops.storage.joblog.log import CurrentPart, current_parts
from mops.storage.joblog.records import Commit, Compaction, Merge, Part, union
from mops.storage.joblog.verify import compaction_problems
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


def merge_of(run: list[CurrentPart], c: int) -> Merge:
    kind, output = table_of(run[0].part.path)
    part = Part(PATHS.compacted(kind, output, "ab", c), sum(one.part.rows for one in run), 1, "")
    return Merge(removed=tuple(one.part.path for one in run), part=part, ranges=union(one.ranges for one in run))


def compaction_of(*merges: Merge) -> Compaction:
    return Compaction(time=0.0, host="", merges=merges)


sizes = st.one_of(st.integers(1, 1000), st.integers(SMALL_BYTES - 2, SMALL_BYTES + 1), st.integers(1, 2 * FULL_BYTES))


@given(st.lists(st.tuples(sizes, sizes).map(list), max_size=40))
def test_merged_parts_are_small_neighbours_that_fit_into_one(of_parts):
    parts = current_parts(commits_of(of_parts), None)
    seen = set()
    for run in runs(parts):
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
    before = current_parts(commits, None)
    compaction = compaction_of(*(merge_of(list(run), c) for c, run in enumerate(runs(before))))
    after = current_parts(commits, compaction)
    for table in TABLES:
        groups = [
            [g for one in parts if table_of(one.part.path) == table for g in one.ranges] for parts in (before, after)
        ]
        assert groups[0] == groups[1]
    assert sum(one.part.rows for one in after) == sum(one.part.rows for one in before)
    assert compaction_problems(commits, compaction) == []


def test_a_job_is_left_alone_if_no_table_has_as_many_parts_as_asked():
    parts = current_parts(commits_of([[1, 1]] * 5 + [[1]]), None)
    assert {table_of(run[0].part.path) for run in runs(parts, fewest_in_table=6)} == set(TABLES)
    assert runs(parts, fewest_in_table=7) == []


@pytest.mark.parametrize("twice", ["by one merge", "by two merges"])
def test_a_record_that_replaces_parts_that_do_not_count_is_corrupt(twice):
    commits = commits_of([[1, 1]] * 4)
    merge = merge_of(current_parts(commits, None)[:4:2], 1)
    one = commits_of([[1]] * 9)[-1:]
    found, wrong = (commits, [merge, merge]) if twice == "by two merges" else (one, [merge])
    with pytest.raises(CorruptRecord, match="the record of the compaction is damaged: it replaces parts that do not"):
        current_parts(found, compaction_of(*wrong))
    assert "it replaces parts that do not count" in compaction_problems(found, compaction_of(*wrong))[-1]
