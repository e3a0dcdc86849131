"""A runner that another process started imports no model: the workers do, and their errors end the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_processes import DaskProcesses, dask_in
from study_lab import Runner, StudyLab, betas, wait_for

WARM_CHILDREN = True
MODEL = """
import os
from pathlib import Path

who = os.environ["MOPS_TEST_WHO"]
with Path({imports!r}).open("a") as file:
    file.write(who + "\\n")
if who == "a worker":
    {on_workers}

def run(params, seed):
    return {{"y": [params["beta"]]}}
"""


@pytest.fixture
def dask(lab: StudyLab, tmp_path: Path) -> Iterator[DaskProcesses]:
    lab.more_env = {"MOPS_TEST_WHO": "the runner or the command"}
    with dask_in(tmp_path / "dask", MOPS_TEST_WHO="a worker") as processes:
        lab.more_env |= {"MODELOPS_SCHEDULER": processes.address}
        yield processes


def submitted(lab: StudyLab, on_workers: str) -> Runner:
    """Submit a study for a runner in another process, which runs until its end."""
    (lab.project / "fickle.py").write_text(MODEL.format(imports=str(lab.folder / "imports"), on_workers=on_workers))
    lab.write("fickle:run", betas(4))
    runner = lab.start("submit", str(lab.project / "study.json"), "--name", "job", "--detach")
    assert runner.wait() == 0, runner.said
    wait_for(lambda: not runner.alive())
    return runner


def error_of(lab: StudyLab) -> str:
    shown = lab.start("status", "job")
    assert shown.wait() == 0, shown.said
    return (lab.folder / f"stdout-{len(lab.runners)}.txt").read_text() + shown.said


def test_a_runner_in_another_process_does_not_import_the_model(lab: StudyLab, dask: DaskProcesses) -> None:
    """Regression: it did, in a child process that had the runner's credentials in its environment.

    The workers import it, and say once that the import makes a generator.
    """
    submitted(lab, "import numpy; RNG = numpy.random.default_rng()")
    assert lab.job().status().state == "succeeded"
    imports = Counter((lab.folder / "imports").read_text().splitlines())
    assert imports["the runner or the command"] == 1, "only the submit checks the model on this machine"
    assert imports["a worker"] >= 1
    said = "job: importing the model makes a random generator without a seed (fickle.RNG); a run that draws from it"
    assert lab.job().logs().count(said) == 1


def test_a_model_that_workers_cannot_import_ends_the_job(lab: StudyLab, dask: DaskProcesses) -> None:
    submitted(lab, "raise OSError('the licence server is down')")
    assert lab.job().status().state == "failed"
    assert "the model cannot be loaded: OSError: the licence server is down" in error_of(lab)
    assert (
        "attempt 1 ends: ModelError: the model cannot be loaded: OSError: the licence server is down"
        in lab.job().logs()
    )
