"""The table of reused simulations, as a runner reads it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mops.attempt import reuse_plan
from mops.attempt.reuse_plan import PLAN, ReusePlan, encode_plan
from mops.jobs.reuse import match
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.study.study_file import parse_study

PATHS = JobPaths("job", "0123456789abcdef")


@dataclass
class Source:
    """A complete job."""

    groups: Any
    name: str = "source"

    @property
    def record(self) -> Any:
        return SimpleNamespace(job=self.name, id="")

    @property
    def view(self) -> Any:
        return SimpleNamespace(k=1, end=SimpleNamespace(nonce="nonce"))

    @property
    def stored(self) -> Any:
        return np.ones(len(self.groups), np.bool_)

    def has(self, _: int, replicates: Any) -> Any:
        return np.ones(len(replicates), np.bool_)


def groups(numbers: range) -> Any:
    sets = [{"x": number} for number in numbers]
    return parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups


def opened(table: Any) -> ReusePlan:
    files = Files.open("memory://reuse-plan")
    path = PATHS.reused
    files.remove([path])
    files.put_new(path, table.content)
    return ReusePlan(files, path, ["source"])


@pytest.mark.parametrize("first", [0, 65_000])
def test_a_large_job_takes_little_from_a_small_one(first: int) -> None:
    """More groups than submit matches at once: none of some batches is stored."""
    found = match(groups(range(66_000)).pieces(), [Source(groups(range(first, first + 1000)))], Spool)
    plan = opened(found.table)
    stored = [group for group in range(0, 66_000, 250) if plan.n_stored(group, group + 1)]
    assert stored == list(range(first, first + 1000, 250))
    assert plan.replicates(first) == [0]
    rows = plan.at(*plan.positions(first + 999, [0]).tolist(), 1000)
    assert (rows.groups.tolist(), rows.source_groups.tolist()) == ([first + 999], [999])


def test_a_group_in_several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse_plan, "_ROWS_AT_ONCE", 4)
    places = [(0, 1), *((2, replicate) for replicate in range(0, 20, 2)), (3, 0), (5, 0)]
    columns = [[group for group, _ in places], [replicate for _, replicate in places]]
    sources = ["source" if replicate != 4 else "gone" for _, replicate in places]
    arrays = [pa.array(column, pa.int32()) for column in (*columns, *columns)]
    table = pa.table([*arrays[:2], pa.array(sources).dictionary_encode(), *arrays[2:]], schema=PLAN)
    encoded = encode_plan([PLAN.empty_table(), table.slice(0, 5), PLAN.empty_table(), table.slice(5)], Spool())
    plan = opened(encoded)
    assert plan.replicates(2) == [0, 2, 6, 8, 10, 12, 14, 16, 18]
    assert [plan.n_stored(group, group + 1) for group in range(6)] == [1, 0, 9, 1, 0, 1]
    assert [plan.n_stored(first, 6) for first in range(6)] == [12, 11, 11, 2, 1, 1]
    assert plan.positions(2, [2, 12, 18]).tolist() == [2, 7, 10]
    for first in range(len(places)):
        for stop in range(first, len(places) + 3):
            rows = plan.at(first, stop)
            assert list(zip(rows.groups.tolist(), rows.replicates.tolist(), strict=True)) == places[first:stop]
