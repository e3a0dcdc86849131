"""Jobs on a cluster service have the same rows as on a laptop, and problems of Kubernetes are reported."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_lab import MODEL, MOPS, ROOT, TARGETS, Service, assert_same_rows, begun, wait_for, write_study

from mops.jobs.job import open_job
from rows import rows_of
from wheels import wheel

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]


def some_of_the_example(service: Service, sets: int) -> Path:
    """Return a study of the first parameter sets of the example: all of them take minutes."""
    project = service.home / "example"
    shutil.copytree(ROOT / "examples" / "sir", project, ignore=shutil.ignore_patterns("mops-storage", "__pycache__"))
    study = project / "study.json"
    whole = json.loads(study.read_text())
    study.write_text(json.dumps(whole | {"parameter_sets": whole["parameter_sets"][:sets]}))
    return study


def test_the_example_has_the_same_rows_as_on_a_laptop(service: Service) -> None:
    study = some_of_the_example(service, 6)
    told = service.mops("jobs", "submit", study, "--name", "sir", "--wait")
    assert told.out.splitlines()[0] == "sir"
    assert f"Job sir-1 in namespace {service.namespace}" in told.err
    status = service.status("sir")
    assert (status["state"], status["groups"], status["counts"]["simulations_good"]) == ("succeeded", 6, 30)
    here = service.home / "here"
    service.mops("jobs", "submit", study, "--name", "sir", "--local", "--storage", here)
    assert rows_of(service.job("sir")) == rows_of(open_job("sir", str(here)))
    assert service.job("sir").verify() == []
    listed = service.mops("jobs", "list", "--json").json
    assert {job["job"]: job["state"] for job in listed}["sir"] == "succeeded"
    assert "attempt 1 by process" in service.mops("jobs", "logs", "sir").out


def test_a_runner_that_is_stopped_commits_finished_groups(service: Service) -> None:
    """Without the signal, its checkpoint stays open for an hour."""
    study = write_study(
        service, "asked", sets=300, seconds=0.2
    )  # a minute: the live record is written every ten seconds
    service.submit(study, "asked", CHECKPOINT_SECONDS="3600", TASK_SECONDS="0.5", BATCH_SIZE="300")
    wait_for(lambda: (live := service.status("asked")["live"]) and live["finished"]["simulations_good"] > 20)
    assert service.committed("asked") <= 1  # the first group, which is committed at once
    (pod,) = service.runner_pods("asked")
    service.kubectl("delete", "pod", pod)
    wait_for(lambda: service.job("asked").status().attempt == 2, said=lambda: service.what_is_wrong("asked"))
    assert service.committed("asked") > 8
    service.mops("jobs", "cancel", "asked")
    service.wait("asked", "cancelled")


def test_a_job_can_be_cancelled_and_resumed(service: Service) -> None:
    study = write_study(service, "stopped", sets=160, seconds=0.2)  # 32 s: two commands must come in time
    service.submit(
        study, "stopped", "--deadline", "3000", "--keep", "1000", "--memory", "700Mi", CHECKPOINT_SECONDS="1"
    )
    begun(service, "stopped")
    second = service.mops("jobs", "resume", "stopped", code=2)
    assert "is running" in second.err
    service.mops("jobs", "cancel", "stopped")
    service.wait("stopped", "cancelled")
    (job,) = service.objects("jobs", "mops/job=stopped")
    wait_for(lambda: service.status("stopped")["kubernetes"]["word"] == "ended")
    assert job["status"].get("failed", 0) == 0, "Kubernetes has restarted a cancelled job"
    told = service.mops("jobs", "resume", "stopped", "--wait")
    assert "Job stopped-2" in told.err
    jobs = {one["metadata"]["name"]: one["spec"] for one in service.objects("jobs", "mops/job=stopped")}
    for field in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        assert jobs["stopped-1"][field] == jobs["stopped-2"][field] in (3000, 1000), f"the resume dropped {field}"
    limits = [job["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] for job in jobs.values()]
    assert limits == ["700Mi", "700Mi"]
    assert_same_rows(service, study, "stopped")


def test_wait_exits_with_the_code_of_the_job(service: Service) -> None:
    model = MODEL.replace("draw = ", "assert params['beta'] > 0\n    draw = ")
    study = service.write(
        "partly", model, {"parameter_sets": [{"beta": beta, "seconds": 0} for beta in (0.0, 0.1, 0.2)]}
    )
    told = service.mops("jobs", "submit", study, "--name", "partly", "--wait", code=3)
    assert "1 x error: AssertionError" in told.out
    wait_for(
        lambda: service.objects("jobs", "mops/job=partly")[0]["status"].get("succeeded") == 1,
        said=lambda: "Kubernetes does not count a partial job as complete",
    )
    service.mops("jobs", "retry", "partly", "--verdict", "all", "--name", "again", "--wait", code=3)


def test_only_settings_of_mops_reach_the_runner(service: Service) -> None:
    study = write_study(service, "settings", sets=3, seconds=0)
    service.mops(
        *("jobs", "submit", study, "--name", "settings", "--env", "COLOUR=red", "--wait"),
        MODELOPS_JOB_BATCH_SIZE="7",
        OTHER="secret",
    )
    (job,) = service.objects("jobs", "mops/job=settings")
    env = {one["name"]: one.get("value") for one in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["MODELOPS_JOB_BATCH_SIZE"] == "7"
    assert not {"OTHER", "COLOUR", "AZURE_STORAGE_CONNECTION_STRING"} & set(env)
    assert "AccountKey" not in str(job)
    assert service.job("settings").record.options.env == {"COLOUR": "red"}


def test_the_rounds_of_a_calibration_run_on_the_service_and_survive_the_command(service: Service) -> None:
    study = service.write(
        "fit", MODEL, {"n_replicates": 2, "targets": ["targets:total"], "parameter_sets": [{}]}, targets__py=TARGETS
    )
    space = study.with_name("space.json")
    space.write_text(json.dumps({"beta": {"min": 0, "max": 1}, "seconds": 1}))
    command = ["study", "calibrate", space, "--study", study, "--name", "fit", "--method", "tpe", "-n", "8"]
    killed = subprocess.Popen([MOPS, *command, "--rounds", "2"], env=service.env, cwd=service.home)
    wait_for(lambda: service.objects("jobs", "mops/job=fit-r1"), said=lambda: str(killed.poll()))
    killed.kill()
    killed.wait()
    told = service.mops(*command, "--rounds", "2")
    assert "round 2 ended: 8 sets scored, 0 failed" in told.err
    for job in ("fit-r1", "fit-r2"):
        assert len(service.objects("jobs", f"mops/job={job}")) == 1, "a round has started twice"
        assert service.status(job)["state"] == "succeeded"
    service.mops("calibrations", "delete", "fit", "--yes")
    assert service.mops("calibrations", "list", "--json").json == []


# --- problems of Kubernetes


def phase(service: Service, job: str, word: str) -> dict[str, Any]:
    """Wait until the Kubernetes phase of a job has this word."""

    def there() -> dict[str, Any] | None:
        found: dict[str, Any] = service.status(job)["kubernetes"]
        return found if found["word"] == word else None

    found = wait_for(there, said=lambda: service.what_is_wrong(job))
    assert found is not None
    return found


def test_a_suspended_job_is_shown_as_suspended_and_continues(service: Service) -> None:
    study = write_study(service, "paused", sets=120, seconds=0.2)
    service.submit(study, "paused", CHECKPOINT_SECONDS="1")
    begun(service, "paused")
    service.kubectl("patch", "job", "paused-1", "--patch", '{"spec": {"suspend": true}}')
    assert phase(service, "paused", "suspended")
    assert "suspended" in service.mops("jobs", "status", "paused").out
    service.kubectl("patch", "job", "paused-1", "--patch", '{"spec": {"suspend": false}}')
    service.wait("paused")
    assert_same_rows(service, study, "paused")


def test_a_job_that_fits_on_no_node_is_unschedulable_with_the_reason(service: Service) -> None:
    study = write_study(service, "huge", sets=2, seconds=0)
    service.submit(study, "huge", "--memory", "900Gi")
    found = phase(service, "huge", "unschedulable")
    assert "Insufficient memory" in found["reason"]
    assert "unschedulable: 0/1 nodes are available" in service.mops("jobs", "list").out
    cancelled = service.mops("jobs", "cancel", "huge")
    assert "deleted its Kubernetes Job huge-1" in cancelled.err
    assert service.status("huge")["state"] == "cancelled"


def test_a_wrong_image_is_reported(service: Service) -> None:
    """The ConfigMap of the service names the image, and a client reads it at each submit."""
    (config,) = service.objects("configmaps", "app.kubernetes.io/component=client")
    right = config["data"]["client.json"]
    wrong = right.replace(service.env["MOPS_TEST_SIR_IMAGE"], "localhost/mops:absent")

    def says(text: str) -> None:
        service.kubectl(
            "patch", "configmap", config["metadata"]["name"], "-p", json.dumps({"data": {"client.json": text}})
        )

    study = write_study(service, "unpulled", sets=2, seconds=0)
    says(wrong)
    try:
        service.submit(study, "unpulled")
        found = phase(service, "unpulled", "stuck")
        assert "ErrImageNeverPull" in found["reason"]
        assert "imagePullPolicy" in found["hint"]
        service.mops("jobs", "cancel", "unpulled")
    finally:
        says(right)


def test_a_missing_secret_is_reported(service: Service) -> None:
    study = write_study(service, "keyless", sets=2, seconds=0)
    text = service.kubectl("get", "secret", "storage", "-o", "yaml")
    service.kubectl("delete", "secret", "storage")
    try:
        service.submit(study, "keyless")
        found = phase(service, "keyless", "stuck")
        assert found["reason"].startswith('CreateContainerConfigError: secret "storage" not found')
        assert "Secret" in found["hint"]
    finally:
        service.kubectl("apply", "-f", "-", text=text)
    service.wait("keyless")  # as soon as the Secret is there


def test_an_unavailable_storage_is_reported(service: Service) -> None:
    """A runner first reads its job from the storage."""
    study = write_study(service, "adrift", sets=2, seconds=0)
    text = service.kubectl("get", "secret", "storage", "-o", "yaml")
    wrong = service.env["AZURE_STORAGE_CONNECTION_STRING"].replace(":10000/", ":10001/")
    service.kubectl("delete", "secret", "storage")
    service.kubectl("create", "secret", "generic", "storage", f"--from-literal=AZURE_STORAGE_CONNECTION_STRING={wrong}")
    try:
        service.submit(study, "adrift")

        def restarted() -> dict[str, Any] | None:
            now: dict[str, Any] = service.status("adrift")["kubernetes"]
            return now if now["restarts"] and now["reason"] else None  # once it runs again, the reason is empty

        found = wait_for(restarted, patience_s=300)
        assert found is not None
        assert "exit code 4" in found["reason"]
        assert "out of reach" in found["reason"] or "does not answer" in found["reason"], found
        service.mops("jobs", "cancel", "adrift")
    finally:
        service.kubectl("delete", "secret", "storage")
        service.kubectl("create", "-f", "-", text=_fresh(text))


def _fresh(text: str) -> str:
    secret = yaml.safe_load(text)
    secret["metadata"] = {"name": secret["metadata"]["name"]}
    return str(yaml.safe_dump(secret))


def test_a_queue_without_kueue_is_reported_and_the_job_starts(service: Service) -> None:
    """A Kueue of the test cluster serves only namespaces with the label ``kueue=on``."""
    study = write_study(service, "unqueued", sets=2, seconds=0)
    told = service.mops("jobs", "submit", study, "--name", "unqueued", "--queue", "small")
    assert "warning: no Kueue has taken the job into queue 'small': it starts at once" in told.err
    service.wait("unqueued")


def test_missing_rights_are_reported_at_connect(service: Service) -> None:
    service.kubectl("create", "serviceaccount", "visitor")
    token = service.kubectl("create", "token", "visitor").strip()
    config = yaml.safe_load(service.kubectl("config", "view", "--raw", "--minify"))
    config["users"][0]["user"] = {"token": token}
    path = service.home / "visitor.yaml"
    path.write_text(yaml.safe_dump(config))
    told = service.mops("connect", "-n", service.namespace, "--kubeconfig", path, code=4)
    assert "you may not use it" in told.err
    assert "clients.subjects" in told.err


# --- the model's dependencies


NEEDS = "def run(params, seed):\n    import tinydep\n    return {'a': [tinydep.FACTOR * params['beta']]}\n"


def test_the_dependencies_of_a_model_are_installed_in_the_pods(service: Service) -> None:
    study = service.write("needs", NEEDS, {"parameter_sets": [{"beta": 1.0}, {"beta": 2.0}]})
    (study.parent / "requirements.txt").write_text("--no-index\n./tinydep-1.0-py3-none-any.whl\n")
    wheel(study.parent, "tinydep", "1.0", tinydep="FACTOR = 3\n")
    service.mops("jobs", "submit", study, "--name", "needs", "--wait")
    assert sorted(service.job("needs").outputs("output").to_arrow()["a"].to_pylist()) == [3.0, 6.0]
    assert "made an environment of" in service.mops("jobs", "logs", "needs").out


def test_a_failed_install_fails_the_job_with_the_last_lines_of_the_installer(service: Service) -> None:
    study = service.write("lacking", NEEDS, {"parameter_sets": [{"beta": 1.0}]})
    (study.parent / "requirements.txt").write_text("--no-index\nno-such-package==1.0\n")
    service.submit(study, "lacking")
    found = phase(service, "lacking", "failed")
    assert "exit code 2" in found["reason"]
    service.wait("lacking", "failed")
    last_lines = "No matching distribution found for no-such-package==1.0"
    for log in ([], ["--pod"]):
        assert last_lines in service.mops("jobs", "logs", "lacking", *log).out
    (job,) = service.objects("jobs", "mops/job=lacking")
    assert job["status"]["failed"] == 1, "Kubernetes has retried an error that cannot go away"


# --- metrics


def metrics(service: Service, pod: str, port: int) -> dict[str, float]:
    """Return the metrics of a pod by name and labels."""
    path = f"/api/v1/namespaces/{service.namespace}/pods/{pod}:{port}/proxy/metrics"
    lines = service.kubectl("get", "--raw", path).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] not in ("", "#"))
    }


def test_runner_workers_and_scheduler_serve_metrics(service: Service) -> None:
    study = write_study(service, "measured", sets=200, seconds=0.2)
    service.submit(study, "measured", CHECKPOINT_SECONDS="1")
    begun(service, "measured")
    (runner,) = service.runner_pods("measured")
    assert metrics(service, runner, 9095)['mops_simulations_total{mops_job="measured",verdict="good"}'] > 0
    for worker in service.pods("worker"):
        assert metrics(service, worker, 8788)['mops_children{state="busy"}'] >= 0
    assert metrics(service, service.pods("scheduler")[0], 8787)['dask_scheduler_workers{state="idle"}'] >= 0
    service.mops("jobs", "cancel", "measured")
    service.wait("measured", "cancelled")
