"""A job's dedicated Dask cluster on a real Kubernetes with the real operator: made, used, scaled, gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from service_lab import ROOT, Service, assert_same_rows, begun, installed, wait_for, write_study

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


# --- this module's own set-up: a service that may, and the operator


@pytest.fixture(scope="module")
def bare(cluster: dict[str, str]) -> Iterator[Service]:
    """Have a service whose jobs may have dedicated clusters, where no operator has ever been."""
    values = {"dedicated": {"enabled": True, "workers": 1}}
    with installed("dedicated", cluster, **values) as found:
        remove_operator(found)
        try:
            yield found
        finally:
            for kind in ("job", "daskcluster"):  # the operator has to let go of what it knows
                found.run("kubectl", "-n", found.namespace, "delete", kind, "--all", "--timeout=120s")
            remove_operator(found)


@pytest.fixture(scope="module")
def service(bare: Service) -> Service:
    """Have a service with the operator."""
    subprocess.run([ROOT / "k8s" / "testcluster" / "operator-up", sys.executable], env=bare.env, check=True)
    return bare


def remove_operator(service: Service) -> None:
    """Remove the operator with its CRDs, which helm leaves behind."""
    service.run("helm", "uninstall", "dask-operator", "-n", "dask-operator", "--wait")
    kinds = ("daskclusters", "daskworkergroups", "daskautoscalers", "daskjobs")
    service.run("kubectl", "delete", "crd", "--ignore-not-found", *(f"{kind}.kubernetes.dask.org" for kind in kinds))
    service.run("kubectl", "delete", "namespace", "dask-operator", "--ignore-not-found", "--timeout=60s")


def clusters(service: Service, job: str) -> list[dict[str, Any]]:
    """Return a job's DaskClusters."""
    return service.objects("daskclusters", f"mops/job={job}")


def pods(service: Service, job: str, component: str) -> list[str]:
    """Return the pods of a job's dedicated cluster that do not go, by their operator's label."""
    found = service.objects("pods", f"mops/job={job},dask.org/component={component}")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def what_is_left(service: Service, job: str) -> list[str]:
    """Return the names of everything of a job's dedicated cluster."""
    kinds = "daskclusters,daskworkergroups,daskautoscalers,deployments,services,pods"
    found = json.loads(service.kubectl("get", kinds, "-o", "json"))["items"]
    return [
        f"{one['kind']} {one['metadata']['name']}"
        for one in found
        if one["metadata"]["name"].startswith(f"dask-{job}-")
    ]


def gone(service: Service, job: str) -> None:
    wait_for(lambda: not what_is_left(service, job), said=lambda: "\n".join(what_is_left(service, job)))


# --- without the operator: before anything of it is there


def test_without_the_operator_nothing_is_written_and_it_is_said_what_to_install(bare: Service) -> None:
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


# --- with it


def test_a_job_has_a_cluster_of_its_own_while_it_runs(service: Service) -> None:
    name = "own"
    asked = write_study(service, name, sets=120, seconds=0.2)
    service.submit(asked, name, "--dedicated", CHECKPOINT_SECONDS="1")
    begun(service, name, 5)
    (cluster,) = clusters(service, name)
    (job,) = service.objects("jobs", f"mops/job={name}")
    assert [owner["uid"] for owner in cluster["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    (policy,) = service.objects("networkpolicies", f"mops/job={name}")
    assert [owner["uid"] for owner in policy["metadata"]["ownerReferences"]] == [cluster["metadata"]["uid"]]
    assert len(pods(service, name, "worker")) == len(pods(service, name, "scheduler")) == 1
    assert "scheduler ready, 1 of 1 workers ready" in service.mops("jobs", "status", name).out
    assert f"dask-{name}-" in service.mops("jobs", "logs", name, "--workers").out
    assert service.wait(name)["groups"] == 120
    gone(service, name)
    assert_same_rows(service, asked, name)
    warned = [line for line in service.mops("jobs", "logs", name).out.splitlines() if " WARNING " in line]
    assert [line for line in warned if "waiting up to" not in line] == [], "it is not as mops doctor wants it"
    assert service.objects("jobs", f"mops/job={name}"), "the Job itself stays, for who asks what became of it"


def test_a_cluster_of_two_numbers_grows_with_the_work_and_shrinks_at_its_end(service: Service) -> None:
    """As Dask reckons by default, four tasks of 0.6 s are work for one worker, however many come after them."""
    name = "grows"
    asked = write_study(service, name, sets=100, seconds=0.3)
    service.submit(asked, name, "--dedicated", "--workers", "1:2", CHECKPOINT_SECONDS="1", BATCH_SIZE="4")
    wait_for(lambda: pods(service, name, "worker"), said=lambda: service.what_is_wrong(name))
    assert len(pods(service, name, "worker")) == 1
    wait_for(lambda: len(pods(service, name, "worker")) == 2, said=lambda: service.what_is_wrong(name))
    wait_for(lambda: "2 of 2 workers ready" in service.mops("jobs", "status", name).out)
    assert service.wait(name, patience_s=300)["groups"] == 100
    gone(service, name)
    assert_same_rows(service, asked, name)


def test_workers_that_the_operator_takes_away_cost_no_row(service: Service) -> None:
    name = "shrinks"
    asked = write_study(service, name, sets=60, seconds=0.3)
    service.submit(asked, name, "--dedicated", "--workers", "2", CHECKPOINT_SECONDS="1", TASK_SECONDS="0.5")
    begun(service, name, 5)
    group = f"{clusters(service, name)[0]['metadata']['name']}-default"
    one_less = '[{"op": "replace", "path": "/spec/worker/replicas", "value": 1}]'
    service.kubectl("patch", "daskworkergroup", group, "--type=json", "-p", one_less)
    wait_for(lambda: len(pods(service, name, "worker")) == 1, said=lambda: service.what_is_wrong(name))
    assert service.wait(name)["groups"] == 60
    assert_same_rows(service, asked, name)
    gone(service, name)


def test_the_next_pod_of_a_job_finds_its_cluster(service: Service) -> None:
    name = "again"
    asked = write_study(service, name, sets=40, seconds=0.3)
    service.submit(asked, name, "--dedicated", CHECKPOINT_SECONDS="1")
    begun(service, name, 5)
    (before,) = clusters(service, name)
    kill_runner(service, name)
    wait_for(lambda: service.job(name).status().attempt == 2, said=lambda: service.what_is_wrong(name))
    (after,) = clusters(service, name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert service.wait(name)["groups"] == 40
    gone(service, name)


def test_a_cluster_goes_with_its_job_when_the_runner_is_dead(service: Service) -> None:
    name = "dead"
    service.submit(write_study(service, name, sets=400, seconds=0.5), name, "--dedicated", CHECKPOINT_SECONDS="1")
    begun(service, name, 3)
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"backoffLimit": 0}}')
    kill_runner(service, name)
    wait_for(lambda: service.status(name)["kubernetes"]["word"] == "failed", said=lambda: service.what_is_wrong(name))
    assert clusters(service, name), "nobody is left who could remove it"
    service.kubectl("delete", "job", f"{name}-1")  # as its time to live does
    gone(service, name)


def test_a_cluster_is_made_anew_if_it_was_removed(service: Service) -> None:
    """As the operator does it with one that was idle for long: a suspended job, say."""
    name = "anew"
    asked = write_study(service, name, sets=40, seconds=0.3)
    service.submit(asked, name, "--dedicated", CHECKPOINT_SECONDS="1")
    begun(service, name, 5)
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"suspend": true}}')
    wait_for(lambda: not runner_pods(service, name), said=lambda: service.what_is_wrong(name))
    assert clusters(service, name), "who is asked to end leaves the cluster to the next"
    service.kubectl("delete", "daskcluster", clusters(service, name)[0]["metadata"]["name"])
    service.kubectl("patch", "job", f"{name}-1", "-p", '{"spec": {"suspend": false}}')
    assert service.wait(name)["groups"] == 40
    gone(service, name)
    assert_same_rows(service, asked, name)


def test_an_idle_cluster_is_removed_by_the_operator(service: Service) -> None:
    """The net where a runner has died for good and its Job lives on for a week."""
    name = "idle"
    service.submit(write_study(service, name, sets=400, seconds=0.5), name, "--dedicated", CHECKPOINT_SECONDS="1")
    begun(service, name, 3)
    (cluster,) = clusters(service, name)
    assert cluster["spec"]["idleTimeout"] == 1800
    soon = '[{"op": "replace", "path": "/spec/idleTimeout", "value": 5}]'
    service.kubectl("patch", "daskcluster", cluster["metadata"]["name"], "--type=json", "-p", soon)
    before = service.committed(name)
    begun(service, name, before + 21)
    assert clusters(service, name), "one that works is not idle"
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


def test_a_profile_says_that_jobs_have_clusters_of_their_own(service: Service) -> None:
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


def test_clusters_without_an_operator_that_runs_are_told_apart(service: Service) -> None:
    """Helm leaves the CRDs behind: the DaskCluster is made, and nothing comes of it."""
    service.run("kubectl", "-n", "dask-operator", "scale", "deployment", "--all", "--replicas=0")
    name = "untaken"
    service.submit(write_study(service, name, sets=2, seconds=0), name, "--dedicated")
    wait_for(
        lambda: "no operator started DaskCluster" in service.status(name)["kubernetes"]["reason"],
        patience_s=400,  # it is seen between a pod's end and the next one
        said=lambda: service.what_is_wrong(name),
    )
    failed = [pod for pod in service.objects("pods", f"mops/job={name}") if pod["status"]["phase"] == "Failed"]
    assert "Traceback" not in failed[0]["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert "the operator of dask-kubernetes creates them" in service.mops("jobs", "status", name).out
    service.run("kubectl", "-n", "dask-operator", "scale", "deployment", "--all", "--replicas=1")
    assert service.wait(name)["groups"] == 2, "as soon as there is one"
    gone(service, name)
