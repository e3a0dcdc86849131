"""Dedicated Dask clusters on a real Kubernetes with the real operator: created, used, scaled and removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_lab import install_operator, remove_dedicated_clusters, sole_use_of_the_operator
from service_lab import Service, assert_same_rows, begun, installed, wait_for, write_study
from test_chart_in_cluster import MAY, allowed

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(1800)]  # another file may have the operator


# --- the service and the operator


@pytest.fixture(scope="module")
def bare(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service that allows dedicated clusters, without the operator."""
    values = {"dedicated": {"enabled": True, "workers": 1}}
    with sole_use_of_the_operator(cluster), installed("dedicated", cluster, **values) as found:
        try:
            yield found
        finally:
            remove_dedicated_clusters(found)


@pytest.fixture(scope="module")
def service(bare: Service) -> Service:
    """Install the operator."""
    install_operator(bare.env)
    return bare


def clusters(service: Service, job: str) -> list[dict[str, Any]]:
    """Return the DaskClusters of a job."""
    return service.objects("daskclusters", f"mops/job={job}")


def pods(service: Service, job: str, component: str) -> list[str]:
    """Return the pods of a dedicated cluster that are not ending."""
    found = service.objects("pods", f"mops/job={job},dask.org/component={component}")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def what_is_left(service: Service, job: str) -> list[str]:
    """Return the names of all objects of a dedicated cluster."""
    kinds = "daskclusters,daskworkergroups,daskautoscalers,deployments,services,pods"
    found = json.loads(service.kubectl("get", kinds, "-o", "json"))["items"]
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    return [f"{kind} {name}" for kind, name in names if name.startswith(f"dask-{job}-")]


def gone(service: Service, job: str) -> None:
    wait_for(lambda: not what_is_left(service, job), said=lambda: "\n".join(what_is_left(service, job)))


def started(
    service: Service, name: str, *options: str, sets: int, seconds: float, groups: int = 5, **more: str
) -> Path:
    """Submit a study to a dedicated cluster, and wait for its first groups."""
    study = write_study(service, name, sets=sets, seconds=seconds)
    service.submit(study, name, "--dedicated", *options, CHECKPOINT_SECONDS="1", **more)
    begun(service, name, groups)
    return study


def finished(service: Service, name: str, study: Path, groups: int) -> None:
    """Wait for the end of a job; check its rows, and that its cluster is removed."""
    assert service.wait(name, patience_s=300)["groups"] == groups
    gone(service, name)
    assert_same_rows(service, study, name)


# --- without the operator: this test comes first


def test_without_the_operator_a_submit_is_refused_with_what_to_install(bare: Service) -> None:
    told = bare.mops(
        "jobs", "submit", write_study(bare, "none", sets=2, seconds=0), "--name", "none", "--dedicated", code=4
    )
    assert "this Kubernetes has no Dask clusters" in told.err
    assert "dask-kubernetes-operator" in told.err
    assert "Traceback" not in told.err
    told = bare.mops("jobs", "status", "none", code=2)
    assert "no job" in told.err
    refused = bare.mops("connect", "-n", bare.namespace, "--dedicated", code=4)
    assert "this Kubernetes has no Dask clusters" in refused.err


# --- with the operator


def test_a_runner_may_only_make_the_clusters_of_jobs_and_list_pods_and_events(service: Service) -> None:
    clusters = {(verb, "daskclusters.kubernetes.dask.org") for verb in ("create", "get", "delete")}
    scalers = {(verb, "daskautoscalers.kubernetes.dask.org") for verb in ("create", "get")}
    found = allowed(service, f"system:serviceaccount:{service.namespace}:mops-runner")
    assert found == MAY["mops-runner"] | clusters | scalers


def test_a_job_has_its_dedicated_cluster_while_it_runs(service: Service) -> None:
    name = "own"
    study = started(service, name, sets=100, seconds=0.2)
    (cluster,) = clusters(service, name)
    (job,) = service.objects("jobs", f"mops/job={name}")
    assert [owner["uid"] for owner in cluster["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert len(pods(service, name, "worker")) == len(pods(service, name, "scheduler")) == 1
    assert "scheduler ready, 1 of 1 workers ready" in service.mops("jobs", "status", name).out
    assert f"dask-{name}-" in service.mops("jobs", "logs", name, "--workers").out
    finished(service, name, study, 100)
    warned = [line for line in service.mops("jobs", "logs", name).out.splitlines() if " WARNING " in line]
    assert [line for line in warned if not line.endswith("has no workers; waiting")] == [], "mops doctor would complain"
    assert service.objects("jobs", f"mops/job={name}"), "the Job itself stays"


def test_a_cluster_with_a_range_of_workers_scales_up_with_the_work(service: Service) -> None:
    """By default, Dask plans one worker for four tasks of 0.6 s, even if more tasks follow."""
    name = "grows"
    study = write_study(service, name, sets=250, seconds=0.3)  # 150 s of one slot: more than a worker needs to start
    service.submit(study, name, "--dedicated", "--workers", "1:2", CHECKPOINT_SECONDS="1", BATCH_SIZE="4")
    wait_for(lambda: pods(service, name, "worker"), said=lambda: service.what_is_wrong(name))
    assert len(pods(service, name, "worker")) == 1
    wait_for(lambda: len(pods(service, name, "worker")) == 2, said=lambda: service.what_is_wrong(name))
    wait_for(
        lambda: "2 of 2 workers ready" in service.mops("jobs", "status", name).out,
        said=lambda: service.what_is_wrong(name),
    )
    finished(service, name, study, 250)


def test_scaling_a_cluster_down_loses_no_row(service: Service) -> None:
    name = "shrinks"
    study = started(service, name, "--workers", "2", sets=60, seconds=0.3, TASK_SECONDS="0.5")
    group = f"{clusters(service, name)[0]['metadata']['name']}-default"
    one_less = '[{"op": "replace", "path": "/spec/worker/replicas", "value": 1}]'
    service.kubectl("patch", "daskworkergroup", group, "--type=json", "-p", one_less)
    wait_for(lambda: len(pods(service, name, "worker")) == 1, said=lambda: service.what_is_wrong(name))
    finished(service, name, study, 60)


def test_the_next_pod_of_a_job_uses_its_cluster(service: Service) -> None:
    name = "again"
    study = started(service, name, sets=40, seconds=0.3)
    (before,) = clusters(service, name)
    kill_runner(service, name)
    wait_for(lambda: service.job(name).status().attempt == 2, said=lambda: service.what_is_wrong(name))
    (after,) = clusters(service, name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    finished(service, name, study, 40)


def test_a_cluster_of_a_dead_runner_is_removed_with_the_job(service: Service) -> None:
    name = "dead"
    started(service, name, sets=400, seconds=0.5, groups=3)
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"backoffLimit": 0}}')
    kill_runner(service, name)
    wait_for(lambda: service.status(name)["kubernetes"]["word"] == "failed", said=lambda: service.what_is_wrong(name))
    assert clusters(service, name), "no runner is left that removes it"
    service.kubectl("delete", "job", f"{name}-1")  # like its time to live
    gone(service, name)


def test_a_cluster_that_was_removed_is_created_again(service: Service) -> None:
    """The operator removes a cluster that is idle for long, for example of a suspended job."""
    name = "anew"
    study = started(service, name, sets=40, seconds=0.3)
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"suspend": true}}')
    wait_for(lambda: not runner_pods(service, name), said=lambda: service.what_is_wrong(name))
    assert clusters(service, name), "a runner that stops leaves the cluster to the next one"
    service.kubectl("delete", "daskcluster", clusters(service, name)[0]["metadata"]["name"])
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"suspend": false}}')
    finished(service, name, study, 40)


def test_an_idle_cluster_is_removed_by_the_operator(service: Service) -> None:
    """This happens if the runner is dead and its Job stays for a week."""
    name = "idle"
    started(service, name, sets=400, seconds=0.5, groups=3)
    (cluster,) = clusters(service, name)
    assert cluster["spec"]["idleTimeout"] == 1800
    soon = '[{"op": "replace", "path": "/spec/idleTimeout", "value": 5}]'
    service.kubectl("patch", "daskcluster", cluster["metadata"]["name"], "--type=json", "-p", soon)
    before = service.committed(name)
    begun(service, name, before + 11)  # for longer than 5 s
    assert clusters(service, name), "a cluster that runs tasks is not idle"
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"backoffLimit": 0}}')
    kill_runner(service, name)
    gone(service, name)
    assert service.objects("jobs", f"mops/job={name}")
    service.kubectl("delete", "job", f"{name}-1")


def runner_pods(service: Service, job: str) -> list[str]:
    found = service.objects("pods", f"mops/job={job},app.kubernetes.io/component=runner")
    return [pod["metadata"]["name"] for pod in found if pod["status"]["phase"] in ("Pending", "Running")]


def kill_runner(service: Service, job: str) -> None:
    (pod,) = runner_pods(service, job)
    service.kubectl("delete", "pod", pod, "--grace-period=0", "--force")


def test_a_profile_can_make_dedicated_clusters_the_default(service: Service) -> None:
    told = service.mops("connect", "-n", service.namespace, "--dedicated")
    assert "dedicated for each job" in told.out
    service.submit(write_study(service, "default", sets=2, seconds=0), "default")
    assert service.wait("default")["groups"] == 2
    (job,) = service.objects("jobs", "mops/job=default")
    assert job["metadata"]["annotations"]["mops/dask-cluster"].startswith("dask-default-")
    service.submit(write_study(service, "shared", sets=2, seconds=0), "shared", "--shared")
    (job,) = service.objects("jobs", "mops/job=shared")
    assert "mops/dask-cluster" not in job["metadata"]["annotations"]
    service.wait("shared")
    service.mops("connect", "-n", service.namespace)
    gone(service, "default")


def test_a_cluster_without_a_running_operator_is_an_error(service: Service) -> None:
    """Helm does not remove CRDs. The DaskCluster is created, and no operator makes pods of it."""
    service.run("kubectl", "-n", "dask-operator", "scale", "deployment", "--all", "--replicas=0")
    name = "untaken"
    service.submit(write_study(service, name, sets=2, seconds=0), name, "--dedicated")
    wait_for(
        lambda: "no operator started DaskCluster" in service.status(name)["kubernetes"]["reason"],
        patience_s=400,  # visible between two pods
        said=lambda: service.what_is_wrong(name),
    )
    failed = [pod for pod in service.objects("pods", f"mops/job={name}") if pod["status"]["phase"] == "Failed"]
    assert "Traceback" not in failed[0]["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert "the operator of dask-kubernetes creates them" in service.mops("jobs", "status", name).out
    service.run("kubectl", "-n", "dask-operator", "scale", "deployment", "--all", "--replicas=1")
    assert service.wait(name)["groups"] == 2, "as soon as an operator runs"
    gone(service, name)
