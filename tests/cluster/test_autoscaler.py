"""Workers that come and go with the jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from service_lab import Service, assert_same_rows, begun, installed, wait_for, write_study
from test_chart_in_cluster import allowed

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

MOST = 4


@pytest.fixture(scope="module")
def growing(cluster: dict[str, str]) -> Iterator[Service]:
    autoscaler = {"enabled": True, "maxWorkers": MOST, "idleSeconds": 15}
    with installed("mops-growing", cluster, autoscaler=autoscaler) as found:
        yield found


def replicas(service: Service) -> int:
    return int(service.kubectl("get", "deployment", "mops-worker", "-o", "jsonpath={.spec.replicas}"))


def pod_of(service: Service, component: str) -> str:
    return service.pods(component)[0]


def log(service: Service) -> str:
    return service.kubectl("logs", "deployment/mops-autoscaler")


def test_the_autoscaler_changes_only_the_number_of_workers_and_pods(growing: Service) -> None:
    account = f"system:serviceaccount:{growing.namespace}:mops-autoscaler"
    assert allowed(growing, account) == {("list", "pods"), ("patch", "pods")}

    def may(verb: str, deployment: str, *subresource: str) -> bool:
        asked = ("auth", "can-i", f"--as={account}", verb, f"deployments.apps/{deployment}", *subresource)
        return growing.run("kubectl", "-n", growing.namespace, *asked).out == "yes\n"

    assert may("get", "mops-worker")
    assert may("patch", "mops-worker", "--subresource=scale")
    assert not may("patch", "mops-worker"), "it could change the image of all workers"
    assert not may("patch", "mops-scheduler", "--subresource=scale")


def test_workers_follow_a_job_from_none_to_none_while_parts_are_killed(growing: Service) -> None:
    wait_for(lambda: replicas(growing) == 0 and not growing.pods("worker"), said=lambda: log(growing))
    seen = Highest(growing)
    study = write_study(growing, "grown", sets=100, seconds=2)
    growing.submit(study, "grown", CHECKPOINT_SECONDS="1")
    begun(growing, "grown")
    wait_for(lambda: replicas(growing) == MOST, said=lambda: log(growing))
    growing.kubectl("delete", "pod", pod_of(growing, "autoscaler"), "--wait=false")
    growing.kubectl("delete", "pod", pod_of(growing, "worker"), "--grace-period=0", "--force")
    growing.helm("upgrade")
    assert replicas(growing) == MOST, "an upgrade must not change what the autoscaler decides"
    found = growing.wait("grown")
    assert found["attempt"] == 1
    wait_for(lambda: replicas(growing) == 0 and not growing.pods("worker"), said=lambda: log(growing))
    assert seen.stop() == MOST
    assert_same_rows(growing, study, "grown")


def test_no_worker_that_runs_a_simulation_is_removed(growing: Service) -> None:
    """Seven simulations need several workers, and the last one needs one worker for much longer than the others."""
    model = "import time\n\ndef run(params, seed):\n    time.sleep(params['s'])\n    return {'y': [params['s']]}\n"
    times = [25, 25, 25, 25, 25, 25, 60]
    study = growing.write(
        "long", model, {"n_replicates": 1, "parameter_sets": [{"s": s, "i": i} for i, s in enumerate(times)]}
    )
    growing.submit(study, "long", CHECKPOINT_SECONDS="0")
    wait_for(lambda: replicas(growing) > 1, said=lambda: log(growing))
    wait_for(lambda: len(growing.pods("worker")) == 1 and growing.committed("long") == 6, said=lambda: log(growing))
    found = growing.wait("long")
    assert found["attempt"] == 1
    told = growing.mops("jobs", "logs", "long").out
    assert "tasks to run again" not in told, told
    assert "lost" not in told, told


def test_status_names_the_autoscaler_and_says_when_it_is_missing(growing: Service) -> None:
    wait_for(lambda: replicas(growing) == 0 and not growing.pods("worker"), said=lambda: log(growing))
    told = growing.mops("cluster", "status")
    assert "from 0 to 4 workers, as jobs need them" in told.out
    assert "no workers" not in told.err, "none is needed"
    growing.kubectl("scale", "deployment", "mops-autoscaler", "--replicas=0")
    try:
        wait_for(lambda: not growing.pods("autoscaler"))
        study = write_study(growing, "still", sets=2, seconds=0)
        growing.submit(study, "still")
        missing = "waits for the autoscaler, which starts workers: there is no pod"
        wait_for(lambda: missing in growing.mops("jobs", "status", "still").out)
    finally:
        growing.kubectl("scale", "deployment", "mops-autoscaler", "--replicas=1")
    growing.wait("still")


class Highest:
    """The most ready workers that were seen at once."""

    def __init__(self, service: Service):
        self._service, self._most, self._stopped = service, 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(1.0):
            found: dict[str, Any] = json.loads(self._service.kubectl("get", "deployment", "mops-worker", "-o", "json"))
            self._most = max(self._most, found["status"].get("readyReplicas", 0))

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self._most
