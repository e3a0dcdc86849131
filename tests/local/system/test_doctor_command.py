"""``mops doctor`` with real schedulers and workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from dask_processes import dask_in, free_port
from study_lab import StudyLab, betas, wait_for

from programs import Ran, environment
from warm import warm

WARM_CHILDREN = True


def doctor(*options: str, **env: str) -> Ran:
    return Ran(*warm().run(["doctor", *options], environment() | env, Path("/"), timeout_s=120))


def test_a_problem_is_reported_with_the_variable_to_set(tmp_path: Path) -> None:
    settings = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "1.1", "MALLOC_TRIM_THRESHOLD_": ""}
    with dask_in(tmp_path / "dask", **settings) as dask:
        dask.add_worker("--memory-limit", "300MiB")
        wait_for(lambda: doctor("--json", MODELOPS_SCHEDULER=dask.address).json["workers"][2:])
        ran = doctor(MODELOPS_SCHEDULER=dask.address)
        told = doctor("--json", MODELOPS_SCHEDULER=dask.address).json
    assert ran.code == 1
    for part in (
        "worker-saturation is 1.1",
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0",
        "MALLOC_TRIM_THRESHOLD_=65536",
        "a simulation gets 64 MiB: 300 MiB, less",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False",
    ):
        assert part in ran.out
    assert len(told["workers"]) == 3
    assert {finding["where"] for finding in told["findings"]} >= {"scheduler"}


def test_a_sound_cluster_has_no_problem(tmp_path: Path) -> None:
    with dask_in(tmp_path / "dask", MALLOC_TRIM_THRESHOLD_="65536") as dask:
        ran = doctor(MODELOPS_SCHEDULER=dask.address)
    assert (ran.code, ran.out) == (0, "")
    assert "no problems" in ran.err


def test_a_cluster_that_cannot_be_reached() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    ran = doctor(MODELOPS_SCHEDULER=address, MODELOPS_JOB_CLUSTER_TIMEOUT="1")
    assert ran.code == 4
    assert "the Dask scheduler does not answer" in ran.err


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_this_machine(start: str) -> None:
    ran = doctor(MODELOPS_JOB_SLOTS="2", MODELOPS_JOB_SIM_MEMORY="1GiB", MODELOPS_JOB_START=start)
    assert ran.code == 0
    lines = dict(line.split("  ", 1) for line in ran.out.splitlines())
    assert lines["simulations at once"].strip() == "2"
    assert "1.0 GiB" in ran.out
    assert ("each child process imports the model" in ran.out) == (start == "spawn")
    told = doctor("--json", MODELOPS_JOB_SLOTS="2").json
    assert told["slots"] == 2
    assert told["simulation_bytes"] < told["memory_bytes"]


def test_the_storage_is_written_and_read(tmp_path: Path) -> None:
    """A newcomer's first question to a service: does my storage work?"""
    absent, there, file = tmp_path / "absent", tmp_path / "there", tmp_path / "file"
    there.mkdir()
    file.write_text("")
    assert "which the first job makes" in doctor("--storage", str(absent)).out
    assert not absent.exists()
    assert "this account can create, read, list and remove files" in doctor("--storage", str(there)).out
    assert list(there.iterdir()) == []
    assert doctor("--storage", "ftp://host/folder").code == 2
    ran = doctor("--storage", str(file))
    assert ran.code == 1
    assert "a file and a folder have the same path" in ran.out
    (found,) = doctor("--storage", str(file), "--json").json["findings"]
    assert found["where"].startswith(f"storage {file}")


def test_a_job_reports_problems_when_it_starts(lab: StudyLab, tmp_path: Path) -> None:
    with dask_in(tmp_path / "dask", DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION="1.1") as dask:
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        lab.write("counted:simulate", betas(2))
        runner = lab.run()
    assert "scheduler: worker-saturation is 1.1" in runner.said


@pytest.mark.parametrize(
    ("start", "expected"), [("auto", "fork from a template"), ("spawn", "MODELOPS_JOB_START=spawn")]
)
def test_doctor_reports_how_the_children_of_a_job_were_started(lab: StudyLab, start: str, expected: str) -> None:
    lab.write("counted:simulate", betas(2))
    lab.run(START=start)
    storage = {"MODELOPS_STORAGE": str(lab.storage)}
    assert expected in doctor("job", **storage).out
    assert expected in doctor("job", "--json", **storage).json["children"]
    assert lab.start("status", "job").wait() == 0
    assert f"child processes  {lab.job().status().children}" in (lab.folder / "stdout-2.txt").read_text()
