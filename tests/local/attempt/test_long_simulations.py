"""A simulation that runs much longer than others holds nothing but its own slot."""

from __future__ import annotations

from pathlib import Path

import pytest

import mops
from mops.settings import Settings

WAITS = """
import os, time

def run(params, seed):
    began = params["folder"]
    open(f"{began}/{params['x']}.{seed}.{os.urandom(8).hex()}", "w").close()
    until = time.monotonic() + 60
    while waits(began, params["n"]) and len(os.listdir(began)) < params["n"] - params["own"]:
        if time.monotonic() > until:
            raise TimeoutError("the others have not run")
        time.sleep(0.01)
    return {"x": params["x"]}

waiting = False

def waits(began, n):
    global waiting
    if not waiting and len(os.listdir(began)) > n / 2:
        try:
            os.mkdir(f"{began}-waiter")
            waiting = True
        except FileExistsError:
            pass
    return waiting
"""


@pytest.mark.parametrize(("n_sets", "n_replicates", "own"), [(200, 1, 0), (1, 200, 0), (60, 3, 2)])
def test_what_waits_behind_a_long_simulation_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_sets: int, n_replicates: int, own: int
) -> None:
    """Regression: up to 65 other parameter sets waited for one that hung, because they were in its task.

    One simulation waits, from the middle of the job on, until all others have begun, but for those of its ``own`` set.
    """
    for module in ("child_process", "run_task"):
        monkeypatch.setattr(f"mops.worker.{module}.LONG_SECONDS", 1.0)
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(WAITS)
    folder, n = tmp_path / "began", n_sets * n_replicates
    folder.mkdir()
    sets = [{"x": x, "n": n, "own": own, "folder": str(folder)} for x in range(n_sets)]
    study = {"model": "model:run", "parameter_sets": sets, "n_replicates": n_replicates}
    job = mops.submit(study, project=tmp_path, storage=tmp_path / "s", settings=Settings(slots=2), local=True)
    assert job.failures().to_arrow().to_pylist() == []
    assert job.outputs("output").to_arrow().num_rows == n
    assert len(list(folder.iterdir())) == n, "none ran twice"
    assert job.verify() == []
