"""Dedicated Dask clusters: their objects, and the runner that creates and removes them. Kubernetes is simulated."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from kubernetes_in_memory import Kubernetes
from mops.errors import ClusterError, JobFailed, MopsError, ServiceError, Superseded, Terminated, UsageError
from mops.jobs.launch import Launch
from mops.k8s import dedicated, dedicated_lifecycle, names
from mops.k8s.chart import Dedicated, RunnerPod, ServiceConfig
from mops.k8s.dedicated import Size
from mops.k8s.runner_job import DEDICATED_FILES, DEDICATED_FOLDER, Request, runner_job
from mops.service.profile import Profile
from mops.service.service import Service
from mops.storage.job_options import PodOptions
from runner_jobs import REQUEST

STORAGE: Any = SimpleNamespace(url="abfs://studies/mops")
Object = dict[str, Any]


def pod(component: str, **container: Any) -> Object:
    mops = {names.NAME: "mops", names.INSTANCE: "mops", names.COMPONENT: component}
    labels = {**mops, "azure.workload.identity/use": "true"}
    spec = {"serviceAccountName": f"mops-{component}", "containers": [{"name": component, **container}]}
    return {"metadata": {"labels": labels, "annotations": {"owner": "us"}}, "spec": spec}


WORKER = pod(
    "worker",
    args=["$(DASK_SCHEDULER_ADDRESS)", "--name=$(DASK_WORKER_NAME)", "--memory-limit=3686MiB"],
    env=[
        {"name": "DASK_SCHEDULER_ADDRESS", "value": "tcp://mops-scheduler.studies.svc:8786"},
        {"name": "DASK_WORKER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MALLOC_TRIM_THRESHOLD_", "value": "65536"},
    ],
    lifecycle={"preStop": {"exec": {"command": ["python", "-m", "mops.worker.retire"]}}},
)
SCHEDULER = pod("scheduler", ports=[{"name": "scheduler", "containerPort": 8786}])


@pytest.fixture
def config() -> ServiceConfig:
    return ServiceConfig.model_validate(
        {
            "format": 1,
            "version": "0.1.0",
            "release": "mops",
            "storage": "abfs://studies/mops",
            "scheduler": "tcp://mops-scheduler.studies.svc:8786",
            "dashboard": {"service": "mops-scheduler", "port": 8787},
            "runner": {"image": "mops:1", "serviceAccount": "mops-runner", "automountServiceAccountToken": True},
            "worker": {"selector": {names.COMPONENT: "worker"}, "podTemplate": WORKER},
            "schedulerPodTemplate": SCHEDULER,
            "dedicated": {"enabled": True, "workers": 3},
        }
    )


def objects_of(config: ServiceConfig, size: str = "2:6", queue: str | None = None) -> list[Object]:
    return dedicated.objects(
        dedicated.spec_builder(), config, "dask-sir-7f3a2c", "studies", Size.parse(size), {names.JOB: "sir"}, queue
    )


# The objects


def test_pods_match_the_chart_except_for_the_operators_variables(config: ServiceConfig) -> None:
    cluster, _ = objects_of(config)
    worker, scheduler = cluster["spec"]["worker"], cluster["spec"]["scheduler"]
    for made, template in ((worker, WORKER), (scheduler, SCHEDULER)):
        (container,), (given,) = made["spec"]["containers"], template["spec"]["containers"]
        assert {**container, "env": None} == {**given, "env": None, "resources": {}}
        assert {**made["spec"], "containers": None} == {**template["spec"], "containers": None}
        assert made["metadata"]["annotations"] == {"owner": "us"}


def test_the_operator_sets_worker_names_and_mops_sets_the_scheduler_address(config: ServiceConfig) -> None:
    """The operator removes workers by the names that it gave them. Its scheduler address assumes cluster.local."""
    cluster, _ = objects_of(config)
    (container,) = cluster["spec"]["worker"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables == {
        "DASK_SCHEDULER_ADDRESS": "tcp://dask-sir-7f3a2c-scheduler.studies.svc:8786",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }


def test_pods_do_not_match_the_selectors_of_the_shared_cluster(config: ServiceConfig) -> None:
    """The Service of the chart would send the shared workers to this scheduler."""
    cluster, scaler = objects_of(config)
    assert "app.kubernetes.io" not in json.dumps([cluster, scaler])
    assert cluster["metadata"]["labels"] == {names.JOB: "sir"}
    assert cluster["spec"]["worker"]["metadata"]["labels"] == {"azure.workload.identity/use": "true"}


def test_only_the_workers_wait_in_a_queue(config: ServiceConfig) -> None:
    """A scheduler that waits would leave its workers without use."""
    spec = objects_of(config, queue="small")[0]["spec"]
    assert spec["worker"]["metadata"]["labels"][names.QUEUE] == "small"
    assert names.QUEUE not in spec["scheduler"]["metadata"]["labels"]


def test_ports_have_the_names_that_the_operator_expects(config: ServiceConfig) -> None:
    service = objects_of(config)[0]["spec"]["scheduler"]["service"]
    assert {port["name"]: port["port"] for port in service["ports"]} == {"tcp-comm": 8786, "http-dashboard": 8787}
    assert not any("targetPort" in port for port in service["ports"]), (
        "the containers of the chart have other names for their ports"
    )
    assert service["selector"] == {"dask.org/cluster-name": "dask-sir-7f3a2c", "dask.org/component": "scheduler"}


def test_commands_that_dask_has_removed_are_not_used(config: ServiceConfig) -> None:
    assert "dask-worker" not in json.dumps(objects_of(config))
    assert "dask-scheduler" not in json.dumps(objects_of(config))


def test_a_size_with_two_numbers_has_an_autoscaler(config: ServiceConfig) -> None:
    cluster, scaler = objects_of(config, "2:6")
    assert cluster["spec"]["worker"]["replicas"] == 2
    assert scaler["spec"] == {"cluster": "dask-sir-7f3a2c", "minimum": 2, "maximum": 6}
    (fixed,) = objects_of(config, "4")
    assert fixed["spec"]["worker"]["replicas"] == 4


def test_an_invalid_size_is_refused(subtests: pytest.Subtests) -> None:
    for text in ["0", "-1", "0:3", "4:2", "3:", ":3", "many", "1:2:3", ""]:
        with subtests.test(str(text)), pytest.raises(UsageError, match="is not a number of workers"):
            Size.parse(text)


def test_a_valid_size_is_parsed(subtests: pytest.Subtests) -> None:
    for text in ["1", "12", "1:1", "2:16"]:
        with subtests.test(str(text)):
            assert str(Size.parse(text)) == {"1:1": "1"}.get(text, text)


def test_the_name_of_a_cluster_is_valid_for_the_operator_and_for_services(subtests: pytest.Subtests) -> None:
    for job in ["a", "7-days", "x" * 60, f"{'y' * 24}-{'z' * 30}"]:
        with subtests.test(str(job)):
            from dask_kubernetes.operator.validation import validate_cluster_name

            name = names.cluster_name(job, "7f3a2c")
            validate_cluster_name(name)
            assert name[0].isalpha(), "the name of a Service starts with a letter"
            assert "--" not in name
            assert len(f"{name}-default-worker-0123456789") <= 63, "hostnames of workers are cut after 63 characters"


# The runner's Job


def test_a_job_contains_the_objects_that_its_runner_creates(config: ServiceConfig) -> None:
    objects = objects_of(config)
    job = runner_job(config.runner, request(dedicated=objects))
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][-2:] == ["--dedicated", DEDICATED_FOLDER]
    assert {"name": "own-cluster", "mountPath": DEDICATED_FOLDER, "readOnly": True} in container["volumeMounts"]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "own-cluster"]
    assert [item["path"] for item in volume["downwardAPI"]["items"]] == list(DEDICATED_FILES)
    assert json.loads(pod["metadata"]["annotations"]["mops/dask-objects"]) == objects
    assert job["metadata"]["annotations"][names.DEDICATED_CLUSTER] == "dask-sir-7f3a2c"


def test_a_job_on_the_shared_cluster_has_no_such_objects(config: ServiceConfig) -> None:
    assert "cluster" not in json.dumps(runner_job(config.runner, request()))


def request(dedicated: Sequence[Object] = ()) -> Request:
    return dataclasses.replace(REQUEST, job="sir", dedicated=dedicated)


# Services without dedicated clusters


def service(config: ServiceConfig, kubernetes: Kubernetes, size: Size | None = Size(1, 1)) -> Service:  # noqa: B008
    profile = Profile(namespace="studies", service=config)
    return Service(profile, kubernetes, config.runner, dedicated_size=size)  # type: ignore[arg-type]


def test_a_service_without_dedicated_clusters_is_refused_with_the_value_to_set(config: ServiceConfig) -> None:
    config = config.model_copy(update={"dedicated": Dedicated()})
    with pytest.raises(UsageError) as refused, service(config, Kubernetes()).launcher(STORAGE, "sir"):
        pass
    assert "dedicated.enabled" in str(refused.value)


def test_runners_without_a_token_are_refused(config: ServiceConfig) -> None:
    pod = RunnerPod.model_validate({"image": "mops:1", "serviceAccount": "mops-runner"})
    with pytest.raises(UsageError, match="token"):
        service(config.model_copy(update={"runner": pod}), Kubernetes()).check_dedicated()


def test_a_kubernetes_without_the_operator_is_refused_with_an_install_hint(config: ServiceConfig) -> None:
    with pytest.raises(ServiceError, match="has no Dask clusters") as refused:
        service(config, Kubernetes(serves=False)).check_dedicated()
    assert "dask-kubernetes-operator" in str(refused.value)


def test_without_dask_kubernetes_the_error_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dask_kubernetes.operator", None)
    with pytest.raises(UsageError, match=r"pip install 'mops-runner\[dedicated\]'"):
        dedicated.spec_builder()


def test_the_runner_connects_to_the_scheduler_of_its_cluster(config: ServiceConfig) -> None:
    kubernetes = Kubernetes()
    with service(config, kubernetes).launcher(STORAGE, "sir") as start:
        start({}, None)
    (job,) = kubernetes.jobs({})
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    name = job["metadata"]["annotations"][names.DEDICATED_CLUSTER]
    assert env["MODELOPS_SCHEDULER"] == f"tcp://{name}-scheduler.studies.svc:8786"
    assert name.startswith("dask-sir-")


# Options


@pytest.mark.parametrize(("dedicated", "workers"), [(True, None), (None, "3"), (True, "3")])
def test_a_local_job_cannot_have_a_dedicated_cluster(dedicated: bool | None, workers: str | None) -> None:
    with pytest.raises(UsageError, match="this machine runs the job"):
        Launch.of({"pod": PodOptions(dedicated=dedicated, workers=workers)})


def test_options_override_the_profile(config: ServiceConfig, subtests: pytest.Subtests) -> None:
    for profile, is_dedicated, workers, size in [
        (False, None, None, None),
        (False, True, None, "3"),
        (False, True, "2:5", "2:5"),
        (True, None, None, "3"),
        (True, None, "7", "7"),
        (True, False, None, None),
    ]:
        with subtests.test(profile=profile, is_dedicated=is_dedicated):
            found = service(config, Kubernetes(), None)
            found.profile = found.profile.model_copy(update={"dedicated": profile})
            given = found.with_options(PodOptions(dedicated=is_dedicated, workers=workers))
            assert given.dedicated_size == (Size.parse(size) if size else None)


def test_a_runner_of_a_dedicated_cluster_may_wait_in_another_queue_than_the_workers(
    config: ServiceConfig, subtests: pytest.Subtests
) -> None:
    for is_dedicated, runner_queue, queue, waits_in in [
        (True, "", "small", "small"),
        (True, "r", "small", "r"),
        (True, "r", None, None),
        (None, "r", "small", "small"),
    ]:
        with subtests.test(is_dedicated=is_dedicated, runner_queue=runner_queue):
            changed = config.model_copy(update={"dedicated": Dedicated(enabled=True, runnerQueue=runner_queue)})
            found = service(changed, Kubernetes(), None).with_options(PodOptions(dedicated=is_dedicated, queue=queue))
            with found.launcher(STORAGE, "sir") as start:
                start({}, "")
            (job,) = found.kubernetes.jobs({})
            assert job["metadata"]["labels"].get(names.QUEUE) == waits_in
            (checked,) = found.kubernetes.checked  # type: ignore[attr-defined]
            assert checked["metadata"]["labels"].get(names.QUEUE) == queue, "Kubernetes checks the form of --queue"
            annotations = job["spec"]["template"]["metadata"].get("annotations", {})
            cluster = json.loads(annotations.get("mops/dask-objects", "[]"))
            labels = [one["spec"]["worker"]["metadata"]["labels"] for one in cluster]
            assert [one.get(names.QUEUE) for one in labels] == [queue] * len(cluster)
            assert bool(cluster) == bool(is_dedicated)


def test_what_a_runner_of_a_dedicated_cluster_waits_for(config: ServiceConfig) -> None:
    found = service(config, Kubernetes()).with_options(PodOptions(dedicated=True))
    with found.launcher(STORAGE, "sir") as start:
        start({}, "")
    assert found.lacks("sir") == "waits for the Dask scheduler: there is no pod"
    held = {
        "metadata": {"name": "dask-sir-default-worker-1", "labels": {names.QUEUE: "small"}},
        "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
    }
    found.kubernetes.all_pods = [held]  # type: ignore[attr-defined]
    assert found.lacks("sir").endswith(": dask-sir-default-worker-1 is queued: in the queue small")


def test_a_number_of_workers_needs_a_dedicated_cluster(config: ServiceConfig) -> None:
    with pytest.raises(UsageError, match="add --dedicated"):
        service(config, Kubernetes(), None).with_options(PodOptions(workers="4"))


def test_the_state_of_a_cluster_follows_from_its_pods() -> None:
    def of(component: str, ready: bool) -> Object:
        conditions = [{"type": "Ready", "status": str(ready)}]
        return {"metadata": {"labels": {names.DASK_COMPONENT: component}}, "status": {"conditions": conditions}}

    assert dedicated.state("dask-x", []) == "dask-x: no pods yet; the operator of dask-kubernetes creates them"
    pods = [of("scheduler", True), of("worker", True), of("worker", False)]
    assert dedicated.state("dask-x", pods) == "dask-x: scheduler ready, 1 of 2 workers ready"
    assert "scheduler not ready, 0 of 0" in dedicated.state("dask-x", [of("scheduler", False)])

    for pod in pods[1:]:
        pod["metadata"]["labels"][names.QUEUE] = "small"
    said = dedicated.state("dask-x", pods)
    assert said == "dask-x: scheduler ready, 1 of 2 workers ready; no Kueue has taken them into queue 'small'"
    for pod in pods[1:]:
        pod["metadata"]["labels"][names.KUEUE_HOLDS] = "true"
    assert dedicated.state("dask-x", pods) == "dask-x: scheduler ready, 1 of 2 workers ready"
    pods[2]["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    assert dedicated.state("dask-x", pods) == "dask-x: scheduler ready, 1 of 2 workers ready, 1 in the queue small"


# In the runner's pod


@pytest.fixture
def pod_files(config: ServiceConfig, tmp_path: Path) -> Path:
    """Return the folder with the files that a runner's pod mounts."""
    (tmp_path / "objects.json").write_text(json.dumps(objects_of(config)))
    (tmp_path / "job-name").write_text("sir-1")
    (tmp_path / "job-uid").write_text("uid-of-job")
    return tmp_path


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    found = Kubernetes()
    monkeypatch.setattr(dedicated_lifecycle, "connect", lambda namespace: found)
    for patience in ("_LOOK_S", "_COLLECTION_S", "_OPERATOR_S"):
        monkeypatch.setattr(dedicated_lifecycle, patience, 0.01)
    return found


def test_the_job_owns_the_cluster_and_the_cluster_owns_its_autoscaler(pod_files: Path, kubernetes: Kubernetes) -> None:
    with dedicated_lifecycle.dedicated_cluster(pod_files):
        cluster, scaler = kubernetes.objects.values()
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "sir-1", "uid": "uid-of-job"}
    assert cluster["metadata"]["ownerReferences"] == [job]
    (owner,) = scaler["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DaskCluster", "dask-sir-7f3a2c", "uid-1")


@pytest.mark.parametrize(
    ("end", "gone"),
    [
        (None, True),
        (JobFailed("it failed"), True),
        (UsageError("no such model"), True),
        (typer.Exit(1), True),
        (ZeroDivisionError(), True),
        (Superseded("by another"), False),
        (ClusterError("no scheduler"), False),
        (Terminated("sir", signal.SIGTERM, where="here"), False),
    ],
    ids=str,
)
def test_a_cluster_is_removed_with_its_job_and_kept_for_the_next_pod(
    pod_files: Path, kubernetes: Kubernetes, end: Exception | None, gone: bool
) -> None:
    """In a pod, Superseded becomes exit code 0."""

    def run() -> None:
        with dedicated_lifecycle.dedicated_cluster(pod_files):
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(type(end)):
            run()
    assert (("DaskCluster", "dask-sir-7f3a2c") not in kubernetes.objects) == gone


def test_the_next_pod_finds_the_cluster(pod_files: Path, kubernetes: Kubernetes) -> None:
    for _ in range(2):
        with pytest.raises(ClusterError), dedicated_lifecycle.dedicated_cluster(pod_files):
            raise ClusterError("the scheduler has ended")
    assert kubernetes.n_created == 2


@pytest.mark.parametrize(
    "change", [{"deletionTimestamp": "now"}, {"ownerReferences": [{"uid": "another"}]}], ids=["is going", "another job"]
)
def test_a_cluster_that_is_being_removed_or_belongs_to_another_job_is_not_used(
    pod_files: Path, kubernetes: Kubernetes, change: Object
) -> None:
    """The operator found the old Service and created no new one. Then Kubernetes removed the old one."""
    metadata = {"name": "dask-sir-7f3a2c", "ownerReferences": [{"uid": "uid-of-job"}], **change}
    old = {"kind": "DaskCluster", "metadata": metadata}
    kubernetes.objects["DaskCluster", "dask-sir-7f3a2c"] = old
    removal = threading.Timer(0.05, kubernetes.delete, [old])
    removal.start()
    with dedicated_lifecycle.dedicated_cluster(pod_files):
        assert kubernetes.n_created == 2
    removal.join()


def test_crds_without_an_operator_are_an_error(pod_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helm does not remove CRDs, so the DaskCluster is created, but no operator creates its pods."""
    idle = Kubernetes(takes=False)
    monkeypatch.setattr(dedicated_lifecycle, "connect", lambda namespace: idle)
    monkeypatch.setattr(dedicated_lifecycle, "_LOOK_S", 0.01)
    monkeypatch.setattr(dedicated_lifecycle, "_OPERATOR_S", 0.05)
    with (
        pytest.raises(MopsError, match="no operator started DaskCluster") as refused,
        dedicated_lifecycle.dedicated_cluster(pod_files),
    ):
        raise AssertionError("the job must not start")
    assert refused.value.exit_code == 4


def test_a_cluster_that_cannot_be_removed_does_not_fail_the_job(
    pod_files: Path, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Object) -> None:
        raise ServiceError("out of reach")

    monkeypatch.setattr(kubernetes, "delete", refuse)
    with dedicated_lifecycle.dedicated_cluster(pod_files):
        pass
    assert "was not removed and stays until it is idle: out of reach" in caplog.text


def test_a_job_without_a_dedicated_cluster_needs_no_kubernetes() -> None:
    with dedicated_lifecycle.dedicated_cluster(None):
        pass
