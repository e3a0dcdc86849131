"""Another program removes the cache or the working folders while a job runs, and no simulation fails because of it."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import mops
from soak import SOAKING
from waiting import until

from .command_lab import CommandLab, Ran

# One simulation or the import waits, so that the files vanish while it runs.
MODEL = """
import os, time
from pathlib import Path
MARKS = Path(os.environ["MARKS"])

def wait():
    (MARKS / "runs").touch()
    while not (MARKS / "go").exists():
        time.sleep(0.01)

if "WRITES" in os.environ:
    Path("by_import.txt").write_text("12345")
if "IMPORT_WAITS" in os.environ:
    wait()

def run(params, seed):
    if params["x"] == 3:
        wait()
    import later
    n = later.N + len(Path("data/rates.csv").read_text())
    return {"n": n + (len(Path("by_import.txt").read_text()) if "WRITES" in os.environ else 0)}

def score(params, replicates):
    return len(Path("data/rates.csv").read_text())
"""


@pytest.fixture
def removing(lab: CommandLab) -> CommandLab:
    """A project whose job keeps its cache and its working folders in folders of its own."""
    lab.write("model.py", MODEL)
    lab.write("later.py", "N = 1\n")
    lab.write("data/rates.csv", "0.5\n")
    lab.write_study(parameter_sets=[{"x": x} for x in range(6)], targets=["model:score"])
    for name, variable in {"cache": "XDG_CACHE_HOME", "tmp": "TMPDIR", "marks": "MARKS"}.items():
        (lab.root / name).mkdir()
        lab.environment[variable] = str(lab.root / name)
    return lab


def submitted(lab: CommandLab, remove: Callable[[], object], *arguments: str, **variables: str) -> Ran:
    """Run a job, and remove something while a simulation runs that reads its files later."""
    marks = lab.root / "marks"
    few = {"MODELOPS_JOB_SLOTS": "2", "MODELOPS_JOB_RETRIES": "0"}  # the simulation that runs again has one try
    options = ("--name", "job", "--env", f"MARKS={marks}", *arguments)
    with lab.start("jobs", "submit", lab.study, *options, **(few | variables)) as process:
        try:
            until((marks / "runs").exists)
            remove()
            (marks / "go").touch()
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Ran(process.returncode, out, err)


def bundle(lab: CommandLab) -> Path:
    (found,) = (lab.root / "cache" / "mops" / "bundles").glob("[0-9a-f]*")
    return found


def rm(path: Path) -> None:
    for folder in (path, *path.rglob("*")):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)  # a child process may make its folder again meanwhile


def rm_file(path: Path) -> None:
    path.parent.chmod(stat.S_IRWXU)
    path.unlink()


REMOVED: dict[str, Callable[[CommandLab], None]] = {
    "cache": lambda lab: rm(lab.root / "cache"),
    "file of the bundle": lambda lab: rm_file(bundle(lab) / "data" / "rates.csv"),
    "working folders": lambda lab: [rm(path) for path in (lab.root / "tmp").glob("mops-work-*")],  # type: ignore[dict-item]
    "temporary folder": lambda lab: rm(lab.root / "tmp"),
}


def complete(lab: CommandLab, n: int) -> None:
    job = mops.open_job("job", storage=str(lab.storage))
    assert len(job.failures()) == 0
    assert job.outputs("output").to_arrow()["n"].to_pylist() == [n] * 12
    assert {loss["loss"] for loss in job.losses().to_arrow().to_pylist()} == {4.0}


STARTS = [("fork", removed) for removed in REMOVED] + [("spawn", removed) for removed in REMOVED]


# Without `make soak`: each kind of folder. The next test spawns processes too.
@pytest.mark.parametrize(("start", "removed"), STARTS if SOAKING else STARTS[:4])
def test_files_that_another_program_removes_are_made_again_and_the_simulations_run_again(
    removing: CommandLab, start: str, removed: str
) -> None:
    """Regression: the simulations that found no files were recorded as errors of the model."""
    ran = submitted(removing, lambda: REMOVED[removed](removing), MODELOPS_JOB_START=start)
    assert ran.code == 0, ran.err
    assert "the files of a simulation were removed while it ran" in " ".join(ran.err.split())
    complete(removing, 5)


def test_files_that_the_import_has_written_come_from_another_import(removing: CommandLab) -> None:
    ran = submitted(removing, lambda: REMOVED["working folders"](removing), "--env", "WRITES=1")
    assert ran.code == 0, ran.err
    complete(removing, 10)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_import_whose_folder_is_removed_meanwhile_runs_again(removing: CommandLab, start: str) -> None:
    """Regression: what the import had written was missing in simulations, which were recorded as failed."""
    options = ("--env", "WRITES=1", "--env", "IMPORT_WAITS=1")
    ran = submitted(removing, lambda: REMOVED["working folders"](removing), *options, MODELOPS_JOB_START=start)
    assert ran.code == 0, ran.err
    assert "were removed while it " in " ".join(ran.err.split())
    complete(removing, 10)


def test_a_bundle_that_cannot_be_unpacked_again_is_no_failure_of_the_model(removing: CommandLab) -> None:
    (removing.root / "kept").mkdir()

    def remove() -> None:
        (zipped,) = removing.storage.rglob("*.zip")
        zipped.rename(removing.root / "kept" / "bundle.zip")
        REMOVED["cache"](removing)

    ran = submitted(removing, remove)
    assert ran.code == 4, ran.err
    assert "a worker cannot read the job's bundle" in ran.err
    assert len(mops.open_job("job", storage=str(removing.storage)).failures()) == 0
