"""Jobs on a cluster service have the same rows as on a laptop, whatever pod is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from service_lab import Service, assert_same_rows, begun, wait_for, write_study

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def kill_runner(service: Service, job: str) -> None:
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


KILLS: dict[str, list[Callable[[Service, str], None]]] = {
    "killed": [_kill_worker, _kill_scheduler, kill_runner],
    "ended": [_retire_worker, _upgrade, _end_runner],
    "evicted": [_evict_all],
}


@pytest.mark.parametrize("way", KILLS)
def test_pods_that_end_one_after_the_other_lose_and_duplicate_no_row(service: Service, way: str) -> None:
    """Between two of them, the job commits again."""
    sets = 80 * len(KILLS[way])
    study = write_study(service, way, sets=sets, seconds=0.3)
    service.submit(study, way, CHECKPOINT_SECONDS="1", TASK_SECONDS="0.5")
    for kill in KILLS[way]:
        begun(service, way, service.committed(way) + 4)
        assert service.committed(way) < sets, "the job was over before the kill"
        kill(service, way)
    status = service.wait(way, patience_s=300)
    assert (status["groups"], status["attempt"]) == (sets, 2), "the job was over before its runner ended"
    assert_same_rows(service, study, way)
