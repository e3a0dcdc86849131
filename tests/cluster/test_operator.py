"""What the operator of a service does to it, while jobs run."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from service_lab import CHART, Service, assert_same_rows, begun, installed, wait_for, write_study

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def operated(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service of its own: these tests change and remove it."""
    with installed("mops-operated", cluster) as found:
        yield found


def test_a_quota_of_jobs_refuses_a_submit_and_leaves_no_job(operated: Service) -> None:
    """The job stayed in the storage as `submitted`, without a runner."""
    study = write_study(operated, "refused", sets=2, seconds=0)
    operated.kubectl("create", "quota", "no-jobs", "--hard=count/jobs.batch=0")
    try:
        wait_for(lambda: "count/jobs.batch" in operated.kubectl("get", "quota", "no-jobs", "-o", "jsonpath={.status}"))
        told = operated.mops("jobs", "submit", study, "--name", "refused", code=4)
    finally:
        operated.kubectl("delete", "quota", "no-jobs")
    assert "exceeded quota: no-jobs" in told.err
    assert "hint: ask the cluster's operator about the quota or policy that this names" in told.err
    assert "refused" not in operated.mops("jobs", "list").out
    operated.submit(study, "refused")
    operated.wait("refused")


@pytest.mark.parametrize("role", ["runner", "worker"])
def test_helm_test_says_that_runners_cannot_write_to_the_storage_or_workers_not_read_it(
    operated: Service, role: str
) -> None:
    """With a wrong key of workers, the test passed, and the first job failed."""
    name = "AZURE_STORAGE_CONNECTION_STRING"
    wrong = re.sub("AccountKey=[^;]*", f"AccountKey={base64.b64encode(bytes(64)).decode()}", operated.env[name])
    operated.kubectl("create", "secret", "generic", "wrong", f"--from-literal={name}={wrong}")
    storage = operated.values["storage"]
    secret = {"runner": "storage-workers", "worker": "wrong"}[role]  # the first has a token that only reads
    operated.values["storage"] = storage | {role: {"existingSecret": secret}}
    try:
        operated.helm("upgrade")
        ran = operated.run("helm", "test", "mops", "-n", operated.namespace, "--timeout", "3m")
    finally:
        operated.values["storage"] = storage
        operated.helm("upgrade")
        operated.kubectl("delete", "secret", "wrong")
    assert ran.code != 0
    said = ran.out + ran.err
    assert "error: the storage refuses" in said, said
    assert f"at: {operated.url}/{'probe/' if role == 'runner' else ''}" in said
    assert f"pod mops-test-{'storage' if role == 'runner' else 'worker'} failed" in said


def test_an_upgrade_to_a_wrong_image_is_refused_and_jobs_run_on(operated: Service) -> None:
    """The upgrade stopped the scheduler, and then could not start it."""
    study = write_study(operated, "upgraded", sets=60, seconds=0.5)
    operated.submit(study, "upgraded", CHECKPOINT_SECONDS="0")
    begun(operated, "upgraded")
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in operated.objects("pods")}
    values = operated.home / "values.yaml"
    wrong = ("--set", "image.tag=absent", "--timeout", "20s")
    ran = operated.run("helm", "upgrade", "mops", CHART, "-n", operated.namespace, "-f", str(values), "--wait", *wrong)
    assert ran.code != 0
    assert "pre-upgrade hooks failed" in ran.err
    check = operated.kubectl("get", "pod", "mops-image-check", "-o", "jsonpath={.status.containerStatuses[0].state}")
    assert "ErrImageNeverPull" in check
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in operated.objects("pods")}
    assert before.items() <= after.items()
    operated.wait("upgraded")
    assert operated.status("upgraded")["attempt"] == 1
    assert_same_rows(operated, study, "upgraded")
    operated.helm("upgrade")
    assert "mops-image-check" not in operated.kubectl("get", "pods", "-o", "name")


def test_a_job_submitted_during_a_failed_atomic_upgrade_starts_after_the_rollback(operated: Service) -> None:
    """The scheduler does not start with this configuration, and the image has no fault."""
    study = write_study(operated, "meanwhile", sets=4, seconds=0)
    (scheduler,) = operated.pods("scheduler")
    wrong = "dask.config.distributed.scheduler.preload={no_such_module}"
    values = operated.home / "values.yaml"
    options = ("-n", operated.namespace, "-f", values, "--atomic", "--timeout", "90s", "--set", wrong)
    with ThreadPoolExecutor(1) as thread:
        upgrade = thread.submit(operated.run, "helm", "upgrade", "mops", CHART, *options)
        wait_for(lambda: upgrade.done() or operated.pods("scheduler") not in ([], [scheduler]))
        operated.submit(study, "meanwhile")
        wait_for(lambda: operated.runner_pods("meanwhile"))
        assert not upgrade.done(), upgrade.result()
        ran = upgrade.result()
    assert ran.code != 0
    assert "rolled back" in ran.err, ran.err
    operated.wait("meanwhile")
    assert operated.status("meanwhile")["attempt"] == 1
    assert_same_rows(operated, study, "meanwhile")


def test_an_uninstall_ends_the_runners_and_their_jobs_resume_on_a_new_release(operated: Service) -> None:
    """Runners outlived their service, with its credentials."""
    study = write_study(operated, "orphan", sets=40, seconds=0.5)
    operated.submit(study, "orphan", CHECKPOINT_SECONDS="0")
    begun(operated, "orphan")
    removed = operated.run("helm", "uninstall", "mops", "-n", operated.namespace, "--wait")
    assert removed.code == 0, removed.err
    assert "mops-tls" not in operated.kubectl("get", "secrets", "-o", "name")
    wait_for(lambda: not operated.objects("jobs", "mops/job") and not operated.objects("pods", "mops/job"))
    done = operated.committed("orphan")
    told = operated.mops("cluster", "status", code=4)
    assert "service 'mops' no longer exists" in told.err
    assert "kubectl scale" not in told.err, "the Deployment has been removed"
    operated.helm("install")
    operated.mops("jobs", "resume", "orphan", "--take-over")  # its last sign of life counts for 45 s
    operated.wait("orphan")
    assert operated.status("orphan")["attempt"] == 2
    assert done >= 4
    assert_same_rows(operated, study, "orphan")
