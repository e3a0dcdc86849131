"""The rows that a runner reads of other jobs: in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mops
from mops.attempt import stored
from mops.attempt.stored import SortedRows
from mops.attempt.timing import RecentTasks, TimeLeft
from mops.storage.compaction import compact

MODEL = """
import numpy as np

def run(params, seed):
    n = np.uint64(2**63 + 1) if params["beta"] > 1 else np.int8(1)
    return {"output": {"n": np.array([n]), "day": [seed % 1000]}}

def score(replicates):
    return sum(one["output"].num_rows for one in replicates)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODELOPS_JOB_CHECKPOINT_SECONDS", "0")  # each group has a separate part
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def submit(name: str, betas: Sequence[float], n_replicates: int, **options: Any) -> mops.Job:
    sets = [{"beta": beta} for beta in betas]
    study = {"model": "model:run", "targets": ["model:score"], "parameter_sets": sets, "n_replicates": n_replicates}
    return mops.submit(study, name=name, storage="results", **options)


def rows(job: mops.Job) -> list[dict[str, Any]]:
    assert job.status().state == "succeeded"
    order = [("group", "ascending"), ("replicate", "ascending")]
    return job.outputs("output").to_arrow().sort_by(order).to_pylist()


def n_reused(job: mops.Job) -> int:
    return sum(source.simulations for source in job.record.reuse)


def test_integers_of_all_sizes_in_a_column() -> None:
    submit("first", [0.5, 1.5], 1)
    second = submit("second", [1.5, 0.5, 0.25], 2, reuse=True)
    assert n_reused(second) == 2
    assert [row["n"] for row in rows(second)] == [2**63 + 1] * 2 + [1] * 4


def test_a_derived_job_says_the_types_of_its_own_rows(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: only the log of its source said that a column holds floats, so a reuse of its rows read nulls."""
    monkeypatch.setenv("MODELOPS_JOB_SLOTS", "1")  # the first set fixes the type
    (project / "model.py").write_text(MODEL.replace("np.uint64(2**63 + 1)", "0.25"))
    first = submit("first", [0.5, 1.5], 1)
    derived = mops.extend(first, sets=[{"beta": 2.5}], name="derived")
    second = submit("second", [2.5], 1, reuse=True)
    assert [source.job for source in second.record.reuse] == [derived.name]
    assert [row["n"] for row in rows(second)] == [0.25]


def test_integers_that_a_derived_job_stores_as_floats_can_be_reused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its log said integers, because only its source had other floats, so a reuse of them read nulls."""
    monkeypatch.setenv("MODELOPS_JOB_SLOTS", "1")
    (project / "model.py").write_text(MODEL.replace("np.uint64(2**63 + 1)", "0.25"))
    first = submit("first", [0.5, 1.5], 1)
    derived = mops.extend(first, sets=[{"beta": beta} for beta in (0.6, 0.7, 0.8, 0.9)], name="derived")
    assert compact(derived.files, derived.record).parts == 2  # of the output and of the losses
    second = submit("second", [0.7], 1, reuse=True)
    assert [source.job for source in second.record.reuse] == [derived.name]
    assert [row["n"] for row in rows(second)] == [1]
    assert sorted(row["n"] for row in rows(derived)) == [0.25, 1, 1, 1, 1, 1]


def test_a_long_group_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner reads no row that it does not need, and few at once."""
    first = submit("first", [0.5, 0.75, 1.5], 40)
    read: list[tuple[int, int]] = []
    load = stored.StoredSimulations._load

    def loaded(self: Any, *chunk: Any) -> dict[str, SortedRows]:
        found = load(self, *chunk)
        read.extend((len(self._planned(*chunk).groups), len(one.groups)) for one in found.values())
        return found

    monkeypatch.setattr(stored, "CHUNK_BYTES", 500)
    monkeypatch.setattr(stored, "TASK_BYTES", 500)
    monkeypatch.setattr(stored.StoredSimulations, "_load", loaded)
    second = submit("second", [1.5, 0.5, 0.1], 15, reuse=True)
    assert n_reused(second) == 30
    assert {(row["group"], row["replicate"]) for row in rows(second)} == {(g, r) for g in range(3) for r in range(15)}
    days = {(row["param_id"], row["seed"]): row["day"] for row in rows(first)}
    reused_rows = [row for row in rows(second) if row["group"] < 2]
    assert [row["day"] for row in reused_rows] == [days[row["param_id"], row["seed"]] for row in reused_rows]
    assert len(read) > 2
    assert all(planned == n < 15 for planned, n in read)
    assert second.verify() == []


@pytest.mark.parametrize("replicates", [2, 40])
def test_the_estimate_of_the_time_left_knows_what_need_not_run(
    replicates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 40 replicates, a group before anything is measured runs as several tasks."""
    ran, left = [], []
    add, look = RecentTasks.add, TimeLeft.look

    def noted_add(self: RecentTasks, seconds: float, n_ran: int, *more: int) -> None:
        ran.append(n_ran)
        add(self, seconds, n_ran, *more)

    def noted_look(self: TimeLeft, now: float, slots: int, n_left: int, *more: Any) -> None:
        left.append(n_left)
        look(self, now, slots, n_left, *more)

    submit("first", [0.5, 1.5, 0.75], replicates // 2)
    monkeypatch.setattr(RecentTasks, "add", noted_add)
    monkeypatch.setattr(TimeLeft, "look", noted_look)
    second = submit("second", [1.5, 0.5, 0.25], replicates, reuse=True)
    n_to_run = 3 * replicates - n_reused(second)
    assert n_to_run == 2 * replicates
    assert sum(ran) == n_to_run
    assert 0 < max(left) <= n_to_run
    assert min(left) == 0
