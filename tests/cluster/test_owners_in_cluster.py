"""Persons of a service, as the real Kubernetes knows them, and the jobs of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from service_lab import Service, begun, wait_for, write_study
from test_views_in_cluster import person

from mops.k8s import names

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

CHANGES = (("cancel",), ("resume", "--take-over"), ("delete", "--yes"))


@contextmanager
def modeller(service: Service, name: str) -> Iterator[dict[str, str]]:
    """Create a person with the Role for clients; yield the environment of the person."""
    with person(service, name) as env:
        bind(service, name, "mops-client")
        try:
            yield env
        finally:
            service.kubectl("delete", "rolebinding", f"{name}-mops-client")  # another test may use the name


def bind(service: Service, name: str, role: str) -> None:
    """Give a person another Role, which ends with the namespace."""
    account = f"{service.namespace}:{name}"
    service.kubectl("create", "rolebinding", f"{name}-{role}", "--role", role, "--serviceaccount", account)


def test_only_a_manager_with_force_changes_the_job_of_another_person(service: Service) -> None:
    study = write_study(service, "owned", sets=400, seconds=0.5)
    with modeller(service, "ada") as ada, modeller(service, "bob") as bob:
        service.mops("jobs", "submit", study, "--name", "owned", **ada, MODELOPS_JOB_CHECKPOINT_SECONDS="0")
        owner, other = (f"system:serviceaccount:{service.namespace}:{name}" for name in ("ada", "bob"))
        assert service.status("owned")["owner"] == owner
        assert owner in service.mops("jobs", "list").out
        (runner,) = service.objects("jobs", "mops/job=owned")
        assert runner["metadata"]["annotations"][names.OWNER] == owner
        begun(service, "owned")

        for verb, *options in CHANGES:
            told = service.mops("jobs", verb, "owned", *options, **bob, code=2)
            assert f"job 'owned' belongs to {owner}, and you are {other}\n" in told.err
            assert f"mops jobs {verb} owned" in told.err
            told = service.mops("jobs", verb, "owned", *options, "--force", **bob, code=2)
            assert f"you are {other}, who may not change jobs of others\n" in told.err
            assert "add you to clients.managers of the chart's values" in told.err
        assert service.status("owned")["state"] == "running"
        assert not service.status("owned")["cancel_requested"]

        bind(service, "bob", "mops-manager")
        service.mops("jobs", "cancel", "owned", **bob, code=2)
        service.mops("jobs", "cancel", "owned", "--force", **bob)
        service.wait("owned", "cancelled")
        service.mops("jobs", "resume", "owned", **bob, code=2)
        service.mops("jobs", "resume", "owned", "--force", **bob)
        wait_for(lambda: service.status("owned")["attempt"] == 2)
        assert service.status("owned")["owner"] == owner, "a resume does not change the owner"
        service.mops("jobs", "cancel", "owned", **ada)
        service.wait("owned", "cancelled")
        service.mops("jobs", "delete", "owned", "--yes", **bob, code=2)
        service.mops("jobs", "delete", "owned", "--yes", "--force", **bob)
    assert "owned" not in service.mops("jobs", "list").out
