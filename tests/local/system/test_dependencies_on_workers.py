"""A model that needs libraries that the workers lack, on a Dask cluster of real processes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_processes import DaskProcesses, dask_in
from study_lab import Runner, StudyLab

from wheels import wheel

HOST = socket.gethostname()
MODEL = """
import time
import pathspec, tiny

def run(params, seed):
    time.sleep(params.get("sleep", 0.0))
    return {"tiny": tiny.VALUE, "pathspec": getattr(pathspec, "VERSION", "the worker's own")}
"""


@pytest.fixture
def lab(lab: StudyLab, monkeypatch: pytest.MonkeyPatch) -> StudyLab:
    """Ignore the pip configuration of this machine; the bundle contains the wheels."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    wheel(lab.project / "wheels", "tiny", "1.0", tiny="VALUE = 'installed'\n")
    wheel(lab.project / "wheels", "pathspec", "99.0", pathspec="VERSION = 'ninety-nine'\n")
    (lab.project / "needy.py").write_text(MODEL)
    lab.write("needy:run", [{"i": i, "sleep": 0.3} for i in range(8)])
    return lab


@pytest.fixture
def dask(lab: StudyLab, tmp_path: Path) -> Iterator[DaskProcesses]:
    """A cluster without workers; the workers that a test adds share a cache, as on one machine."""
    with dask_in(tmp_path / "dask", n_workers=0, XDG_CACHE_HOME=str(tmp_path / "pod")) as processes:
        lab.more_env = {"MODELOPS_SCHEDULER": processes.address}
        yield processes


def ask_for(lab: StudyLab, *lines: str) -> None:
    (lab.project / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))


def values(lab: StudyLab, column: str) -> set[str]:
    return set(lab.job().outputs("output").to_arrow()[column].to_pylist())


def error_of(runner: Runner) -> list[str]:
    lines = runner.said.splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.startswith("error:")) :]


def test_two_workers_of_a_machine_install_missing_libraries_once(lab: StudyLab, dask: DaskProcesses) -> None:
    for _ in range(2):
        dask.add_worker()
    dask.await_workers()
    ask_for(lab, "--no-index", "--find-links wheels", "tiny", "pathspec>=99")
    lab.run(CHECKPOINT_SECONDS=0, TASK_SECONDS=0.1)
    assert (values(lab, "tiny"), values(lab, "pathspec")) == ({"installed"}, {"ninety-nine"})
    log = lab.job().logs()
    what = f"for requirements.txt on {HOST}: pathspec 99.0, tiny 1.0"
    assert len(re.findall(rf"job: made an environment of 2 packages in \d+\.\d s {what}", log)) == 2, log  # runner, pod
    assert len(re.findall(rf"job: (waited .*)?found the environment of 2 packages {what}", log, re.IGNORECASE)) == 1
    assert len(list(dask.folder.parent.glob("pod/mops/environments/*/"))) == 1


def test_a_worker_that_cannot_install_ends_the_job(lab: StudyLab, dask: DaskProcesses) -> None:
    """The runner can install, because it knows the location of the packages."""
    ask_for(lab, "tiny")
    lab.more_env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(lab.project / "wheels")}
    dask.env["PIP_NO_INDEX"] = "1"
    dask.add_worker()
    runner = lab.run(exit_code=2)
    *said, where, hint = error_of(runner)
    assert said == [
        "error: the model's dependencies cannot be installed: pip ended with exit code 1",
        "  ERROR: Could not find a version that satisfies the requirement tiny (from versions: none)",
        "  ERROR: No matching distribution found for tiny",
    ]
    pip = "-P -m pip install --no-input --no-user --disable-pip-version-check --progress-bar off -r requirements.txt"
    assert re.fullmatch(rf"  at: {HOST}: /.*/pod/mops/environments/[0-9a-f]{{32}}/bin/python {pip}", where)
    assert hint == (
        "hint: correct requirements.txt or the workers' PIP_INDEX_URL, or set MODELOPS_JOB_INSTALL=never to use the "
        "workers' packages"
    )
    assert lab.job().status().state == "failed"
    assert "No matching distribution found for tiny" in lab.job().logs()


def test_a_failed_install_is_reported_before_the_job_is_created(lab: StudyLab, dask: DaskProcesses) -> None:
    ask_for(lab, "--no-index", "nosuch-package")
    runner = lab.submit()
    assert runner.wait() == 2, runner.said
    assert "No matching distribution found for nosuch-package" in runner.said
    assert not lab.exists()


def test_an_embedded_worker_installs_on_request(lab: StudyLab) -> None:
    ask_for(lab, "--no-index", "--find-links wheels", "tiny")
    refused = lab.submit()
    assert refused.wait() == 2, refused.said
    lab.run(INSTALL="always", SLOTS=2)
    assert (values(lab, "tiny"), values(lab, "pathspec")) == ({"installed"}, {"the worker's own"})
    assert f"for requirements.txt on {HOST}: tiny 1.0" in lab.job().logs()
