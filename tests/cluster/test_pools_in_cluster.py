"""Pools of workers, which come from none and go with the jobs that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_lab import VALUES, Service, assert_same_rows, installed, wait_for, write_study

from runner_jobs import POD

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

MODEL = """
import os

def run(params, seed):
    held = bytearray(params["mib"] << 20)
    return {"held": [len(held)], "pod": [os.environ["HOSTNAME"]]}
"""


@pytest.fixture(scope="module")
def pooled(cluster: dict[str, str]) -> Iterator[Service]:
    autoscaler = {"enabled": True, "minWorkers": 1, "maxWorkers": 2, "idleSeconds": 15}
    slow = {
        "name": "slow",  # so that a test can see what waits for the pool
        "image": cluster["MOPS_TEST_SIR_IMAGE"],
        "command": ["sleep", "10"],
        "securityContext": POD.security,
    }
    large = {"name": "large", "memory": "3Gi", "extraPodSpec": {"initContainers": [slow]}}
    worker = {**VALUES["worker"], "pools": [large]}
    with installed("mops-pooled", cluster, autoscaler=autoscaler, worker=worker) as found:
        yield found


def replicas(service: Service, deployment: str) -> int:
    return int(service.kubectl("get", "deployment", deployment, "-o", "jsonpath={.spec.replicas}"))


@pytest.mark.parametrize("killer", ["mops", "kernel"])
def test_simulations_that_ran_out_of_memory_succeed_on_the_pool_with_the_most(pooled: Service, killer: str) -> None:
    sets = [{"mib": 1400 if i == 3 else 8, "i": i} for i in range(6)]
    study, job = pooled.write(killer, MODEL, {"n_replicates": 1, "parameter_sets": sets}), f"needs-{killer}"
    # A limit that no worker has, so that the kernel acts before mops.
    pooled.submit(study, job, **({"SIM_MEMORY": "64GiB"} if killer == "kernel" else {}))
    wait_for(lambda: replicas(pooled, "mops-worker-large") == 1, said=lambda: pooled.what_is_wrong(job))
    found = pooled.wait(job)
    assert found["attempt"] == 1
    rows = pooled.job(job).outputs("output").to_arrow().to_pylist()
    assert sorted(row["held"] >> 20 for row in rows) == [8] * 5 + [1400]
    pods = {row["held"] >> 20: row["pod"] for row in rows}
    assert pods[1400].startswith("mops-worker-large-")
    assert not pods[8].startswith("mops-worker-large-")
    wait_for(lambda: replicas(pooled, "mops-worker-large") == 0)
    assert replicas(pooled, "mops-worker") == 1


def test_a_job_runs_on_the_pool_that_it_names(pooled: Service) -> None:
    study = pooled.write("named", MODEL, {"n_replicates": 2, "parameter_sets": [{"mib": 1, "i": i} for i in range(8)]})
    wait_for(lambda: not any("large" in pod for pod in pooled.pods("worker")))
    pooled.submit(study, "named", "--pool", "large")
    lacking = "waits for workers of pool large: "  # workers of the other pool are there
    wait_for(lambda: lacking in pooled.mops("jobs", "status", "named").out, said=lambda: pooled.what_is_wrong("named"))
    pooled.wait("named")
    rows = pooled.job("named").outputs("output").to_arrow().to_pylist()
    assert len(rows) == 16
    assert all(row["pod"].startswith("mops-worker-large-") for row in rows)


def test_a_job_without_a_pool_runs_on_the_other_workers(pooled: Service) -> None:
    wait_for(lambda: replicas(pooled, "mops-worker-large") == 0)  # the job before may have used it
    study = write_study(pooled, "plain", sets=20, seconds=0)
    pooled.submit(study, "plain")
    pooled.wait("plain")
    assert_same_rows(pooled, study, "plain")
    assert replicas(pooled, "mops-worker-large") == 0
