"""Jobs on a cluster service have the same rows as on a laptop, whatever pod is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from service_lab import Service, assert_same_rows, begun, wait_for, write_study

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def _kill_runner(service: Service, job: str) -> None:
    (pod,) = service.runner_pods(job)
    service.kubectl("delete", "pod", pod, "--grace-period=0", "--force")


def _end_runner(service: Service, job: str) -> None:
    (pod,) = service.runner_pods(job)
    service.kubectl("delete", "pod", pod)


def _kill_worker(service: Service, job: str) -> None:
    service.kubectl("delete", "pod", service.pods("worker")[0], "--grace-period=0", "--force")


def _retire_worker(service: Service, job: str) -> None:
    service.kubectl("delete", "pod", service.pods("worker")[0])


def _kill_scheduler(service: Service, job: str) -> None:
    service.kubectl("delete", "pod", service.pods("scheduler")[0], "--grace-period=0", "--force")


def _upgrade(service: Service, job: str) -> None:
    service.values["worker"]["annotations"] = {"upgraded": str(time.time())}
    service.values["scheduler"]["annotations"] = {"upgraded": str(time.time())}
    service.helm("upgrade")


def _evict_all(service: Service, job: str) -> None:
    for pod in service.runner_pods(job):
        evict(service, pod)
    for pod in [*service.pods("worker"), *service.pods("scheduler")]:
        evict(service, pod)


def evict(service: Service, pod: str) -> None:
    """Evict a pod like ``kubectl drain``, with respect to disruption budgets."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": service.namespace},
    }
    path = f"/api/v1/namespaces/{service.namespace}/pods/{pod}/eviction"

    def evicted() -> bool:
        ran = service.run("kubectl", "create", "--raw", path, "-f", "-", text=json.dumps(eviction))
        said.append(ran.err)
        return ran.code == 0 or "not found" in ran.err

    said: list[str] = []
    wait_for(evicted, said=lambda: f"{pod} is not evicted: {said[-1]}")


KILLS: dict[str, Callable[[Service, str], None]] = {
    "runner-killed": _kill_runner,
    "runner-ended": _end_runner,
    "worker-killed": _kill_worker,
    "worker-retired": _retire_worker,
    "scheduler-killed": _kill_scheduler,
    "helm-upgrade": _upgrade,
    "all-evicted": _evict_all,
}


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_pod_loses_and_duplicates_no_row(service: Service, kill: str) -> None:
    of_runner = kill in ("runner-killed", "runner-ended", "all-evicted")
    # A runner that stops lets running simulations finish. With few left, there would be no second attempt.
    study = write_study(service, kill, sets=100, seconds=0.4 if of_runner else 0.2)
    service.submit(study, kill, CHECKPOINT_SECONDS="1", TASK_SECONDS="0.5")
    begun(service, kill)
    assert service.committed(kill) < 100, "the job was over before the kill"
    KILLS[kill](service, kill)
    status = service.wait(kill, patience_s=300)
    assert status["groups"] == 100
    if of_runner:
        assert status["attempt"] == 2, "the job was over before the kill"
    assert_same_rows(service, study, kill)
