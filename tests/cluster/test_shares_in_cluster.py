"""Several jobs on a cluster service at the same time."""

from __future__ import annotations

import pytest
from service_lab import Service, assert_same_rows, begun, wait_for, write_study
from test_owners_in_cluster import modeller

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def restarts(service: Service) -> dict[str, int]:
    """Return how often each worker was restarted, which happens when its memory is used up."""
    pods = service.objects("pods", "app.kubernetes.io/component=worker")
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}


def test_a_short_job_gets_its_share_next_to_a_long_one(service: Service) -> None:
    """Their simulations take equally long, so equal shares are equal numbers of simulations."""
    long, short = (write_study(service, name, sets=sets, seconds=0.2) for name, sets in (("long", 400), ("short", 40)))
    service.submit(long, "long", CHECKPOINT_SECONDS="1", TASK_SECONDS="0.5")
    begun(service, "long", groups=20)
    service.submit(short, "short", CHECKPOINT_SECONDS="1", TASK_SECONDS="0.5")
    begun(service, "short")
    began, before = service.committed("long"), restarts(service)
    wait_for(lambda: service.committed("short") == 40, said=lambda: service.what_is_wrong("short"))
    meanwhile = service.committed("long") - began
    assert meanwhile < 3 * 40, f"the long job got {meanwhile} parameter sets while the short one got 36"
    assert service.job("long").status().state == "running"
    service.wait("short")
    service.wait("long", patience_s=400)
    assert restarts(service) == before, "two jobs use too much memory for the workers"
    assert_same_rows(service, long, "long")
    assert_same_rows(service, short, "short")


def test_a_person_with_three_jobs_gets_as_much_as_a_person_with_one(service: Service) -> None:
    """If all jobs were equal, ``ada`` would get three times as much as ``bob``."""
    settings = {"MODELOPS_JOB_CHECKPOINT_SECONDS": "1", "MODELOPS_JOB_TASK_SECONDS": "0.5"}
    hers = ("ada-1", "ada-2", "ada-3")
    many, few = (write_study(service, name, sets=sets, seconds=0.2) for name, sets in (("many", 400), ("few", 100)))
    with modeller(service, "ada") as ada, modeller(service, "bob") as bob:
        for name in hers:
            service.mops("jobs", "submit", many, "--name", name, **ada, **settings)
        for name in hers:
            begun(service, name)
        service.mops("jobs", "submit", few, "--name", "bob", **bob, **settings)
        begun(service, "bob")
        before = sum(map(service.committed, hers))
        wait_for(lambda: service.committed("bob") == 100, said=lambda: service.what_is_wrong("bob"))
        meanwhile = sum(map(service.committed, hers)) - before
        for name in hers:
            service.mops("jobs", "cancel", name, **ada)
        assert meanwhile < 2 * 96, f"ada got {meanwhile} parameter sets while bob got 96"
        for name in hers:
            service.wait(name, "cancelled")
        service.wait("bob")
