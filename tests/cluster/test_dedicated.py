"""A job's dedicated Dask cluster: its objects, who creates it, and what a refusal says. Without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask_kubernetes
import pytest
import typer
import yaml
from chart_lab import CHART, EVERYTHING, MINIMAL, rendered

from kubernetes_in_memory import Kubernetes
from mops.cli import start_options
from mops.errors import ClusterError, JobFailed, MopsError, ServiceError, Superseded, Terminated, UsageError
from mops.k8s import dedicated, dedicated_lifecycle, names
from mops.k8s.chart import Dedicated, RunnerPod
from mops.k8s.chart import ServiceConfig as Described
from mops.k8s.dedicated import Size
from mops.k8s.runner_job import DEDICATED_FILES, DEDICATED_FOLDER, Request, runner_job
from mops.service.profile import Profile
from mops.service.service import Service
from mops.storage.job_options import PodOptions

EXAMPLE = CHART.parents[1] / "k8s" / "daskcluster.example.yaml"
STORAGE: Any = SimpleNamespace(url="abfs://studies/mops")
Object = dict[str, Any]


def pod(component: str, **container: Any) -> Object:
    labels = {
        names.NAME: "mops",
        names.INSTANCE: "mops",
        names.COMPONENT: component,
        "azure.workload.identity/use": "true",
    }
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
def described() -> Described:
    return Described.model_validate(
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


def drawn(described: Described, size: str = "2:6") -> list[Object]:
    return dedicated.objects(
        dedicated.spec_builder(), described, "dask-sir-7f3a2c", "studies", Size.parse(size), {names.JOB: "sir"}
    )


# What is drawn


@pytest.mark.k8s  # needs helm
def test_the_example_is_what_is_made_of_the_chart(tmp_path: Path) -> None:
    values = {"dedicated": {"enabled": True}, "worker": {"labels": {"cost-centre": "modelling"}}}
    service = Described.parse(json.dumps(rendered(tmp_path, values).client), "here")
    labels = {names.JOB: "sir-261005-ab12", names.OWNER: "ada", names.STUDY: "sir"}
    name = names.cluster_name(labels[names.JOB], "7f3a2c")
    made = dedicated.objects(dedicated.spec_builder(), service, name, "studies", Size(2, 16), labels)
    assert made == list(yaml.safe_load_all(EXAMPLE.read_text())), (
        f"write it anew:\n{yaml.safe_dump_all(made, sort_keys=False)}"
    )


@pytest.mark.k8s  # needs helm
@pytest.mark.parametrize("values", [MINIMAL, EVERYTHING], ids=["minimal", "everything"])
def test_the_operators_schema_takes_all_that_the_chart_renders_and_drops_nothing(tmp_path: Path, values: Path) -> None:
    """It takes `cpu: "2"` and not `cpu: 2`; what it does not know is dropped without a word."""
    numbers = {"worker": {"cpu": 2}, "scheduler": {"resources": {"requests": {"cpu": 2, "memory": 1 << 30}}}}
    service = Described.parse(json.dumps(rendered(tmp_path, numbers, values).client), "here")
    of_the_operator = [made for made in drawn(service) if made["apiVersion"] == dedicated.API_VERSION]
    assert len(of_the_operator) == 2
    for made in of_the_operator:
        assert list(misfits(made["spec"], schema_of(made["kind"]), made["kind"])) == []


def schema_of(kind: str) -> Object:
    """Return the schema of a kind's spec, as the operator's chart has it."""
    chart = Path(dask_kubernetes.__path__[0]) / "operator/deployment/helm/dask-kubernetes-operator"
    (version,) = yaml.safe_load((chart / f"crds/{kind.lower()}.yaml").read_text())["spec"]["versions"]
    schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}


def misfits(value: Any, schema: Object, path: str) -> Iterator[str]:
    """Yield where a value is not as a schema says, or holds what it does not know."""
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        yield f"{path}: {value!r} is no {schema['type']}"
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from misfits(item, schema["items"], f"{path}[{i}]")
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from [f"{path}.{name} is unknown"] if inner is None else misfits(item, inner, f"{path}.{name}")


def test_pods_are_the_charts_but_for_what_the_operator_needs(described: Described) -> None:
    cluster, _ = drawn(described)
    worker, scheduler = cluster["spec"]["worker"], cluster["spec"]["scheduler"]
    for made, template in ((worker, WORKER), (scheduler, SCHEDULER)):
        (container,), (given,) = made["spec"]["containers"], template["spec"]["containers"]
        assert {**container, "env": None} == {**given, "env": None, "resources": {}}
        assert {**made["spec"], "containers": None} == {**template["spec"], "containers": None}
        assert made["metadata"]["annotations"] == {"owner": "us"}


def test_the_operator_names_workers_and_we_their_scheduler(described: Described) -> None:
    """With a name of its own it could not remove a worker; its address supposes the domain cluster.local."""
    cluster, _ = drawn(described)
    (container,) = cluster["spec"]["worker"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables == {
        "DASK_SCHEDULER_ADDRESS": "tcp://dask-sir-7f3a2c-scheduler.studies.svc:8786",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }


def test_no_pod_is_taken_for_one_of_the_shared_cluster(described: Described) -> None:
    """The chart's Service would send the shared workers to this scheduler."""
    cluster, scaler = drawn(described)
    assert "app.kubernetes.io" not in json.dumps([cluster, scaler])
    assert cluster["metadata"]["labels"] == {names.JOB: "sir"}
    assert cluster["spec"]["worker"]["metadata"]["labels"] == {"azure.workload.identity/use": "true"}


def test_the_operator_finds_ports_by_their_names(described: Described) -> None:
    service = drawn(described)[0]["spec"]["scheduler"]["service"]
    assert {port["name"]: port["port"] for port in service["ports"]} == {"tcp-comm": 8786, "http-dashboard": 8787}
    assert not any("targetPort" in port for port in service["ports"]), "the chart's containers name theirs otherwise"
    assert service["selector"] == {"dask.org/cluster-name": "dask-sir-7f3a2c", "dask.org/component": "scheduler"}


def test_programs_that_dask_has_no_more_are_not_started(described: Described) -> None:
    assert "dask-worker" not in json.dumps(drawn(described))
    assert "dask-scheduler" not in json.dumps(drawn(described))


def test_a_size_with_two_numbers_has_an_autoscaler(described: Described) -> None:
    cluster, scaler = drawn(described, "2:6")
    assert cluster["spec"]["worker"]["replicas"] == 2
    assert scaler["spec"] == {"cluster": "dask-sir-7f3a2c", "minimum": 2, "maximum": 6}
    (fixed,) = drawn(described, "4")
    assert fixed["spec"]["worker"]["replicas"] == 4


def test_only_a_clusters_own_pods_and_its_jobs_runner_reach_it(described: Described) -> None:
    """Jobs of one namespace may be of people who do not know each other, and Dask runs whatever it is sent."""
    described = described.model_copy(update={"dedicated": Dedicated(enabled=True, network_policy=True, egress=True)})
    cluster, policy, scaler = drawn(described)
    assert [one["kind"] for one in (cluster, policy, scaler)] == ["DaskCluster", "NetworkPolicy", "DaskAutoscaler"]
    ours = {"podSelector": {"matchLabels": {"dask.org/cluster-name": "dask-sir-7f3a2c"}}}
    runner = {"podSelector": {"matchLabels": {names.COMPONENT: "runner", names.JOB: "sir"}}}
    spec = policy["spec"]
    assert spec["podSelector"] == ours["podSelector"]
    ((incoming,), (outgoing,)) = (spec["ingress"], spec["egress"])
    assert (incoming["from"], outgoing["to"]) == ([ours, runner], [ours])
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_where_nobody_restricts_egress_a_clusters_policy_does_not(described: Described) -> None:
    described = described.model_copy(update={"dedicated": Dedicated(enabled=True, network_policy=True)})
    assert drawn(described)[1]["spec"]["policyTypes"] == ["Ingress"]
    without = drawn(described.model_copy(update={"dedicated": Dedicated()}))
    assert [one["kind"] for one in without] == ["DaskCluster", "DaskAutoscaler"]


@pytest.mark.parametrize("text", ["0", "-1", "0:3", "4:2", "3:", ":3", "many", "1:2:3", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no number of workers"):
        Size.parse(text)


@pytest.mark.parametrize("text", ["1", "12", "1:1", "2:16"])
def test_a_size_is_read(text: str) -> None:
    assert str(Size.parse(text)) == {"1:1": "1"}.get(text, text)


@pytest.mark.parametrize("job", ["a", "7-days", "x" * 60, f"{'y' * 24}-{'z' * 30}"])
def test_a_clusters_name_fits_what_the_operator_and_services_allow(job: str) -> None:
    from dask_kubernetes.operator.validation import validate_cluster_name

    name = names.cluster_name(job, "7f3a2c")
    validate_cluster_name(name)
    assert name[0].isalpha(), "a Service's name begins with a letter"
    assert "--" not in name
    assert len(f"{name}-default-worker-0123456789") <= 63, "hosts of workers are the same in their first 63 characters"


# The runner's Job


def test_a_job_carries_what_its_pods_are_to_make(described: Described) -> None:
    objects = drawn(described)
    job = runner_job(described.runner, request(dedicated=objects))
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][-2:] == ["--dedicated", DEDICATED_FOLDER]
    assert {"name": "own-cluster", "mountPath": DEDICATED_FOLDER, "readOnly": True} in container["volumeMounts"]
    (volume,) = pod["spec"]["volumes"]
    assert [item["path"] for item in volume["downwardAPI"]["items"]] == list(DEDICATED_FILES)
    assert json.loads(pod["metadata"]["annotations"]["mops/dask-objects"]) == objects
    assert job["metadata"]["annotations"][names.DEDICATED_CLUSTER] == "dask-sir-7f3a2c"


def test_a_job_on_the_shared_cluster_says_nothing_of_it(described: Described) -> None:
    assert "cluster" not in json.dumps(runner_job(described.runner, request()))


def request(dedicated: Sequence[Object] = ()) -> Request:
    return Request(
        job="sir",
        number=1,
        release="mops",
        namespace="studies",
        storage="abfs://studies/mops",
        scheduler="tcp://there:8786",
        dedicated=dedicated,
    )


# Where there can be none


def service(described: Described, kubernetes: Kubernetes, size: Size | None = Size(1, 1)) -> Service:  # noqa: B008
    profile = Profile(namespace="studies", service=described)
    return Service(profile, kubernetes, described.runner, dedicated_size=size)  # type: ignore[arg-type]


def test_a_chart_without_them_says_what_its_operator_has_to_set(described: Described) -> None:
    described = described.model_copy(update={"dedicated": Dedicated()})
    with pytest.raises(UsageError) as refused, service(described, Kubernetes()).launcher(STORAGE, "sir"):
        pass
    assert "dedicated.enabled" in str(refused.value)


def test_runners_without_a_token_say_so(described: Described) -> None:
    pod = RunnerPod.model_validate({"image": "mops:1", "serviceAccount": "mops-runner"})
    with pytest.raises(UsageError, match="token"):
        service(described.model_copy(update={"runner": pod}), Kubernetes()).check_dedicated()


def test_a_kubernetes_without_the_operator_says_what_to_install(described: Described) -> None:
    with pytest.raises(ServiceError, match="has no Dask clusters") as refused:
        service(described, Kubernetes(serves=False)).check_dedicated()
    assert "dask-kubernetes-operator" in str(refused.value)


def test_without_dask_kubernetes_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dask_kubernetes.operator", None)
    with pytest.raises(UsageError, match=r"pip install 'mops-runner\[dedicated\]'"):
        dedicated.spec_builder()


def test_the_runner_is_sent_to_the_clusters_scheduler(described: Described) -> None:
    kubernetes = Kubernetes()
    with service(described, kubernetes).launcher(STORAGE, "sir") as start:
        start({}, None)
    (job,) = kubernetes.jobs({})
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    name = job["metadata"]["annotations"][names.DEDICATED_CLUSTER]
    assert env["MODELOPS_SCHEDULER"] == f"tcp://{name}-scheduler.studies.svc:8786"
    assert name.startswith("dask-sir-")


# What the command line says


@pytest.mark.parametrize(("dedicated", "workers"), [(True, None), (None, "3"), (True, "3")])
def test_this_machine_has_no_clusters_of_a_jobs_own(dedicated: bool | None, workers: str | None) -> None:
    with pytest.raises(UsageError, match="this machine runs the job"):
        start_options.refuse_here(PodOptions(dedicated=dedicated, workers=workers), "")


@pytest.mark.parametrize(
    ("profile", "dedicated", "workers", "size"),
    [
        (False, None, None, None),
        (False, True, None, "3"),
        (False, True, "2:5", "2:5"),
        (True, None, None, "3"),
        (True, None, "7", "7"),
        (True, False, None, None),
    ],
)
def test_options_come_before_the_profile(
    described: Described, profile: bool, dedicated: bool | None, workers: str | None, size: str | None
) -> None:
    found = service(described, Kubernetes(), None)
    found.profile = found.profile.model_copy(update={"dedicated": profile})
    given = found.with_options(PodOptions(dedicated=dedicated, workers=workers))
    assert given.dedicated_size == (Size.parse(size) if size else None)


def test_the_shared_workers_are_not_a_modellers_to_count(described: Described) -> None:
    with pytest.raises(UsageError, match="add --dedicated"):
        service(described, Kubernetes(), None).with_options(PodOptions(workers="4"))


def test_a_clusters_state_is_said_by_its_pods() -> None:
    def of(component: str, ready: bool) -> Object:
        conditions = [{"type": "Ready", "status": str(ready)}]
        return {"metadata": {"labels": {names.DASK_COMPONENT: component}}, "status": {"conditions": conditions}}

    assert dedicated.state("dask-x", []) == "dask-x: no pods yet; the operator of dask-kubernetes creates them"
    pods = [of("scheduler", True), of("worker", True), of("worker", False)]
    assert dedicated.state("dask-x", pods) == "dask-x: scheduler ready, 1 of 2 workers ready"
    assert "scheduler not ready, 0 of 0" in dedicated.state("dask-x", [of("scheduler", False)])


# In the runner's pod


@pytest.fixture
def shown(described: Described, tmp_path: Path) -> Path:
    """What a pod shows its runner."""
    (tmp_path / "objects.json").write_text(json.dumps(drawn(described)))
    (tmp_path / "job-name").write_text("sir-1")
    (tmp_path / "job-uid").write_text("uid-of-job")
    return tmp_path


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    found = Kubernetes()
    monkeypatch.setattr(dedicated_lifecycle, "connect", lambda namespace: found)
    for patience in ("_LOOK_S", "_LEFT_S", "_TAKEN_S"):
        monkeypatch.setattr(dedicated_lifecycle, patience, 0.01)
    return found


def test_a_cluster_is_owned_by_the_job_and_its_scaler_by_the_cluster(shown: Path, kubernetes: Kubernetes) -> None:
    with dedicated_lifecycle.dedicated_cluster(shown):
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
        (Terminated("sir", where="here"), False),
    ],
    ids=str,
)
def test_a_cluster_goes_where_the_job_is_over_and_stays_for_the_next_pod(
    shown: Path, kubernetes: Kubernetes, end: Exception | None, gone: bool
) -> None:
    """Superseded in a pod is exit code 0, which the command line makes of it."""

    def run() -> None:
        with dedicated_lifecycle.dedicated_cluster(shown):
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(type(end)):
            run()
    assert (("DaskCluster", "dask-sir-7f3a2c") not in kubernetes.objects) == gone


def test_the_next_pod_finds_the_cluster(shown: Path, kubernetes: Kubernetes) -> None:
    for _ in range(2):
        with pytest.raises(ClusterError), dedicated_lifecycle.dedicated_cluster(shown):
            raise ClusterError("the scheduler is gone")
    assert kubernetes.n_created == 2


@pytest.mark.parametrize("how", ["going", "another's"])
def test_what_is_left_of_a_cluster_is_not_taken_for_ours(
    shown: Path, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The operator found the old Service and made none; then Kubernetes removed it."""
    left = {"kind": "DaskCluster", "metadata": {"name": "dask-sir-7f3a2c", "ownerReferences": [{"uid": "uid-of-job"}]}}
    if how == "going":
        left["metadata"]["deletionTimestamp"] = "now"
    else:
        left["metadata"]["ownerReferences"] = [{"uid": "another"}]
    kubernetes.objects["DaskCluster", "dask-sir-7f3a2c"] = left
    monkeypatch.setattr(dedicated_lifecycle.time, "sleep", lambda _: kubernetes.delete(left))
    with dedicated_lifecycle.dedicated_cluster(shown):
        assert kubernetes.n_created == 2


def test_crds_without_an_operator_are_told_apart(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helm leaves them behind: the cluster is created, and nothing comes of it."""
    idle = Kubernetes(takes=False)
    monkeypatch.setattr(dedicated_lifecycle, "connect", lambda namespace: idle)
    monkeypatch.setattr(dedicated_lifecycle, "_LOOK_S", 0.01)
    monkeypatch.setattr(dedicated_lifecycle, "_TAKEN_S", 0.05)
    with (
        pytest.raises(MopsError, match="no operator started DaskCluster") as refused,
        dedicated_lifecycle.dedicated_cluster(shown),
    ):
        raise AssertionError("the job must not begin")
    assert refused.value.exit_code == 4


def test_a_cluster_that_cannot_be_removed_does_not_fail_the_job(
    shown: Path, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Object) -> None:
        raise ServiceError("out of reach")

    monkeypatch.setattr(kubernetes, "delete", refuse)
    with dedicated_lifecycle.dedicated_cluster(shown):
        pass
    assert "was not removed and stays until it is idle: out of reach" in caplog.text


def test_a_job_without_a_cluster_of_its_own_needs_no_kubernetes() -> None:
    with dedicated_lifecycle.dedicated_cluster(None):
        pass
