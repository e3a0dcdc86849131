"""Columns whose types differ between simulations: a job stores them as one dataset or names the failed columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mops
from mops.jobs.job import Job
from mops.settings import Settings
from mops.storage.dataset import dataset_problems
from mops.storage.job_records import Source
from mops.storage.joblog.log import read_whole
from mops.storage.progress_record import Progress
from mops.storage.sources import SourceLog
from mops.study.ranges import Ranges

WARM_CHILDREN = True
MODEL = """
import datetime as dt

import pyarrow as pa

ZURICH = dt.timezone(dt.timedelta(hours=1))
VALUES = {
    "none": [None], "int": [7], "float": [0.5], "text": ["seven"], "true": [True],
    "large": [2**53 + 1], "negative": [-(2**60)], "huge": pa.array([2**63 + 5], pa.uint64()),
    "small unsigned": pa.array([3], pa.uint64()), "int8": pa.array([-3], pa.int8()),
    "day": [dt.date(2024, 2, 29)], "moment": [dt.datetime(2024, 2, 29, 12, 0, 0, 1)],
    "nanos": pa.array([1], pa.timestamp("ns")), "year 3000": [dt.datetime(3000, 1, 1)],
    "utc": [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)], "zurich": [dt.datetime(2024, 1, 1, 1, tzinfo=ZURICH)],
    "seconds": pa.array([5], pa.duration("s")), "microseconds": [dt.timedelta(microseconds=1)],
    "empty list": [[]], "list": [[1, 2]], "list of floats": [[0.5, None]], "list of text": [["a"]],
    "struct": [{"a": 1}], "struct of none": [{"a": None}], "struct of text": [{"a": "b"}], "other struct": [{"b": 1}],
    "no rows": pa.array([], pa.string()),
}


def simulate(params, seed):
    if "value" in params:
        return {"out": pa.table({"x": VALUES[params["value"]]})}
    return {"out": pa.table({name: VALUES[value] for name, value in params.items()})}
"""

Run = Callable[..., Job]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a study with one set per argument, in this order, with one task per set.

    An argument is the name of the value of column ``x``, or a mapping of columns to names of values.
    """

    def run(
        *sets: str | dict[str, str],
        slots: int = 1,
        name: str | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        **settings: Any,
    ) -> Job:
        (tmp_path / "model.py").write_text(MODEL)
        entries = [{"value": one, "i": i} if isinstance(one, str) else one for i, one in enumerate(sets)]
        (tmp_path / "study.json").write_text(json.dumps({"model": "model:simulate", "parameter_sets": entries}))
        fields = {"checkpoint_seconds": 0, "checkpoint_bytes": 1 << 20} | settings
        how = {"settings": Settings(slots=slots, **fields), "name": name, "on_progress": on_progress}
        return mops.submit(tmp_path / "study.json", local=True, **how)

    return run


def values_of(job: Job, column: str = "x") -> dict[int, Any]:
    table = job.outputs("out").to_arrow()
    return dict(zip(table["group"].to_pylist(), table[column].to_pylist(), strict=True))


def refused(job: Job) -> dict[int, str]:
    failures = job.failures().to_arrow()
    assert set(failures["reason"].to_pylist()) <= {"invalid_output"}
    return dict(zip(failures["group"].to_pylist(), failures["message"].to_pylist(), strict=True))


def test_the_first_value_fixes_the_family_of_a_column_and_other_families_fail(run: Run) -> None:
    """Regression: after a null, a job accepted numbers and strings, succeeded, and no reader could open its output."""
    job = run("none", "int", "text", "float", "none", slots=2)
    assert job.status().state == "partial"
    assert values_of(job) in ({0: None, 1: 7.0, 3: 0.5, 4: None}, {0: None, 2: "seven", 4: None})
    said = refused(job)
    assert said.keys() in ({2}, {1, 3})
    assert all("output 'out': column 'x' is" in message for message in said.values())
    assert job.verify() == []


def problems_of(job: Job) -> list[str]:
    paths, every = job.record.paths, Ranges(((0, 1_000),))
    source = SourceLog(Source(job.name, job.record.id, every, every), read_whole(job.files, paths))
    return dataset_problems(job.files, paths, [source])


def test_verify_names_the_part_and_the_groups_that_do_not_fit(run: Run, tmp_path: Path) -> None:
    job = run("int", "float", "none")
    assert problems_of(job) == []
    path = job.paths("out")[1]
    file = tmp_path / "mops-storage" / path
    table = pq.read_table(file)
    for column, words in [
        (pa.array(["text"]), "column 'x' is string with values that do not fit the job's number"),
        (pa.array([2**60]), "column 'x' is int64 with values that do not fit the job's number"),
    ]:
        pq.write_table(table.set_column(4, "x", column), file)
        assert problems_of(job) == [f"{path}: groups 1 to 1: {words}"]
    pq.write_table(table.rename_columns([*table.column_names[:4], "y"]), file)
    assert problems_of(job) == [f"{path}: its columns are y, not x"]


def test_a_derived_job_keeps_the_types_that_its_parent_has_fixed(run: Run) -> None:
    job = run("none", "int", "text", "float")
    assert refused(job).keys() == {2}
    again = mops.retry(job, verdicts=["invalid_output"])
    assert refused(again).keys() == {2}
    assert values_of(again) == {0: None, 1: 7, 3: 0.5}
    assert again.verify() == []


class PulledPlugError(BaseException):
    """The exception that a test raises in a runner."""


def test_a_resumed_job_keeps_the_types_of_committed_values(run: Run, tmp_path: Path) -> None:
    """Regression: only the runner that fixed a family knew it, so the next runner accepted text after a number."""

    def break_off(now: Progress) -> None:
        if now.durable.simulations >= 2:
            raise PulledPlugError

    with pytest.raises(PulledPlugError):
        run("none", "int", *["text"] * 60, name="broken-off", batch_size=1, on_progress=break_off)
    job = mops.open_job("broken-off", str(tmp_path / "mops-storage"))
    assert 2 <= job.status().groups < 62
    assert mops.resume(job, settings=Settings(slots=1, batch_size=1, checkpoint_seconds=0)) in ("partial", job)
    assert values_of(job) == {0: None, 1: 7}
    assert refused(job).keys() == set(range(2, 62))
    assert job.verify() == []


def test_other_readers_read_the_same_values(run: Run, tmp_path: Path) -> None:
    job = run("int", "float", "int8", "none")
    paths = [str(tmp_path / "mops-storage" / path) for path in job.paths("out")]
    found = duckdb.sql(f'select x from read_parquet({paths}, union_by_name=true) order by "group"').fetchall()
    assert [x for (x,) in found] == [7.0, 0.5, -3.0, None]
