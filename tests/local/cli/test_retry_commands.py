"""``mops jobs retry``: its output, the results of the derived job, and the full text of its errors."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pytest

import mops
from job_folders import folder_of
from mops.storage.joblog.log import JobLog
from mops.study.ranges import Ranges

from .command_lab import CommandLab, make_lab

MODEL = """
import os
from pathlib import Path

def run(params, seed):
    if params["x"] < 0 and Path(params["ward"]).exists():
        if params["x"] == -2:
            os._exit(7)
        raise ValueError("x is negative")
    return {"daily": {"day": [0, 1], "y": [params["x"], seed % 7]}}

def score(params, replicates):
    return params["x"] * len(replicates)
"""


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> CommandLab:
    """A job ``partly`` of five sets in one commit. One set failed, one crashed; now both would succeed."""
    lab = make_lab(tmp_path_factory.mktemp("partly"), cache)
    ward = lab.root / "ward"
    ward.touch()
    lab.write("model.py", MODEL)
    sets = [{"x": x, "ward": str(ward)} for x in (1, -1, 2, -2, 3)]
    lab.write_study(parameter_sets=sets, targets=["model:score"])
    assert lab.submit("--name", "partly", MODELOPS_JOB_RETRIES="0").code == 3
    ward.unlink()
    return lab


@pytest.fixture(scope="module")
def mended(partly: CommandLab) -> CommandLab:
    """The job ``partly``, and a job ``mended`` that is derived from it and has no failures."""
    assert partly.run("jobs", "retry", "partly", "--verdict", "all", "--name", "mended").code == 0
    return partly


@pytest.fixture
def copied(mended: CommandLab, tmp_path: Path) -> CommandLab:
    """A copy of the storage of both jobs that a test may damage."""
    shutil.copytree(mended.storage, tmp_path / "storage")
    return CommandLab(tmp_path, mended.environment | {"MODELOPS_STORAGE": str(tmp_path / "storage")})


def test_retry_prints_what_runs_again_and_a_second_retry_completes_the_study(partly: CommandLab) -> None:
    ran = partly.run("jobs", "retry", "partly", "--verdict", "error", MODELOPS_JOB_BATCH_SIZE="9")
    assert ran.code == 3
    assert re.fullmatch(r"partly-retry-\d{6}-[0-9a-f]{4}", ran.name)
    for said in (
        f"job {ran.name}: runs 2 simulations and scores 1 of 5 parameter sets; takes over 8 simulations from partly\n",
        "setting MODELOPS_JOB_BATCH_SIZE: unset before, 9 now\n",
        "limits: RETRIES 0 (kept)\n",
        "partial in",
        "8 good, 2 failed, of 10",
        "4 scored, 0 failed, 1 not run because a simulation failed",
        "2 x crashed: ended with exit code 7",
        f"mops jobs results {ran.name}",
    ):
        assert said in ran.err
    assert "ValueError" not in ran.err
    assert re.search(r"limits +RETRIES 0\n", partly.run("jobs", "status", ran.name).out)
    job = mops.open_job(ran.name, str(partly.storage))
    assert job.record.due == JobLog(job.files, job.record.paths).read().committed == Ranges(((1, 2),))

    again = partly.run("jobs", "retry", ran.name, "--verdict", "oom,crashed", "--json")
    assert again.code == 0
    end = again.json
    assert (end["state"], end["groups"], end["n_groups"], end["parent"]) == ("succeeded", 5, 5, ran.name)
    assert re.fullmatch(r"partly-retry-\d{6}-[0-9a-f]{4}", end["job"]), "the name of a retry of a retry does not grow"
    status = partly.run("jobs", "status", end["job"]).out
    assert re.search(rf"derived from +{ran.name}\n", status)
    assert re.search(rf"reused +8 simulations: 8 from {ran.name}\n", status)
    assert re.search(rf"{end['job']} .* 8  \d{{4}}-", partly.run("jobs", "list").out), "the column 'reused'"
    assert re.search(r"simulations +10 good, 0 failed, of 10\n", status)


def test_results_of_a_derived_job_cover_the_whole_study(mended: CommandLab, tmp_path: Path) -> None:
    assert mended.submit("--name", "whole").code == 0
    listed = mended.run("jobs", "results", "mended")
    paths = mops.open_job("mended", str(mended.storage), local=True).paths("daily")
    assert {path.split("/")[1] for path in paths} == {"partly", "mended"}
    # Two sets that end together are one commit, so the number of parts depends on the time.
    assert re.search(rf"daily +20 +{len(paths)} ", listed.out)
    assert re.search(r"losses +5 +\d ", listed.out)
    assert "some rows are in parts of the job's parents" in listed.err
    for job in ("mended", "whole"):
        assert mended.run("jobs", "results", job, "--to", tmp_path / job, "--format", "csv").code == 0
    for name in ("daily.csv", "losses.csv", "failures.csv", "params.csv"):
        one, other = [sorted(csv.reader((tmp_path / job / name).open())) for job in ("mended", "whole")]
        assert one == other


def test_json_lists_the_parts_and_their_groups_that_do_not_count(mended: CommandLab) -> None:
    daily, _losses, failures = mended.run("jobs", "results", "mended", "--json").json
    assert sorted(span for part in daily["filtered"] for span in part["without"]) == [[1, 2], [3, 4]]
    assert "/outputs/daily/" in daily["filtered"][0]["path"]
    assert any("/jobs/mended/" in path for path in daily["paths"])
    assert not {part["path"] for part in daily["filtered"]} & set(daily["paths"])
    assert failures["rows"] == 0
    assert failures["filtered"]


def test_in_python_verdicts_are_names_and_retry_returns_the_job(
    partly: CommandLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in partly.environment.items():
        monkeypatch.setenv(name, value)
    job = mops.retry(mops.open_job("partly"), ["error", "crashed"], name="in-python")
    assert (job.name, job.status().state) == ("in-python", "succeeded")
    assert sorted(job.losses().to_arrow()["loss"].to_pylist()) == [-4.0, -2.0, 2.0, 4.0, 6.0]


# Errors


def assert_says(lab: CommandLab, *arguments: object, error: str, at: object, hint: str) -> None:
    jobs = sorted(path.name for path in lab.storage.joinpath("jobs").iterdir())
    ran = lab.run("jobs", "retry", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: {error}\n  at: {at}\nhint: {hint}\n"
    assert sorted(path.name for path in lab.storage.joinpath("jobs").iterdir()) == jobs


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> CommandLab:
    """A job ``partly`` with an error and a job ``done`` without failures. Tests derive no job from them."""
    lab = make_lab(tmp_path_factory.mktemp("retry"), cache)
    assert lab.submit("--name", "done").code == 0
    lab.write_study(parameter_sets=[{"x": 1}, {"x": -1}])
    assert lab.submit("--name", "partly").code == 3
    return lab


def test_an_unknown_verdict(read_only: CommandLab) -> None:
    hint = "use oom, crashed, timeout, error, invalid_output, lost, or all"
    for verdict, error in {
        "oomed": "unknown verdict: 'oomed'",
        "oom,crash, all of them": "unknown verdict: 'crash', 'all of them'",
        " , ": "no verdict is named",
        "": "no verdict is named",
    }.items():
        assert_says(read_only, "partly", "--verdict", verdict, error=error, at="the verdicts to retry", hint=hint)


def test_without_the_option_the_error_lists_the_verdicts_of_the_job(read_only: CommandLab) -> None:
    ran = read_only.run("jobs", "retry", "partly")
    assert ran.code == 2
    assert ran.err.startswith("error: no verdict is named\n  at: the failures of partly: "), ran.err
    assert "hint: add --verdict " in ran.err
    assert "or --verdict all" in ran.err


REFUSED = {
    "no such failure": (
        ("partly", "--verdict", "timeout,oom"),
        "job 'partly' has no failure with the verdict oom or timeout",
        "{storage}",
        "name a verdict that the job has; parameter sets with failures: 1 with error",
    ),
    **{
        f"no failures, {name}": (
            ("done", *verdict),
            "no simulation or target of job 'done' has failed",
            "{storage}",
            "read the results: mops jobs results done",
        )
        for name, verdict in {"all": ("--verdict", "all"), "no option": ()}.items()
    },
}


def test_a_retry_that_cannot_run(read_only: CommandLab) -> None:
    for arguments, error, at, hint in REFUSED.values():
        assert_says(read_only, *arguments, error=error, at=at.format(storage=read_only.storage), hint=hint)


def test_a_job_that_is_not_complete(copied: CommandLab) -> None:
    log = folder_of(copied.storage, "partly") / "log"
    max(log.iterdir()).unlink()  # the state after a kill of its runner before the end
    assert_says(
        copied,
        *("partly", "--verdict", "all"),
        error="job 'partly' is interrupted: only a complete job can be retried, extended or scored again",
        at=copied.storage,
        hint="complete the job first: mops jobs resume partly",
    )


def test_a_derived_job_whose_parent_was_removed_by_hand(copied: CommandLab) -> None:
    removed = folder_of(copied.storage, "partly")
    shutil.rmtree(removed.parent)
    ran = copied.run("jobs", "results", "mended")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == (
        "error: job 'mended' takes rows over from job 'partly', which was deleted or replaced\n"
        f"  at: {removed}\n"
        "hint: restore that folder from a backup or the storage's own history, or submit the study again\n"
    )
