"""How a job begins: nothing waits for a first success."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mops
from mops.errors import JobFailed
from mops.settings import Settings

TOGETHER = """
import os, time

def run(params, seed):
    open(f"{params['folder']}/{params['x']}", "w").close()
    until = time.monotonic() + 60
    while len(os.listdir(params["folder"])) < 4:
        if time.monotonic() > until:
            raise TimeoutError("the others have not started")
        time.sleep(0.01)
    return {"x": params["x"]}
"""

TWO_FORMS = """
import time

def run(params, seed):
    time.sleep(0.05)
    return {"x": [1]} if params["x"] % 2 else {"x": [1], "y": [2]}
"""

FAILS = """
def run(params, seed):
    raise ValueError(f"no region {params['x']}")
"""


def submit(folder: Path, model: str, sets: list[dict[str, Any]], name: str = "job", **settings: Any) -> mops.Job:
    (folder / "mops.toml").touch()
    (folder / "model.py").write_text(model)
    study = {"model": "model:run", "parameter_sets": sets}
    where = {"project": folder, "storage": folder / "s", "name": name, "local": True}
    return mops.submit(study, settings=Settings(**settings), **where)


@pytest.mark.parametrize("batch_size", [200, "auto"])
def test_the_first_simulations_run_on_all_slots(
    tmp_path: Path, batch_size: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: nothing else ran until the first simulation had succeeded."""
    monkeypatch.setattr("mops.attempt.concurrency.UNMEASURED_SECONDS", 1.0)
    (tmp_path / "started").mkdir()
    sets = [{"x": x, "folder": str(tmp_path / "started")} for x in range(4)]
    job = submit(tmp_path, TOGETHER, sets, slots=4, batch_size=batch_size)
    assert job.status().n_simulations == 4
    assert job.failures().to_arrow().num_rows == 0


def test_of_two_forms_of_results_the_first_one_counts(tmp_path: Path) -> None:
    job = submit(tmp_path, TWO_FORMS, [{"x": x} for x in range(12)], slots=4, checkpoint_seconds=0)
    failed = Counter(row["reason"] for row in job.failures().to_arrow().to_pylist())
    assert failed == {"invalid_output": 6}
    assert job.outputs("output").to_arrow().num_rows == 6
    assert job.verify() == []


def test_a_job_ends_early_if_its_first_simulations_have_all_failed_alike(tmp_path: Path) -> None:
    sets = [{"x": x} for x in range(400)]
    with pytest.raises(JobFailed, match=r"the first \d+ simulations have all failed alike \(error: ValueError: no"):
        submit(tmp_path, FAILS, sets, slots=2, task_seconds=0.01)
    job = mops.open_job("job", tmp_path / "s")
    assert job.status().state == "failed"
    assert 100 <= job.failures().to_arrow().num_rows < 400
    job.resume(settings=Settings(slots=2, max_failures="100%"), local=True)
    assert job.failures().to_arrow().num_rows == 400


def test_a_job_of_which_nothing_is_left_does_not_end_early(tmp_path: Path) -> None:
    job = submit(tmp_path, FAILS, [{"x": x} for x in range(100)], slots=2)
    assert job.status().state == "partial"
