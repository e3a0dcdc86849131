"""Jobs on pools of a Dask cluster's workers, which the option ``--resources pool-NAME=1`` of a worker makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dask_processes import DaskProcesses, dask_in
from study_lab import StudyLab, betas, wait_for

from mops.cluster.dask_calls import connect_to_look
from mops.service.autoscaler import busy_workers
from rows import rows_of

WARM_CHILDREN = True
NEEDS = """
def run(params, seed):
    held = bytearray(params["mib"] << 20)
    return {"x": [len(held)]}
"""


@pytest.fixture
def dask(lab: StudyLab, tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_in(tmp_path / "dask", n_workers=0) as processes:
        lab.more_env = {"MODELOPS_SCHEDULER": processes.address}
        yield processes


def used(dask: DaskProcesses) -> set[str]:
    """Return the folders of the workers that have unpacked a bundle; the scheduler has the number 1."""
    return {path.parents[2].name for path in dask.folder.glob("cache-*/mops/bundles/*")}


def test_a_job_runs_on_the_workers_of_its_pool_alone(lab: StudyLab, dask: DaskProcesses) -> None:
    dask.add_worker("--resources", "pool-small=1")
    dask.add_worker("--resources", "pool-large=1", threads=2)
    dask.add_worker()
    dask.await_workers()
    lab.write("counted:simulate", betas(12, sleep=0.01), n_replicates=2, targets=["scores:order"])
    expected = lab.serial()
    lab.run("large", POOL="large", TASK_SECONDS=0.02)
    assert rows_of(lab.job("large")) == expected
    assert "12 parameter sets are left; slots: 2" in lab.job("large").logs()
    assert used(dask) == {"cache-3"}
    lab.assert_sound("large")
    lab.run("any", TASK_SECONDS=0.02)
    assert rows_of(lab.job("any")) == expected


def test_a_job_waits_for_a_worker_of_its_pool(lab: StudyLab, dask: DaskProcesses) -> None:
    dask.add_worker("--resources", "pool-small=1")
    dask.await_workers()
    lab.write("counted:simulate", betas(4), n_replicates=1)
    runner = lab.submit(POOL="large")
    wait_for(lambda: "has no workers of pool large" in runner.said, of=runner)
    dask.add_worker("--resources", "pool-large=1")
    assert runner.wait() == 0
    assert used(dask) == {"cache-3"}


@pytest.mark.usefixtures("real_children")
def test_what_ran_out_of_memory_runs_again_on_the_pool_with_more(lab: StudyLab, dask: DaskProcesses) -> None:
    dask.add_worker("--resources", "pool-default=1", "--memory-limit", "1GiB")
    dask.add_worker("--resources", "pool-large=1", "--memory-limit", "4GiB", "--name", "large")
    dask.await_workers()
    lab.write("needs:run", [{"mib": 8 if i else 1500, "i": i} for i in range(5)])
    (lab.project / "needs.py").write_text(NEEDS)
    lab.run("job", POOL="default", MEMORY_POOL="large")
    assert used(dask) == {"cache-2", "cache-3"}
    assert lab.job("job").status().state == "succeeded"


def test_the_scheduler_knows_the_pool_of_a_busy_worker(lab: StudyLab, dask: DaskProcesses) -> None:
    dask.add_worker("--resources", "pool-large=1", "--name", "one")
    dask.await_workers()
    dask.hold_after(0)
    lab.write("held:simulate", betas(2))
    runner = lab.submit(POOL="large")
    with connect_to_look(dask.address) as calls:
        wait_for(lambda: calls.on_scheduler(busy_workers) == {"one": "large"}, of=runner)
    dask.let_go()
    assert runner.wait() == 0


@pytest.mark.parametrize("setting", ["POOL", "MEMORY_POOL"])
def test_this_machine_has_no_pools(lab: StudyLab, setting: str) -> None:
    lab.write("counted:simulate", betas(2))
    runner = lab.submit(**{setting: "large"})
    assert runner.wait() == 2
    assert f"this machine has no pools of workers\n  at: MODELOPS_JOB_{setting}\n" in runner.said
    assert not lab.exists()
