"""Runners and workers of dedicated clusters wait in the queues of a real Kueue."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from operator_lab import install_operator, remove_dedicated_clusters, sole_use_of_the_operator
from service_lab import ROOT, Service, assert_same_rows, begun, installed, wait_for, write_study

from rows import rows_of, serial_rows

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(1800)]  # another file may have the operator

TEAM, RUNNERS = "team", "runners"
KINDS = ("localqueues", "clusterqueues", "resourceflavors")


@pytest.fixture(scope="module")
def service(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service with the operator and Kueue. Each runner and worker requests 25m."""
    with sole_use_of_the_operator(cluster):
        install_operator(cluster)
        subprocess.run([ROOT / "k8s" / "testcluster" / "kueue-up"], env=cluster, check=True)
        try:
            with installed("kueue", cluster, dedicated={"enabled": True, "workers": 1}) as found:
                found.kubectl("label", "namespace", found.namespace, "kueue=on")
                found.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(queues(found.namespace)))
                try:
                    yield found
                finally:
                    remove_dedicated_clusters(found)
                    for kind in KINDS:  # while Kueue runs: they have finalizers
                        found.run("kubectl", "-n", found.namespace, "delete", kind, "--all", "--timeout=60s")
        finally:
            subprocess.run(["helm", "uninstall", "kueue", "-n", "kueue-system", "--wait"], env=cluster, check=True)


def queues(namespace: str) -> list[dict[str, Any]]:
    """Return a queue with room for a runner and two workers, and another with room for two runners."""

    def queue(name: str, cpu: str) -> list[dict[str, Any]]:
        whole = f"{namespace}-{name}"
        quotas = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "100Gi"}]
        flavors = [{"name": namespace, "resources": quotas}]
        groups = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
        return [
            made("ClusterQueue", whole, {"namespaceSelector": {}, "resourceGroups": groups}),
            made("LocalQueue", name, {"clusterQueue": whole}),
        ]

    return [made("ResourceFlavor", namespace, {}), *queue(TEAM, "75m"), *queue(RUNNERS, "50m")]


def made(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


@contextmanager
def another_job(service: Service, cpu: str) -> Iterator[None]:
    """Use a part of the queue's quota while the body runs."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "pause", "image": "localhost/pause:1", "imagePullPolicy": "Never", "securityContext": security}
    container["resources"] = {"requests": {"cpu": cpu, "memory": "8Mi"}}
    of_pod = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"restartPolicy": "Never", "securityContext": of_pod, "containers": [container]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "another", "labels": {"kueue.x-k8s.io/queue-name": TEAM}},
        "spec": {"template": {"spec": pod}},
    }
    service.kubectl("apply", "-f", "-", text=yaml.safe_dump(job))
    wait_for(lambda: not service.objects("jobs", "kueue.x-k8s.io/queue-name")[0]["spec"]["suspend"])
    try:
        yield
    finally:
        service.kubectl("delete", "job", "another", "--wait")


def workers(service: Service, job: str) -> list[dict[str, Any]]:
    """Return the pods of the workers of a dedicated cluster that are not ending."""
    found = service.objects("pods", f"mops/job={job},dask.org/component=worker")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def held(pod: dict[str, Any]) -> bool:
    return "kueue.x-k8s.io/admission" in [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


def says(service: Service, job: str, text: str) -> None:
    """Wait until `mops jobs status` says something."""

    def found() -> str:
        events = service.kubectl("get", "workloads,events", "--sort-by=.metadata.creationTimestamp")
        return f"{text}\n{service.what_is_wrong(job)}\n{events}"

    wait_for(lambda: text in service.mops("jobs", "status", job).out, said=found)


def test_a_runner_waits_in_a_full_queue_and_then_starts(service: Service) -> None:
    study = write_study(service, "waits", sets=2, seconds=0)
    with another_job(service, "75m"):
        told = service.mops("jobs", "submit", study, "--name", "waits", "--queue", TEAM)
        assert "no Kueue" not in told.err
        says(service, "waits", f"queued: in the queue {TEAM}")
        assert f"queued: in the queue {TEAM}" in service.mops("jobs", "list").out
        assert service.runner_pods("waits") == []
    service.wait("waits")
    assert_same_rows(service, study, "waits")


def test_a_job_begins_with_the_workers_that_fit_and_uses_the_next_when_it_is_admitted(service: Service) -> None:
    """Regression: the pods of a dedicated cluster did not count in the quota of the queue."""
    name = "half"
    study = write_study(service, name, sets=2000, seconds=0.3)  # until it is cancelled: a full node may delay a pod
    with another_job(service, "25m"):
        service.submit(study, name, "--dedicated", "--workers", "2", "--queue", TEAM, CHECKPOINT_SECONDS="1")
        begun(service, name)
        assert sorted(map(held, workers(service, name))) == [False, True]
        says(service, name, f"scheduler ready, 1 of 2 workers ready, 1 in the queue {TEAM}")
    says(service, name, "2 of 2 workers ready")

    evicted = workers(service, name)[0]["metadata"]
    (workload,) = (
        one["metadata"]["name"]
        for one in service.objects("workloads")
        if evicted["uid"] in [owner["uid"] for owner in one["metadata"]["ownerReferences"]]
    )
    service.kubectl("patch", "workload", workload, "--type=merge", "-p", '{"spec": {"active": false}}')
    wait_for(lambda: evicted["name"] not in [pod["metadata"]["name"] for pod in workers(service, name)])
    says(service, name, "2 of 2 workers ready")
    service.mops("jobs", "cancel", name)
    assert service.wait(name, "cancelled")["attempt"] == 1
    found = service.job(name)
    losses = rows_of(found).losses.to_pylist()
    plain = serial_rows(study, service.home / f"{name}-serial", HASTE="1").losses.to_pylist()
    assert losses == [loss for loss in plain if loss in losses]
    assert found.verify() == []
    wait_for(lambda: {one["metadata"]["ownerReferences"][0]["kind"] for one in service.objects("workloads")} == {"Job"})


def test_runners_in_a_separate_queue_leave_room_for_the_workers(service: Service) -> None:
    """In one queue, runners that start together may take all its room, and wait endlessly for workers."""
    service.values["dedicated"]["runnerQueue"] = RUNNERS
    service.helm("upgrade")
    names = ("one", "other")
    studies = {name: write_study(service, name, sets=20, seconds=0.3) for name in names}
    with another_job(service, "50m"):  # a worker fits
        for name in names:
            service.submit(studies[name], name, "--dedicated", "--queue", TEAM)
        wait_for(lambda: all(service.runner_pods(name) for name in names))
        waits = re.compile(rf"waits for workers: dask-\S+ is queued: in the queue {TEAM}")
        wait_for(lambda: any(waits.search(service.mops("jobs", "status", name).out) for name in names))
        for name in names:
            service.wait(name)
            assert_same_rows(service, studies[name], name)
