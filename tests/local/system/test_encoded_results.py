"""Large results: child processes encode them, and on a cluster the workers store them. All rows are the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dask_processes import dask_in

import mops
from mops.settings import Settings
from mops.storage.joblog.log import read_whole
from mops.storage.paths import numbers_of
from mops.worker import results

WARM_CHILDREN = True
MODEL = """
import os, signal
import numpy as np, pyarrow as pa
from pathlib import Path

def run(params, seed):
    os.umask(0o777)  # the parts must have the usual mode
    once = params.get("dies_once")
    if once and not Path(once).exists():
        Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    rng, n = np.random.default_rng(seed), 20_000
    number = 2**40 if params["x"] % 7 == 0 else 1  # the types of columns differ from set to set
    table = pa.table({"draw": rng.standard_normal(n), "n": np.full(n, number * params["x"]), "word": ["w"] * n})
    return {"daily": table, "wide": pa.table({"y": rng.standard_normal(n)}), "total": {"sum": [float(params["x"])]}}

def loss(params, replicates):
    return {"sum": sum(replicate["total"]["sum"][0].as_py() for replicate in replicates)}
"""
N_SETS, ROWS = 100, 20_000
OWN_NUMBERS = 1 << 32
"""The numbers of parts that workers store are larger."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the files that child processes of this process encode."""
    found: list[Any] = []
    take: Callable[..., Any] = results.take_file

    def recorded(*arguments: Any) -> Any:
        found.append(take(*arguments))
        return found[-1]

    monkeypatch.setattr("mops.worker.child_process.take_file", recorded)
    return found


def submit(
    folder: Path,
    sets: list[dict[str, Any]] | None = None,
    storage: str = "storage",
    outputs: Any = None,
    **settings: Any,
) -> mops.Job:
    """Run a study of 100 sets, whose rows take 1 MiB each. On a slow machine too, a task has time for many of them."""
    (folder / "mops.toml").touch()
    (folder / "model.py").write_text(MODEL)
    study = {
        "model": "model:run",
        "targets": ["model:loss"],
        "n_replicates": 2,
        "outputs": outputs or ["daily", "wide", "total"],
        "parameter_sets": sets or [{"x": x} for x in range(N_SETS)],
    }
    (folder / "study.json").write_text(json.dumps(study))
    where = storage if "://" in storage else folder / storage
    return mops.submit(
        folder / "study.json", storage=where, settings=Settings(slots=2, task_seconds=60.0, **settings), local=True
    )


def rows(job: mops.Job) -> list[pa.Table]:
    """Return all rows of a job, sorted."""
    order = [("group", "ascending"), ("replicate", "ascending")]
    tables = [job.outputs(output).to_arrow().sort_by(order) for output in ("daily", "wide", "total")]
    return [*tables, job.losses().to_arrow().sort_by([("group", "ascending")])]


def parts_of(job: mops.Job) -> list[str]:
    log = read_whole(job.files, job.record.paths)
    return [part.path for commit in log.commits for part in commit.parts]


def test_encoded_rows_are_those_that_the_runner_encodes(tmp_path: Path, taken: list[Any]) -> None:
    by_runner = submit(tmp_path, persist="runner")
    assert not taken
    by_children = submit(tmp_path, storage="other")
    assert len(taken) >= 4, "two outputs of 16 MiB or more in each of two tasks at least"
    assert rows(by_children) == rows(by_runner)
    for job in (by_children, by_runner):
        assert job.verify() == []
        assert {(job_file(job, path)).stat().st_mode & 0o777 for path in parts_of(job)} == {0o666 & ~usual_mask()}


def job_file(job: mops.Job, path: str) -> Path:
    return Path(job.files.url) / path


def usual_mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_child_that_dies_loses_what_it_has_encoded_and_the_rows_come_all_the_same(
    tmp_path: Path, taken: list[Any]
) -> None:
    sets = [{"x": x} for x in range(N_SETS)]
    sets[70]["dies_once"] = str(tmp_path / "died")
    job = submit(tmp_path, sets)
    assert taken
    assert (tmp_path / "died").exists()
    assert job.status().state == "succeeded"
    assert job.verify() == []
    assert len(job.outputs("daily")) == N_SETS * 2 * ROWS


def test_a_storage_that_is_no_folder_gets_copies_from_memory(tmp_path: Path, taken: list[Any]) -> None:
    job = submit(tmp_path, storage="memory://encoded")
    assert taken
    assert job.verify() == []
    assert len(job.outputs("wide")) == N_SETS * 2 * ROWS


def test_only_the_rows_that_the_study_keeps_decide(tmp_path: Path, taken: list[Any]) -> None:
    """A task with much to drop and little to keep wrote a tiny part for itself."""
    job = submit(tmp_path, outputs=["total"])
    assert not taken
    assert job.output_names() == ["total"]
    assert len(job.outputs("total")) == N_SETS * 2


def test_children_that_are_replaced_in_a_group_lose_nothing(tmp_path: Path, taken: list[Any]) -> None:
    """The first child of a task encodes, the next ones hand over rows, also of a group that the first one began."""
    job = submit(tmp_path, tasks_per_child=71)
    assert taken
    assert job.verify() == []
    assert len(job.outputs("daily")) == N_SETS * 2 * ROWS
    assert job.losses().to_arrow().num_rows == N_SETS


def test_few_rows_go_to_the_runner(tmp_path: Path, taken: list[Any]) -> None:
    submit(tmp_path, [{"x": x} for x in range(8)])
    assert not taken


def test_workers_of_a_cluster_store_parts_that_the_runner_commits(tmp_path: Path) -> None:
    with dask_in(tmp_path / "dask") as dask:
        job = submit(tmp_path, persist="worker", scheduler=dask.address, install="never")
    assert [path for path in parts_of(job) if (numbers_of(path) or (0, 0))[1] >= OWN_NUMBERS], "parts of workers"
    assert job.verify() == []
    assert len(job.outputs("daily")) == N_SETS * 2 * ROWS
    assert job.losses().to_arrow().num_rows == N_SETS
