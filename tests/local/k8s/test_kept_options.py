"""The job keeps the options of submit. Each resume and each retry uses them, except those that it overrides."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_in_memory import ASKED, at, in_memory, resume, submitted

from mops.cli import tidy
from mops.cli.options import Place
from mops.errors import JobError, ModelError, OptionsError, OtherFormat, ServiceError, UsageError
from mops.jobs import submit
from mops.jobs.derive import retry
from mops.jobs.job import Job
from mops.k8s import names
from mops.k8s.chart import Object
from mops.k8s.job_phase import GONE
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.job_options import JobOptions, PodOptions
from mops.storage.job_records import KeptOptions, keep_options, read_options


def options(mode: str) -> JobOptions:
    return JobOptions({"MODE": mode}, None, PodOptions())


def made(service: Service, name: str) -> Object:
    """Return the fields of a Kubernetes Job that options set."""
    job = in_memory(service).objects["Job", name]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    annotations = job["spec"]["template"]["metadata"].get("annotations", {})
    drawn = json.loads(annotations.get("mops/dask-objects", "[]"))
    return {
        "queue": job["metadata"]["labels"].get(names.QUEUE),
        "study": job["metadata"]["labels"].get(names.STUDY),
        "priority": pod.get("priorityClassName"),
        "memory": pod["containers"][0]["resources"]["limits"]["memory"],
        "deadline": spec.get("activeDeadlineSeconds"),
        "keep": spec.get("ttlSecondsAfterFinished"),
        "workers": [one["spec"]["minimum"] for one in drawn if one["kind"] == "DaskAutoscaler"],
    }


ALL = {
    "queue": "small",
    "study": "waves",
    "priority": "urgent",
    "memory": "2Gi",
    "deadline": 600,
    "keep": 60,
    "workers": [2],
}


def test_a_resumed_job_keeps_the_options_of_its_submit(service: Service, study: Path) -> None:
    """Regression: a resumed job lost its queue, its deadline, its memory and its dedicated cluster."""
    job = submitted(service, study)
    assert made(service, "waves-1") == ALL
    assert resume(job, service) == []
    assert made(service, "waves-2") == ALL


def test_a_resume_changes_the_options_of_later_resumes(service: Service, study: Path) -> None:
    job = submitted(service, study)
    assert resume(job, service, pod=PodOptions(memory="4Gi"), env={"MODE": "fast"}) == [
        "--env MODE: unset before, fast now",
        "--memory: 2Gi before, 4Gi now",
    ]
    assert made(service, "waves-2") == ALL | {"memory": "4Gi"}
    assert resume(job, service) == []
    assert made(service, "waves-3") == ALL | {"memory": "4Gi"}
    assert job.record.options.pod == ASKED, "what was submitted is never rewritten"


def test_a_job_that_leaves_its_dedicated_cluster_drops_the_size(service: Service, study: Path) -> None:
    job = submitted(service, study)
    resume(job, service, pod=PodOptions(dedicated=False))
    assert made(service, "waves-2") == ALL | {"workers": []}
    resume(job, service)
    assert made(service, "waves-3") == ALL | {"workers": []}


def test_a_job_stays_on_the_kind_of_cluster_that_its_submitters_profile_chose(service: Service, study: Path) -> None:
    """The person who resumes the job may have a different profile."""
    service.profile = service.profile.model_copy(update={"dedicated": True})
    job = submitted(service, study, PodOptions())
    service.profile = service.profile.model_copy(update={"dedicated": False})
    resume(job, service)
    assert names.DEDICATED_CLUSTER in in_memory(service).objects["Job", "waves-2"]["metadata"]["annotations"]


def test_a_retry_inherits_the_options_of_its_parent(
    service: Service, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELOPS_JOB_SLOTS", "1")
    job = submitted(service, study)
    resume(job, service, pod=PodOptions(memory="4Gi"), env={"MODE": "fast"})
    assert submit.run(job) == "partial"
    child = retry(job, "error", name="again", location=at(service), wait=False, pod=PodOptions(queue="large"))
    assert made(service, "again-1") == ALL | {"memory": "4Gi", "queue": "large"}
    assert child.record.options == JobOptions(
        {"MODE": "fast"}, None, ASKED.overridden(PodOptions("large", memory="4Gi"))
    )


def test_a_local_resume_refuses_named_service_options_and_ignores_kept_ones(
    service: Service, study: Path, storage: str
) -> None:
    job = submitted(service, study)
    with pytest.raises(UsageError, match="only a cluster service has --memory"):
        submit.resume(job, pod=PodOptions(memory="4Gi"), settings=Settings(storage=storage, slots=1), local=True)
    resumed = submit.resume(job, settings=Settings(storage=storage, slots=1), local=True)
    assert resumed.status().state == "partial"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "PYTHONHASHSEED", "MODELOPS_JOB_SLOTS", "bad-name"])
def test_a_service_refuses_a_variable_that_every_runner_refuses(service: Service, study: Path, name: str) -> None:
    """Regression: the job kept the name, and every runner refused it. A later command cannot remove a variable."""
    job = submitted(service, study)
    for start in (
        lambda: resume(job, service, env={name: None}),
        lambda: submit.submit(study, name="other", location=at(service), wait=False, env={name: None}),
    ):
        with pytest.raises(OptionsError, match=f"--env {name}: "):
            start()
    resume(job, service, env={"OF_THE_PODS": None})
    assert read_options(job.files, job.record).options.env == {"OF_THE_PODS": None}


def test_a_kept_interpreter_does_not_prevent_a_job_on_a_service(service: Service, study: Path, storage: str) -> None:
    """Regression: a service refused each resume and retry because of a kept option that no command can unset."""
    here = Settings(storage=storage, slots=1)
    job = submit.submit(study, name="waves", python=sys.executable, settings=here, local=True)
    said: list[str] = []
    retried = retry(job, "error", location=at(service), wait=False, on_start=lambda _, changes: said.extend(changes))
    set_aside = f"--python: {sys.executable} before, unset now"
    assert set_aside in said
    assert retried.record.options.python is None

    in_memory(service).end_jobs()
    keep_options(retried.files, retried.record, KeptOptions(0, retried.record.options), job.record.options)
    assert set_aside in resume(retried, service)
    assert resume(retried, service) == []
    assert read_options(retried.files, retried.record).options.python is None, "the pod's runner reads this"
    with pytest.raises(OptionsError, match="is on this machine"):
        resume(retried, service, python=sys.executable)


def test_of_two_commands_at_once_one_is_refused(service: Service, study: Path) -> None:
    """Otherwise a job would run with options that its user has not seen."""
    job = submitted(service, study)
    seen = read_options(job.files, job.record)
    keep_options(job.files, job.record, seen, options("a"))
    keep_options(job.files, job.record, seen, options("a"))  # the same write again, as after a lost answer
    with pytest.raises(JobError, match="another command has changed the options"):
        keep_options(job.files, job.record, seen, options("b"))
    assert read_options(job.files, job.record) == KeptOptions(1, options("a"))


def test_options_of_a_deleted_job_do_not_apply_to_a_new_job_of_the_same_name(service: Service, study: Path) -> None:
    """Regression: a resume wrote options after the deletion of its job, and a new job of that name used them."""
    job = submitted(service, study)
    deleted = replace(job.record, id="0" * 16)
    keep_options(job.files, deleted, KeptOptions(0, deleted.options), options("fast"))
    assert resume(job, service) == []
    assert read_options(job.files, job.record).options == job.record.options
    resume(job, service, env={"MODE": "slow"})
    assert read_options(job.files, job.record).options.env == {"MODE": "slow"}


def test_fields_that_a_newer_mops_has_added_are_ignored(service: Service, study: Path) -> None:
    """Regression: mops reported a new field of a pod option as a damaged record. Only a newer format is an error."""
    job = submitted(service, study)
    path = job.record.paths.options(1)
    resume(job, service, pod=PodOptions(memory="4Gi"))
    kept = read_options(job.files, job.record)
    record = json.loads(job.files.get(path))
    record["options"]["pod"]["node_pool"] = record["options"]["shell"] = record["note"] = "new"
    job.files.put(path, json.dumps(record).encode())
    assert read_options(job.files, job.record) == kept
    job.files.put(path, json.dumps(record | {"format": 99}).encode())
    with pytest.raises(OtherFormat, match="format 99"):
        read_options(job.files, job.record)


# Kubernetes Jobs that are no longer needed


def test_a_job_of_another_storage_is_left_alone(service: Service, study: Path) -> None:
    """Regression: cancel, delete and --take-over removed the Kubernetes Job of a job in another storage."""
    submit.submit(study, name="waves", location=at(service), wait=False)
    other = replace(service, results="abfs://other/place")
    assert other.phase("waves") == GONE
    assert other.delete_idle_jobs("waves") == []
    other.remove_runner("waves")
    assert list(in_memory(service).objects) == [("Job", "waves-1")]
    assert service.delete_idle_jobs("waves") == ["waves-1"]


def test_a_deleted_job_leaves_the_queue(
    service: Service, study: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its Kubernetes Job stayed in the queue, and days later a runner started and found no job."""
    job = submit.submit(study, name="waves", location=at(service), wait=False)
    assert list(in_memory(service).objects) == [("Job", "waves-1")]
    monkeypatch.setattr(tidy, "service_with", lambda files, *, local: None if local else service)
    tidy.delete_([job.name], yes=True, place=Place(storage))
    assert in_memory(service).objects == {}


def test_a_runner_on_a_node_that_does_not_answer_is_replaced_by_a_resume(service: Service, study: Path) -> None:
    """Regression: Kubernetes waits without limit for the pod to end, and resume refused a second runner."""
    job = submit.submit(study, name="waves", location=at(service), wait=False)
    in_memory(service).all_pods = [
        {
            "metadata": {
                "name": "waves-1-x",
                "labels": {names.POD_OF_JOB: "waves-1"},
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": "n7"},
            "status": {"phase": "Running"},
        }
    ]
    assert "its node n7 does not answer" in service.phase(job.name).reason
    resume(job, service)
    assert list(in_memory(service).objects) == [("Job", "waves-2")]


MODEL_THAT_A_VARIABLE_BREAKS = """
import os
assert os.environ.get("MODE") != "broken"

def run(params, seed):
    return {"y": [params["x"]]}
"""


def test_a_refused_take_over_keeps_the_old_runner(
    service: Service, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: mops deleted the runner before it checked the model and the options, so the job had no runner."""
    (study.parent / "model.py").write_text(MODEL_THAT_A_VARIABLE_BREAKS)
    job = submit.submit(study, name="waves", location=at(service), wait=False)
    with pytest.raises(ModelError):
        resume(job, service, take_over=True, env={"MODE": "broken"})
    assert list(in_memory(service).objects) == [("Job", "waves-1")]

    def another_command(_: str) -> Object | None:
        submitted = job.record.options
        keep_options(job.files, job.record, KeptOptions(0, submitted), replace(submitted, env={"MODE": "a"}))
        return in_memory(service).config

    with monkeypatch.context() as patch:
        patch.setattr(in_memory(service), "config_map", another_command)
        with pytest.raises(JobError, match="another command has changed the options"):
            resume(job, service, take_over=True, env={"MODE": "b"})
    assert list(in_memory(service).objects) == [("Job", "waves-1")]
    resume(job, service, take_over=True)
    assert (len(in_memory(service).objects), in_memory(service).n_created) == (1, 2), "the new one replaces the old one"


# The current state of the service


def upgraded(service: Service, **changes: Any) -> Object:
    """Return the ConfigMap of an upgraded chart."""
    described = service.profile.service.model_dump(mode="json", by_alias=True)
    return {"metadata": {"name": "mops-client"}, "data": {"client.json": json.dumps(described | changes)}}


def test_a_runner_starts_with_the_current_values_of_the_chart(service: Service) -> None:
    """Regression: the runner used the image from the time of 'mops connect', which may no longer exist."""
    runner = service.profile.service.runner.model_dump(mode="json", by_alias=True) | {"image": "mops:2"}
    in_memory(service).config = upgraded(service, runner=runner)
    now = service.renewed()
    assert (now.pod.image, now.profile.service.runner.image) == ("mops:2", "mops:2")
    assert now.with_options(PodOptions(memory="3Gi")).pod.image == "mops:2"


def test_a_removed_service_is_an_error(service: Service) -> None:
    in_memory(service).config = None
    with pytest.raises(ServiceError, match="service 'mops' no longer exists"):
        service.renewed()


def test_a_job_that_kubernetes_refuses_is_not_made(service: Service, study: Path) -> None:
    """It stayed in the storage as `submitted`, without a runner."""
    in_memory(service).refuses = True
    with pytest.raises(ServiceError, match="exceeded quota"):
        submit.submit(study, name="waves", location=at(service), wait=False)
    in_memory(service).refuses = False
    submit.submit(study, name="waves", location=at(service), wait=False)  # the name is free


def test_a_job_whose_runner_is_refused_after_the_check_exists_and_can_be_resumed(service: Service, study: Path) -> None:
    in_memory(service).fails_after_check = True
    with pytest.raises(ServiceError, match="exceeded quota") as raised:
        submit.submit(study, name="waves", location=at(service), wait=False)
    assert raised.value.hint == "the job exists: start it later with 'mops jobs resume waves'"
    in_memory(service).fails_after_check = False
    resume(Job(at(service).open(), "waves"), service)
    assert pools_of(service, "waves-1") == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_queue_without_kueue_is_reported(
    service: Service, study: Path, caplog: pytest.LogCaptureFixture, is_there: bool
) -> None:
    in_memory(service).has_kueue = is_there
    submit.submit(study, name="waves", location=at(service), wait=False, pod=PodOptions(queue="small"))
    said = "no Kueue has taken the job into queue 'small': it starts at once"
    assert (said in caplog.messages) == (not is_there)


@pytest.mark.parametrize("text", ["", "{}", "not JSON"])
def test_an_unreadable_description_is_an_error_with_its_configmap(service: Service, text: str) -> None:
    in_memory(service).config = {"metadata": {"name": "mops-client"}, "data": {"client.json": text}}
    with pytest.raises(UsageError, match="does not describe a mops service") as raised:
        service.renewed()
    assert "ConfigMap mops-client" in str(raised.value.where)


def test_a_newer_charts_description_asks_for_a_newer_mops(service: Service) -> None:
    in_memory(service).config = upgraded(service, format=2, version="9.0")
    with pytest.raises(OtherFormat, match=r"is from mops 9\.0"):
        service.renewed()


def pools_of(service: Service, name: str) -> dict[str, str]:
    """Return the variables of a runner that name pools."""
    (container,) = in_memory(service).objects["Job", name]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if one["name"].endswith("POOL")}


def with_pools(service: Service, pools: dict[str, str]) -> None:
    """Let the chart describe pools of workers, and where simulations run again that exceeded their memory."""
    configured = service.profile.service.model_copy(update={"pools": pools})
    service.profile = service.profile.model_copy(update={"service": configured})


def test_a_job_keeps_its_pool_until_another_command_removes_it(service: Service, study: Path) -> None:
    with_pools(service, {"default": "large", "large": "large", "gpu": "gpu"})
    job = submitted(service, study, PodOptions(pool="gpu"))
    gpu = {"MODELOPS_JOB_POOL": "gpu", "MODELOPS_JOB_MEMORY_POOL": "gpu"}
    assert pools_of(service, "waves-1") == gpu
    resume(job, service)
    assert pools_of(service, "waves-2") == gpu
    resume(job, service, pod=PodOptions(pool=""))
    default = {"MODELOPS_JOB_POOL": "default", "MODELOPS_JOB_MEMORY_POOL": "large"}
    assert pools_of(service, "waves-3") == default
    resume(job, service)
    assert pools_of(service, "waves-4") == default


def test_a_job_waits_for_the_workers_of_its_pool(
    service: Service, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another pool had a worker, nothing said what the runner waits for."""

    def pods(labels: Object) -> list[Object]:
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        ready = {"metadata": {"name": "a", "labels": {}}, "spec": {}, "status": status}
        return [] if labels.get(names.POOL) == "gpu" else [ready]

    with_pools(service, {"default": "default", "gpu": "gpu"})
    monkeypatch.setattr(in_memory(service), "pods", pods)
    job = submitted(service, study, PodOptions(pool="gpu"))
    assert service.lacks("waves") == "waits for workers of pool gpu: there is no pod"
    resume(job, service, pod=PodOptions(pool=""))
    assert service.lacks("waves") == ""


def test_a_dedicated_cluster_has_no_pools(service: Service, study: Path) -> None:
    """Regression: its workers have no pool, so the runner would have waited for workers of the default one."""
    with_pools(service, {"default": "large", "large": "large"})
    job = submitted(service, study, PodOptions(pool="large"))
    resume(job, service, pod=PodOptions(dedicated=True))
    assert pools_of(service, "waves-2") == {}
    with pytest.raises(UsageError, match="a dedicated Dask cluster has no pools of workers"):
        resume(job, service, pod=PodOptions(pool="large"))


@pytest.mark.parametrize("field", ["pool", "memory_pool"])
def test_an_unknown_pool_in_the_environment_is_refused(service: Service, study: Path, field: str) -> None:
    with_pools(service, {"default": "large", "large": "large"})
    job = submitted(service, study, PodOptions())
    with pytest.raises(UsageError, match="no pool 'lareg' of workers") as caught:
        submit.resume(job, location=replace(at(service), settings=Settings(**{field: "lareg"})), wait=False)
    assert caught.value.where == f"MODELOPS_JOB_{field.upper()}"
    assert "large" in str(caught.value.hint)


def test_an_amount_of_memory_with_which_no_pod_starts_is_refused(service: Service) -> None:
    """Docker writes 512 MB as 512m, which Kubernetes reads as half a byte."""
    for memory in ("512m", "512", "0.5", "100k", "1e3", "2GB"):
        with pytest.raises(UsageError, match=f"'{memory}' is no amount of memory for a pod") as caught:
            service.with_options(PodOptions(memory=memory))
        assert caught.value.where == "--memory"
    assert service.with_options(PodOptions(memory="536870912")).pod.resources["limits"]["memory"] == "536870912"


def test_a_service_without_pools_says_so(service: Service, study: Path) -> None:
    with pytest.raises(UsageError, match="this service has no pools of workers"):
        submitted(service, study, PodOptions(pool="large"))
