"""The objects that the chart renders, with helm and without a cluster."""

from __future__ import annotations

import ast
import base64
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import dask.config
import dask_kubernetes
import psutil
import pytest
import yaml
from chart_lab import CHART, EVERYTHING, MINIMAL, Object, Rendered, helm, helm_program, refused, rendered, yaml_of
from distributed import Client, LocalCluster, Security
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mops
from mops.cluster.dask_calls import security_of
from mops.cluster.doctor import Scheduler, Worker, findings
from mops.k8s import dedicated as dedicated_objects
from mops.k8s import names
from mops.k8s.chart import ServiceConfig
from mops.k8s.dedicated import Size
from mops.k8s.runner_job import runner_job
from runner_jobs import REQUEST

pytestmark = pytest.mark.k8s

MIB = 1 << 20
COMPONENT = "app.kubernetes.io/component"
BOTH = pytest.mark.parametrize("values", [MINIMAL, EVERYTHING], ids=["minimal", "everything"])
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module", autouse=True)
def _helm() -> None:
    helm_program()


@pytest.fixture
def all_of(values: Path, tmp_path: Path) -> Rendered:
    return rendered(tmp_path, {}, values)


# Values


@BOTH
def test_helm_lint_passes(values: Path) -> None:
    ran = helm("lint", "--strict", CHART, "--values", values)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("path", "misspelled"),
    [("", "workers"), ("storage.runner.workloadIdentity", "clientID"), ("metrics.serviceMonitor", "label")],
)
def test_a_misspelled_value_is_refused_with_its_name(tmp_path: Path, path: str, misspelled: str) -> None:
    values: Any = {misspelled: {}}
    for part in reversed(path.split(".") if path else []):
        values = {part: values}
    said = refused(tmp_path, values)
    assert f"'{misspelled}' not allowed" in said
    assert f"'/{path.replace('.', '/')}'" in said or not path


def referred(schema: Any, part: Any) -> Any:
    """Return a part of a schema together with what it refers to."""
    if "$ref" not in part:
        return part
    found = schema
    for name in part["$ref"].split("/")[1:]:
        found = found[name]
    return {**referred(schema, found), **part}


def test_the_schema_describes_every_value_and_allows_no_other() -> None:
    """An object that allows any name would accept a misspelled one."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def look(part: Any, where: str) -> None:
        if not isinstance(part, dict):
            return
        if "properties" in part:
            assert part.get("additionalProperties") is False, where
        for name, below in part.get("properties", {}).items():
            assert referred(schema, below).get("description"), f"{where}.{name}"
        for below in part.values():
            for one in below if isinstance(below, list) else [below]:
                look(one, where)
        for name, below in {**part.get("properties", {}), **part.get("definitions", {})}.items():
            look(below, f"{where}.{name}")

    look(schema, "$")


def leaves(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, below in values.items():
            yield from leaves(below, f"{path}.{name}")
    else:
        yield path


def test_everything_values_has_every_value() -> None:
    """The tests render a new value only if everything-values.yaml sets it."""
    known = set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    on = set(leaves(yaml.safe_load(EVERYTHING.read_text())))
    assert not {path for path in known if not any(f"{one}.".startswith(f"{path}.") for one in on)}


def test_a_missing_storage_is_refused_with_what_to_set(tmp_path: Path) -> None:
    said = refused(tmp_path, {"storage": {"url": ""}})
    assert "storage.url is not set" in said
    assert "storage.url=abfs://CONTAINER/FOLDER" in said
    assert "storage.pvc.enabled=true" in said


@pytest.mark.parametrize(
    "url", ["gcs://studies", "gs:/typo", "s3:/typo", "abfs:/typo", "abfs:///typo", "memory://x", "studies", "file:///x"]
)
def test_a_storage_that_mops_refuses_is_refused(tmp_path: Path, url: str) -> None:
    said = refused(tmp_path, {"storage": {"url": url}})
    assert "storage/url" in said
    assert "does not match pattern" in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("abfs://studies/mops?sig=c2VjcmV0", "abfs://studies/mops?..."),
        ("s3://AKIAEXAMPLE:c2VjcmV0/c2Vj@studies/mops", "s3://...studies/mops"),
    ],
)
def test_a_url_with_credentials_is_refused(tmp_path: Path, url: str, shown: str) -> None:
    """It would have been in the ConfigMap that every client reads."""
    said = refused(tmp_path, {"storage": {"url": url}})
    assert f"storage.url: {shown} contains credentials" in said
    assert "c2Vj" not in said


@pytest.mark.parametrize("url", ["abfss://studies@account.dfs.core.windows.net/mops", "s3://studies/2026-11@10:00"])
def test_a_url_without_credentials_is_accepted(tmp_path: Path, url: str) -> None:
    assert rendered(tmp_path, {"storage": {"url": url}}).client["storage"] == url


SECRETS = [
    *(("AZURE_STORAGE_KEY", "c2VjcmV0"), ("db_password", "c2VjcmV0"), ("Credentials", "c2VjcmV0")),
    ("HTTPS_PROXY", "http://ada:c2VjcmV0@proxy.example.org:3128"),
    ("PIP_INDEX_URL", "https://c2VjcmV0@index.example.org/simple"),
    ("CACHE", "redis://:c2VjcmV0@cache"),
]
PLAIN = [
    ("HTTPS_PROXY", "http://proxy.example.org:3128"),
    ("NO_PROXY", "localhost,.example.org"),
    ("ASK", "https://index.example.org:443/simple?mail=ada@example.org mailto:ada@example.org"),
]


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_a_secret_among_plain_variables_is_refused(tmp_path: Path, name: str, value: str) -> None:
    said = refused(tmp_path, {"storage": {"env": {name: value}}})
    assert f"storage.env: every client of the service would read {name}" in said
    assert "storage.runner.existingSecret=SECRET" in said
    assert "c2VjcmV0" not in said


@pytest.mark.parametrize("component", ["scheduler", "worker", "runner", "ui"])
def test_the_value_of_a_secret_in_extra_variables_is_refused(tmp_path: Path, component: str) -> None:
    """The value went into the ConfigMap that every client reads, and into the profiles of clients."""
    secrets = ["API_TOKEN", "db_password", "LICENCE_KEY", "MY_SECRET", "GIT_CREDENTIALS"]
    for name, value in [*((one, "c2VjcmV0") for one in secrets), *SECRETS]:
        said = refused(tmp_path, {component: {"extraEnv": [{"name": name, "value": value}]}}, EVERYTHING)
        assert f"{component}.extraEnv: {name} has a value that every client of the service would read" in said
        assert "c2VjcmV0" not in said
    named = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "licence", "key": "key"}}} for name in secrets]
    named += [{"name": name, "value": value} for name, value in PLAIN]
    assert "licence" in rendered(tmp_path, {component: {"extraEnv": named}}, EVERYTHING).text


def test_the_default_image_names_no_registry_and_has_a_tag(tmp_path: Path) -> None:
    """With the tag latest, nodes would ask a registry for an image that was loaded into them."""
    found = rendered(tmp_path)
    images = {container["image"] for _, pod in found.pods() for container in pod["spec"]["containers"]}
    assert images | {found.client["runner"]["image"]} == {f"localhost/mops:{mops.__version__}"}
    assert re.findall(r"\b[\w-]+\.(?:io|com)/[\w-]+/", "".join(map(Path.read_text, CHART.rglob("values.yaml")))) == []


def test_a_digest_names_the_image(tmp_path: Path) -> None:
    digest = f"sha256:{'0a' * 32}"
    found = rendered(tmp_path, {"image": {"tag": "1", "digest": digest}})
    images = {one["image"] for _, pod in found.pods() for one in pod["spec"]["containers"]}
    assert images | {found.client["runner"]["image"]} == {f"localhost/mops@{digest}"}
    assert "digest" in refused(tmp_path, {"image": {"digest": "0a0a"}})


def test_the_platform_may_choose_the_user_of_all_pods(tmp_path: Path) -> None:
    """OpenShift refuses pods that name a user outside of the range of their namespace."""
    chosen = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    found = rendered(tmp_path, {"podSecurityContext": chosen})
    contexts = [pod["spec"]["securityContext"] for _, pod in found.pods()]
    for context in [*contexts, found.client["runner"]["podSecurityContext"]]:
        assert not chosen.keys() & context.keys()
        assert context["runAsNonRoot"] is True


def test_the_operator_may_change_the_security_context_of_all_containers(tmp_path: Path) -> None:
    changed = {"readOnlyRootFilesystem": False, "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}
    found = rendered(tmp_path, {"containerSecurityContext": changed}, EVERYTHING)
    containers = [container for _, pod in found.pods() for container in pod["spec"]["containers"]]
    for one in [*containers, found.client["runner"]]:
        assert one["securityContext"] == {"allowPrivilegeEscalation": False} | changed


def test_pods_have_the_extra_fields_of_their_component(tmp_path: Path) -> None:
    components = ("scheduler", "worker", "autoscaler", "runner", "ui")
    values = {name: {"extraPodSpec": {"runtimeClassName": f"of-{name}"}} for name in components}
    found = rendered(tmp_path, values, EVERYTHING)
    for name, deployment in found.of("Deployment").items():
        assert deployment["spec"]["template"]["spec"]["runtimeClassName"] == f"of-{component_of(name)}"
    large = found.of("Deployment")["mops-worker-large"]["spec"]["template"]["spec"]
    assert {"hostname", "topologySpreadConstraints"} <= set(large), "those of the pool and of the workers"
    assert found.of("Pod")["mops-test-storage"]["spec"]["runtimeClassName"] == "of-runner"
    assert found.client["runner"]["extraPodSpec"]["runtimeClassName"] == "of-runner"
    service = ServiceConfig.parse(json.dumps(found.client), "here")
    pod = runner_job(service.runner, REQUEST)["spec"]["template"]["spec"]
    assert (pod["runtimeClassName"], pod["restartPolicy"]) == ("of-runner", "Never")
    assert pod["topologySpreadConstraints"]


def test_an_extra_field_that_the_chart_sets_is_refused_with_its_name(tmp_path: Path) -> None:
    """The pod would have the field twice."""
    found = rendered(tmp_path, {}, EVERYTHING)
    service = ServiceConfig.parse(json.dumps(found.client), "here")
    runner = runner_job(service.runner, REQUEST)["spec"]["template"]["spec"]
    ours = {field for _, pod in found.pods() for field in pod["spec"]} | set(runner)
    for field in ours - {"topologySpreadConstraints", "hostname"}:
        said = refused(tmp_path, {"scheduler": {"extraPodSpec": {"hostname": "a", field: "x"}}})
        assert f"scheduler.extraPodSpec: the chart itself sets {field}." in said


def test_the_chart_and_the_image_of_a_clone_have_the_version_of_the_package() -> None:
    """A release replaces them: .ci/release."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert str(chart["appVersion"]) == mops.__version__
    assert f"\nARG VERSION={mops.__version__}\n" in (CHART.parents[1] / "Dockerfile").read_text()


def test_the_chart_accepts_the_values_of_the_guides(tmp_path: Path) -> None:
    (values,) = (one for one in yaml_of("spot-nodes-and-meshes") if "tolerations" in one["worker"])
    found = rendered(tmp_path, values)
    worker = found.of("Deployment")["mops-worker"]["spec"]["template"]["spec"]
    assert worker["nodeSelector"] == {"example.org/pool": "spot"}
    assert found.client["runner"]["nodeSelector"] == {"example.org/pool": "regular"}


def test_no_pod_has_a_sidecar_with_the_values_of_the_guide(tmp_path: Path) -> None:
    """The pods of hooks had no labels of the values. With a sidecar, they never ended, and no upgrade was possible."""
    (values,) = (one for one in yaml_of("spot-nodes-and-meshes") if "labels" in one["worker"])
    found = rendered(tmp_path, values | {"dedicated": {"enabled": True}}, EVERYTHING)
    for name, about in [*((name, pod["metadata"]) for name, pod in found.pods()), ("runner", found.client["runner"])]:
        assert about["labels"]["sidecar.istio.io/inject"] == "false", name
        assert about["annotations"]["linkerd.io/inject"] == "disabled", name


def test_the_quota_of_the_guide_has_room_for_what_the_guide_says(tmp_path: Path) -> None:
    quota, _ = yaml_of("costs-and-backups")
    found = rendered(tmp_path)
    asked = {name: found.container(name)["resources"] for name in ("scheduler", "worker")}
    asked["runner"] = found.client["runner"]["resources"]
    cpu = {name: int(one["requests"]["cpu"].removesuffix("m")) for name, one in asked.items() if name != "runner"}
    assert (asked["runner"]["requests"]["cpu"], cpu) == ("1", {"scheduler": 500, "worker": 1500})
    assert int(quota["spec"]["hard"]["requests.cpu"]) >= 0.5 + 20 * 1.5 + 10 * 1
    memory = {"scheduler": "2Gi", "worker": "4Gi", "runner": "2Gi"}
    assert {name: one["limits"]["memory"] for name, one in asked.items()} == memory
    assert quota["spec"]["hard"]["limits.memory"] == f"{2 + 20 * 4 + 10 * 2 + 1}Gi"  # and the small pods


# Pods


@BOTH
def test_objects_have_different_names_and_the_namespace_of_the_release(all_of: Rendered) -> None:
    about = [found["metadata"] | {"kind": found["kind"]} for found in all_of.objects]
    names = [(one["kind"], one["name"]) for one in about if hook_of(one) != "post-delete"]
    assert len(names) == len(set(names))
    assert {found["metadata"]["namespace"] for found in all_of.objects} == {"studies"}
    assert all(name.startswith("mops-") for _, name in names)


def hook_of(metadata: Object) -> str | None:
    """Return when Helm makes an object; None: it is a part of the release."""
    found: str | None = metadata.get("annotations", {}).get("helm.sh/hook")
    return found


@BOTH
def test_every_pod_is_restricted(all_of: Rendered) -> None:
    """Pods pass the Pod Security Standard "restricted" and have a read-only root file system."""
    for name, pod in all_of.pods():
        spec = pod["spec"]
        check_restricted(name, spec["securityContext"], spec["containers"][0]["securityContext"])
        assert spec["automountServiceAccountToken"] is (name == "mops-autoscaler"), name
        assert spec["enableServiceLinks"] is False, name
        assert "hostNetwork" not in spec, name
        assert len(spec["containers"]) == 1, name
    runner = all_of.client["runner"]
    check_restricted("runner", runner["podSecurityContext"], runner["securityContext"])


def check_restricted(name: str, of_pod: Object, of_container: Object) -> None:
    assert of_pod["runAsNonRoot"] is True, name
    assert {of_pod[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}, name
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }, name


@BOTH
def test_every_container_has_requests_and_a_memory_limit(all_of: Rendered) -> None:
    wanted = [container["resources"] for _, pod in all_of.pods() for container in pod["spec"]["containers"]]
    for resources in [*wanted, all_of.client["runner"]["resources"]]:
        assert resources["requests"]["cpu"]
        assert resources["limits"]["memory"]
    for name in all_of.of("Deployment"):
        resources = all_of.of("Deployment")[name]["spec"]["template"]["spec"]["containers"][0]["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]


@BOTH
def test_pods_of_hooks_meet_quotas_of_processors_and_run_where_their_component_runs(all_of: Rendered) -> None:
    """A quota of limits.cpu refused them, and on a cluster with taints, no node took those of helm test."""
    pods = all_of.of("Pod")
    assert all(one["resources"]["limits"]["cpu"] for pod in pods.values() for one in pod["spec"]["containers"])
    client = all_of.client
    like = {"mops-test-storage": client["runner"], "mops-test-worker": client["worker"]["podTemplate"]["spec"]}
    scheduler = all_of.of("Deployment")["mops-scheduler"]["spec"]["template"]["spec"]
    assert pods.keys() == {"mops-image-check", "mops-test", "mops-test-network", *like}
    for name, pod in pods.items():
        for place in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
            assert pod["spec"].get(place) == like.get(name, scheduler).get(place), name
        assert pod["spec"]["activeDeadlineSeconds"] == 3600, "a node may pull the image for long: --timeout decides"


@pytest.mark.parametrize(("threads", "cpu"), [(1, "750m"), (2, "1500m"), (16, "12000m")])
def test_a_worker_leaves_its_node_some_of_as_many_processors_as_it_has_slots(
    tmp_path: Path, threads: int, cpu: str
) -> None:
    """The default of two processors did not fit a node of two."""
    worker = {"threads": threads, "memory": "64Gi"}
    assert rendered(tmp_path, {"worker": worker}).container("worker")["resources"]["requests"]["cpu"] == cpu
    given = rendered(tmp_path, {"worker": worker | {"cpu": "3"}})
    assert given.container("worker")["resources"]["requests"]["cpu"] == "3"


@BOTH
def test_every_mount_has_a_volume_and_home_is_writable(all_of: Rendered) -> None:
    runner = all_of.client["runner"]
    pods = [(pod["spec"].get("volumes", []), pod["spec"]["containers"][0]) for _, pod in all_of.pods()]
    for volumes, container in [*pods, (runner["volumes"], runner)]:
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
        assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in volumes}
        for variable in container.get("env", []):
            if variable["name"] in {"HOME", "XDG_CACHE_HOME"}:
                assert variable["value"].startswith("/tmp")
                assert "readOnly" not in mounts["/tmp"]


@BOTH
def test_service_accounts_do_not_mount_their_token(all_of: Rendered) -> None:
    accounts = all_of.of("ServiceAccount")
    assert set(accounts) == {*(f"mops-{component_of(name)}" for name in all_of.of("Deployment")), "mops-runner"}
    assert not any(account["automountServiceAccountToken"] for account in accounts.values())
    assert all_of.client["runner"]["automountServiceAccountToken"] is True


def test_runners_and_the_web_page_get_files_by_volumes_as_workers_do(tmp_path: Path) -> None:
    """Only workers did, so a key file for gs:// or a private authority could not reach runners."""
    (values,) = (one for one in yaml_of(CHART / "README.md") if "extraVolumes" in one.get("runner", {}))
    given = values["runner"]
    given["extraEnv"] += [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/etc/storage-authority/key.json"}]
    found = rendered(tmp_path, {"ui": {"enabled": True} | given, "worker": given, "runner": given})
    runner = found.client["runner"]
    pods = [(runner, runner["volumes"])]
    for name in ("ui", "worker"):
        pods += [(found.container(name), found.of("Deployment")[f"mops-{name}"]["spec"]["template"]["spec"]["volumes"])]
    for container, volumes in pods:
        assert given["extraVolumes"][0] in volumes
        assert given["extraVolumeMounts"][0] in container["volumeMounts"]
        assert all(one in container["env"] for one in given["extraEnv"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("GOOGLE_APPLICATION_CREDENTIALS", '{"private_key": "c2VjcmV0"}'), ("TOKEN_FILE_URL", "/a"), ("KEY_FILE", "c2Vj")],
)
def test_a_secret_with_the_name_of_a_file_is_refused(tmp_path: Path, name: str, value: str) -> None:
    said = refused(tmp_path, {"runner": {"extraEnv": [{"name": name, "value": value}]}})
    assert f"runner.extraEnv: {name} has a value that every client of the service would read" in said


def test_runners_have_a_token_without_the_roles_of_the_chart(tmp_path: Path) -> None:
    """rbac.create=false removed the token too, so a role bound by hand was useless."""
    found = rendered(tmp_path, {"rbac": {"create": False}}, EVERYTHING)
    assert found.client["runner"]["automountServiceAccountToken"] is True
    assert found.of("Role") == found.of("RoleBinding") == {}
    without = rendered(tmp_path, {"runner": {"automountServiceAccountToken": False}}, EVERYTHING)
    assert without.client["runner"]["automountServiceAccountToken"] is False


@BOTH
def test_every_container_starts_with_the_images_first_process(all_of: Rendered) -> None:
    """A command would replace the first process of the image. Zombies would use up the process numbers of the pod."""
    dockerfile = (CHART.parents[1] / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["dumb-init", "--single-child", "--"]' in dockerfile
    for name, pod in all_of.pods():
        (container,) = pod["spec"]["containers"]
        assert "command" not in container, name
        assert container["args"][0] in {"dask", "python", "mops"}, name


# Selectors


@BOTH
def test_selectors_never_change_and_match_their_pods(all_of: Rendered) -> None:
    """Kubernetes refuses an upgrade that changes the selector of a Deployment. Do not change this test."""
    for name, deployment in all_of.of("Deployment").items():
        selector = labels_of(all_of, component_of(name)) | pool_label(name)
        assert deployment["spec"]["selector"] == {"matchLabels": selector}
        assert deployment["spec"]["template"]["metadata"]["labels"].items() >= selector.items()
    assert all_of.of("Service")["mops-scheduler"]["spec"]["selector"] == labels_of(all_of, "scheduler")
    for name, budget in all_of.of("PodDisruptionBudget").items():
        assert budget["spec"]["selector"]["matchLabels"] == labels_of(all_of, component_of(name)) | pool_label(name)
    assert all_of.client["worker"]["selector"] == labels_of(all_of, "worker")
    assert all_of.client["runner"]["labels"].items() >= labels_of(all_of, "runner").items()


def labels_of(found: Rendered, component: str) -> Object:
    instance = found.of("Service")["mops-scheduler"]["metadata"]["labels"]["app.kubernetes.io/instance"]
    names = {"app.kubernetes.io/name": "mops", "app.kubernetes.io/instance": instance}
    return names | {"app.kubernetes.io/component": component}


def component_of(name: str) -> str:
    """Return the component to which a Deployment belongs: workers may be in several pools."""
    return name.split("-")[1]


def pool_label(name: str) -> Object:
    _, component, *pool = name.split("-")
    return {"mops/pool": pool[0] if pool else "default"} if component == "worker" else {}


def test_labels_in_values_cannot_replace_those_of_a_selector(tmp_path: Path) -> None:
    given = {"worker": {"labels": {"app.kubernetes.io/component": "other", "team": "x"}}}
    found = rendered(tmp_path, given)
    labels = found.of("Deployment")["mops-worker"]["spec"]["template"]["metadata"]["labels"]
    assert labels == labels_of(found, "worker") | pool_label("mops-worker") | {"team": "x"}


def test_an_upgrade_restarts_only_what_it_changes(tmp_path: Path) -> None:
    """A new version of the chart with the same image and values does not change the pods."""
    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    about = newer / "Chart.yaml"
    about.write_text(about.read_text().replace("\nversion: 0.1.0", "\nversion: 0.2.0"))
    before, after = rendered(tmp_path, {}, EVERYTHING), rendered(tmp_path, {}, EVERYTHING, chart=newer)
    assert before.text != after.text
    assert [one["spec"] for one in before.of("Deployment").values()] == [
        one["spec"] for one in after.of("Deployment").values()
    ]
    assert before.client == after.client


def test_a_new_configuration_of_dask_restarts_scheduler_and_workers(tmp_path: Path) -> None:
    """Dask reads its configuration at the start."""
    before = rendered(tmp_path)
    after = rendered(tmp_path, {"dask": {"config": {"distributed": {"scheduler": {"worker-ttl": "1m"}}}}})
    for name in ("mops-scheduler", "mops-worker"):
        old, new = (found.of("Deployment")[name]["spec"]["template"]["metadata"] for found in (before, after))
        assert old["annotations"] != new["annotations"]


def test_the_update_strategy_recreate_has_no_rolling_update(tmp_path: Path) -> None:
    """values.yaml has rollingUpdate for the other type, and the API server refuses both together."""
    strategy = rendered(tmp_path, {"worker": {"updateStrategy": {"type": "Recreate"}}}).of("Deployment")["mops-worker"]
    assert strategy["spec"]["strategy"] == {"type": "Recreate"}
    rolling = rendered(tmp_path).of("Deployment")["mops-worker"]["spec"]["strategy"]
    assert rolling == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}


@BOTH
def test_a_worker_that_is_not_ready_does_not_block_the_drain_of_its_node(all_of: Rendered) -> None:
    """With the default, a node with a worker that never gets ready cannot be drained."""
    budgets = all_of.of("PodDisruptionBudget").values()
    assert {budget["spec"]["unhealthyPodEvictionPolicy"] for budget in budgets} == {"AlwaysAllow"}


def test_there_is_never_a_second_scheduler(tmp_path: Path) -> None:
    spec = rendered(tmp_path).of("Deployment")["mops-scheduler"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_an_upgrade_does_not_change_what_the_autoscaler_decides(tmp_path: Path) -> None:
    assert rendered(tmp_path).of("Deployment")["mops-worker"]["spec"]["replicas"] == 2
    found = rendered(tmp_path, {}, EVERYTHING)
    assert "replicas" not in found.of("Deployment")["mops-worker"]["spec"]
    arguments = found.container("autoscaler")["args"]
    assert {"--pool=default,1,20,4", "--pool=gpu,0,2,4", "--pool=large,0,20,1", "--idle-seconds=120"} <= set(arguments)
    assert found.client["autoscaler"] == {"minWorkers": 1, "maxWorkers": 20}


def test_a_least_number_of_workers_above_the_highest_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, {"autoscaler": {"enabled": True, "minWorkers": 11}})
    assert "autoscaler.minWorkers=11 is more than maxWorkers=10" in said


# Pools of workers


def test_a_pool_has_the_values_of_the_workers_unless_it_has_its_own(tmp_path: Path) -> None:
    found = rendered(tmp_path, {}, EVERYTHING)
    pods = {name: one["spec"]["template"]["spec"] for name, one in found.of("Deployment").items() if "-worker" in name}
    containers = {name: pod["containers"][0] for name, pod in pods.items()}
    assert {name: one["resources"]["limits"]["memory"] for name, one in containers.items()} == {
        "mops-worker": "8Gi",
        "mops-worker-gpu": "8Gi",
        "mops-worker-large": "32Gi",
    }
    assert [name for name, one in containers.items() if "nvidia.com/gpu" in one["resources"]["limits"]] == [
        "mops-worker-gpu"
    ]
    for name, one in containers.items():
        pool = pool_label(name)["mops/pool"]
        assert f"--resources=pool-{pool}=1" in one["args"]
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in one["volumeMounts"]
    assert pods["mops-worker-large"]["nodeSelector"] == {"kubernetes.io/os": "linux", "example.org/size": "large"}
    assert found.client["pools"] == {"default": "large", "gpu": "gpu", "large": "large"}


def test_without_pools_jobs_have_none(tmp_path: Path) -> None:
    """The workers belong to the default pool even so, for jobs that run while an upgrade removes the last pool."""
    found = rendered(tmp_path)
    assert "--resources=pool-default=1" in found.container("worker")["args"]
    assert "pools" not in found.client


def test_a_pool_can_have_empty_values_in_place_of_those_of_the_workers(tmp_path: Path) -> None:
    empty = {
        "replicas": 0,
        "cpuLimit": "",
        "headroom": "",
        "tolerations": [],
        "priorityClassName": "",
        "podDisruptionBudget": {"enabled": False},
        "extraVolumes": [],
        "extraVolumeMounts": [],
    }
    worker = {"pools": [{"name": "empty", **empty}], "memoryPool": ""}
    found = rendered(tmp_path, {"worker": worker, "autoscaler": {"enabled": False}}, EVERYTHING)
    deployment = found.of("Deployment")["mops-worker-empty"]
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 0
    assert "cpu" not in pod["containers"][0]["resources"]["limits"]
    assert "--memory-limit=7372MiB" in pod["containers"][0]["args"], "a tenth of 8 GiB is left"
    assert not {"tolerations", "priorityClassName"} & set(pod)
    assert "data" not in {volume["name"] for volume in pod["volumes"]}
    assert "mops-worker-empty" not in found.of("PodDisruptionBudget")


@pytest.mark.parametrize(
    ("pools", "memory_pool"),
    [
        ([{"memory": "16Gi"}], "a"),
        ([{"memory": "1500Mi", "threads": 1}], "default"),
        ([{"memory": "16Gi", "replicas": 0}], "default"),  # no worker would run the simulations
        ([{"memory": "16Gi"}, {"memory": "32Gi"}], "b"),
    ],
)
def test_simulations_that_ran_out_of_memory_get_the_pool_with_the_most(
    tmp_path: Path, pools: list[Object], memory_pool: str
) -> None:
    named = [{"name": name, **pool} for name, pool in zip("ab", pools, strict=False)]
    assert rendered(tmp_path, {"worker": {"pools": named}}).client["pools"]["default"] == memory_pool


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ({"pools": [{"name": "default"}]}, "two pools have the name default"),
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "two pools have the name a"),
        ({"pools": [{"name": "a"}], "memoryPool": "b"}, "memoryPool=b is not the name of a pool"),
        ({"pools": [{"name": "a", "minWorkers": 30}]}, "worker.pools: a.minWorkers=30 is more than maxWorkers=10"),
        ({"pools": [{"name": "a", "memroy": "3Gi"}]}, "'memroy' not allowed"),
        ({"pools": [{"replicas": 1}]}, "missing property 'name'"),
        ({"pools": [{"name": "A"}]}, "'A' does not match pattern"),
    ],
)
def test_wrong_pools_are_refused(tmp_path: Path, worker: Object, said: str) -> None:
    assert said in refused(tmp_path, {"worker": worker})


# Dask


def config_folder(found: Rendered, folder: Path) -> Path:
    """Write the configuration of Dask that a pod gets, and the certificate that the chart makes."""
    written, tls = folder / "dask", folder / "tls"
    written.mkdir()
    for name, text in found.of("ConfigMap")["mops-dask"]["data"].items():
        (written / name).write_text(text.replace("/etc/mops/tls", str(tls)))
    for secret in found.of("Secret").values():
        tls.mkdir()
        for name, encoded in secret["data"].items():
            (tls / name).write_bytes(base64.b64decode(encoded))
    return written


@BOTH
def test_dask_reads_the_configuration_of_the_chart(all_of: Rendered, tmp_path: Path) -> None:
    """Dask silently ignores a misspelled name, so Dask itself reads the files."""
    program = "import dask.config, distributed, json; print(json.dumps(dask.config.config['distributed']))"
    env = os.environ | {"DASK_CONFIG": str(config_folder(all_of, tmp_path))}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True, timeout=60)
    config = json.loads(ran.stdout)
    assert config["scheduler"]["worker-saturation"] == 1.0
    of_health = {"distributed.http.health"}
    of_scheduler = {"distributed.http.scheduler.prometheus", "distributed.http.statics"}
    assert set(config["scheduler"]["http"]["routes"]) == of_health | of_scheduler, "HTTP asks for no certificate"
    assert set(config["worker"]["http"]["routes"]) == of_health | {"distributed.http.worker.prometheus"}
    memory = config["worker"]["memory"]
    assert [memory[name] for name in ("target", "spill", "pause", "terminate")] == [False, False, False, 0.95]
    assert config["worker"]["profile"]["enabled"] is False
    for component in ("scheduler", "worker"):
        container = all_of.container(component)
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "dask-config")
        assert {"name": "DASK_CONFIG", "value": mount["mountPath"]} in container["env"]
    assert {"name": "MALLOC_TRIM_THRESHOLD_", "value": "65536"} in all_of.container("worker")["env"]


def test_the_configuration_in_values_overrides_that_of_the_chart(tmp_path: Path) -> None:
    given = {"dask": {"config": {"distributed": {"worker": {"memory": {"terminate": 0.9}}}}}}
    config = yaml.safe_load(rendered(tmp_path, given).of("ConfigMap")["mops-dask"]["data"]["distributed.yaml"])
    assert config["distributed"]["worker"]["memory"] == {
        "target": False,
        "spill": False,
        "pause": False,
        "terminate": 0.9,
    }
    assert config["distributed"]["scheduler"]["worker-saturation"] == 1.0


def command(container: Object, ports: dict[str, int], env: dict[str, str]) -> list[str]:
    """Return the command of a container, with programs of this environment and other ports."""
    words = " ".join([*container.get("command", []), *container.get("args", [])])
    words = re.sub(r"\$\((\w+)\)", lambda name: env[name[1]], words)
    words = re.sub(r"(?<=[=: ])87\d\d\b", lambda port: str(ports[port[0]]), words)
    return [str(BIN / word) if word in {"dask", "python"} else word for word in words.split()]


def security(found: Rendered) -> Security | None:
    """Return the security of a client; None: the chart does not encrypt."""
    for secret in found.of("Secret").values():
        return security_of({name: base64.b64decode(text).decode() for name, text in secret["data"].items()})
    return None


@contextmanager
def running(arguments: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments, env=os.environ | env, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
                process.kill()


@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "tcp"])
def test_the_commands_of_the_pods_start_a_cluster_that_passes_mops_doctor(
    tmp_path: Path, unused_ports: list[int], encrypted: bool
) -> None:
    """They run as processes of this machine. Then the hook retires the worker, which exits."""
    found = rendered(tmp_path, {"worker": {"memory": "1Gi", "threads": 1}, "tls": {"enabled": encrypted}})
    ports = dict(zip(("8786", "8787", "8788", "8789", "8790"), unused_ports, strict=True))
    address = f"{'tls' if encrypted else 'tcp'}://127.0.0.1:{ports['8786']}"
    pod = "127.0.0.2"  # in a pod, its name stands for its addresses of both families
    names = {"DASK_SCHEDULER_ADDRESS": address, "DASK_WORKER_NAME": "mops-worker-x", "POD_NAME": pod}
    own = {entry["name"]: entry["value"] for entry in found.container("worker")["env"] if "value" in entry}
    env = own | names | {"DASK_CONFIG": str(config_folder(found, tmp_path)), "HOME": str(tmp_path)}
    worker = command(found.container("worker"), ports, env)
    assert "--memory-limit=768MiB" in worker
    with (
        running(command(found.container("scheduler"), ports, env), env),
        running([word.replace("/tmp/dask", str(tmp_path)) for word in worker], env) as process,
    ):
        with Client(address, timeout=30, set_as_default=False, security=security(found)) as client:
            client.wait_for_workers(1, timeout=60)
            (facts,) = client.scheduler_info(n_workers=-1)["workers"].values()
            assert facts["name"] == "mops-worker-x"
            assert facts["nanny"].endswith(f":{ports['8790']}")
            assert facts["services"]["dashboard"] == ports["8788"]
            assert next(iter(client.scheduler_info(n_workers=-1)["workers"])).endswith(f":{ports['8789']}")
        for host, port in itertools.product(("127.0.0.1", pod), ("8787", "8788")):
            with build_opener(ProxyHandler({})).open(f"http://{host}:{ports[port]}/health", timeout=10) as answer:
                assert answer.read() == b"ok"
        doctor = [BIN / "mops", "doctor"]
        env_of_doctor = os.environ | {"MODELOPS_SCHEDULER": address, "DASK_CONFIG": env["DASK_CONFIG"]}
        looked = subprocess.run(doctor, env=env_of_doctor, capture_output=True, text=True, timeout=60)
        assert looked.returncode == 0, looked.stdout + looked.stderr
        hook = {"command": found.container("worker")["lifecycle"]["preStop"]["exec"]["command"]}
        retire = [word for word in command(hook, ports, env) if not word.startswith("--say-to")]
        said = subprocess.run(retire, env=os.environ | env, capture_output=True, text=True, timeout=60)
        assert said.stderr == "mops.worker.retire: mops-worker-x is retired\n"
        process.wait(30)


@pytest.fixture
def unused_ports() -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def test_a_worker_has_time_left_to_close_after_its_hook(tmp_path: Path) -> None:
    for seconds in (30, 300):
        found = rendered(tmp_path, {"worker": {"terminationGracePeriodSeconds": seconds}})
        spec = found.of("Deployment")["mops-worker"]["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] == seconds
        hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert f"--seconds={seconds - 15}" in hook


def test_helm_test_waits_for_a_scheduler_with_a_worker(tmp_path: Path, unused_ports: list[int]) -> None:
    """Straight after `helm install` the connection is refused, and the program ended with a traceback."""
    pod = rendered(tmp_path).of("Pod")["mops-test"]
    (container,) = pod["spec"]["containers"]
    *python, program, url, n_needed = container["args"]
    assert python == ["python", "-c"]
    assert (url, n_needed) == ("http://mops-scheduler:8787", "1")
    growing = rendered(tmp_path, {"autoscaler": {"enabled": True}}).of("Pod")["mops-test"]
    assert growing["spec"]["containers"][0]["args"][-1] == "0", "no worker runs without jobs"
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert labels_of(rendered(tmp_path), "test").items() <= pod["metadata"]["labels"].items()
    routes = ["distributed.http.scheduler.prometheus"]
    place = f"127.0.0.1:{unused_ports[0]}"
    looking = [sys.executable, "-c", program, f"http://{place}", n_needed]
    with subprocess.Popen(looking, stdout=-1, stderr=-1, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        with (
            dask.config.set({"distributed.scheduler.http.routes": routes, "distributed.worker.http.routes": []}),
            LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=place),
        ):
            assert process.communicate(timeout=60) == (f"http://{place}: workers connected: 1\n", "")
    assert process.returncode == 0


def test_helm_test_knocks_at_the_scheduler_from_a_pod_that_no_policy_admits(tmp_path: Path) -> None:
    pod = rendered(tmp_path).of("Pod")["mops-test-network"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["metadata"]["labels"] == {}
    *python, place = pod["spec"]["containers"][0]["args"]
    assert place == "mops-scheduler:8786"
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = f"127.0.0.1:{server.getsockname()[1]}"
        ran = subprocess.run([sys.executable, *python[1:], opened], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        f"error: this cluster does not enforce network policies: any pod can connect to {opened}",
        "hint: install a network plugin that enforces them, or set networkPolicy.enabled=false to do without them",
    ]
    ran = subprocess.run([sys.executable, *python[1:], opened], capture_output=True, text=True, timeout=60, check=True)
    assert f"{opened}: closed to other pods, as the network policies say" in ran.stdout


@BOTH
def test_helm_test_probes_the_storage_with_all_that_a_runner_has(all_of: Rendered) -> None:
    pod, runner = all_of.of("Pod")["mops-test-storage"], all_of.client["runner"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["metadata"]["labels"] == runner["labels"]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert container["args"] == ["python", "-m", "mops.storage.probe", all_of.client["storage"]]
    assert spec["serviceAccountName"] == runner["serviceAccount"]
    for of_pod, of_runner in (("securityContext", "podSecurityContext"), ("volumes", "volumes")):
        assert spec.get(of_pod) == runner.get(of_runner)
    for name in ("image", "env", "envFrom", "volumeMounts", "securityContext"):
        assert container.get(name) == runner.get(name)


@BOTH
def test_helm_test_reads_the_storage_with_all_that_a_worker_has(all_of: Rendered) -> None:
    """With wrong credentials of workers, helm test passed, and the first job failed."""
    pod, worker = all_of.of("Pod")["mops-test-worker"], all_of.client["worker"]["podTemplate"]
    spec, (container,), (of_worker,) = pod["spec"], pod["spec"]["containers"], worker["spec"]["containers"]
    assert container["args"] == ["python", "-m", "mops.storage.probe", all_of.client["storage"], "--read-only"]
    for name in ("serviceAccountName", "securityContext", "volumes"):
        assert spec[name] == worker["spec"][name]
    for name in ("image", "env", "envFrom", "volumeMounts", "securityContext"):
        assert container.get(name) == of_worker.get(name)
    labels = pod["metadata"]["labels"]
    assert labels == worker["metadata"]["labels"] | {COMPONENT: "test-worker"}, "no worker of a pool"


@BOTH
def test_an_upgrade_first_starts_its_image_on_the_nodes_of_the_scheduler(all_of: Rendered) -> None:
    """A wrong image stopped the scheduler of running jobs."""
    pod = all_of.of("Pod")["mops-image-check"]
    scheduler = all_of.of("Deployment")["mops-scheduler"]["spec"]["template"]["spec"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert pod["spec"]["containers"][0]["image"] == scheduler["containers"][0]["image"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "serviceAccountName"):
        assert pod["spec"].get(name) == scheduler.get(name)
    selector = all_of.of("Service")["mops-scheduler"]["spec"]["selector"]
    assert not selector.items() <= pod["metadata"]["labels"].items()


# Encryption


def test_the_certificate_serves_scheduler_workers_and_clients(tmp_path: Path) -> None:
    """Python 3.13 and newer check the form of certificates strictly."""
    found = rendered(tmp_path)
    (secret,) = found.of("Secret").values()
    assert (secret["metadata"]["name"], secret["type"]) == ("mops-tls", "kubernetes.io/tls")
    config_folder(found, tmp_path)
    tls = tmp_path / "tls"
    for purpose in ("sslserver", "sslclient"):
        check = ("openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", tls / "ca.crt", tls / "tls.crt")
        assert subprocess.run(check, capture_output=True, check=True, timeout=60).stdout.endswith(b": OK\n")
    assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"], "the key of the authority is nowhere"
    assert hook_of(secret["metadata"]) == "pre-install,pre-upgrade", "a rollback would change an object of the release"


def test_a_secret_of_the_operator_is_used_and_encryption_can_be_switched_off(tmp_path: Path) -> None:
    own = rendered(tmp_path, {"tls": {"existingSecret": "dask-tls"}})
    assert own.of("Secret") == {}
    assert own.client["tlsSecret"] == "dask-tls"
    pods = {name: pod["spec"]["volumes"] for name, pod in own.pods() if "volumes" in pod["spec"]}
    secrets = {name: [one["secret"]["secretName"] for one in found if "secret" in one] for name, found in pods.items()}
    with_it = (
        "mops-scheduler",
        "mops-worker",
        "client's worker",
        "client's scheduler",
        "mops-test-storage",
        "mops-test-worker",
    )
    assert {name for name, found in secrets.items() if found == ["dask-tls"]} == set(with_it)
    off = rendered(tmp_path, {"tls": {"enabled": False}})
    assert off.of("Secret") == {}
    assert not [one for _, pod in off.pods() for one in pod["spec"].get("volumes", ()) if "secret" in one]
    assert (off.client["scheduler"], off.client.get("tlsSecret")) == ("tcp://mops-scheduler.studies.svc:8786", None)


# Memory


UNITS = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def limit_of(found: Rendered) -> int:
    (limit,) = (word for word in found.container("worker")["args"] if word.startswith("--memory-limit="))
    assert limit.endswith("MiB")
    return int(limit.removeprefix("--memory-limit=").removesuffix("MiB"))


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        ("4Gi", 3686),
        ("4194304Ki", 3686),
        (4294967296, 3686),
        ("1.5Gi", 1280),
        ("0.01T", 8583),
    ],
)
def test_the_memory_limit_of_dask_leaves_the_headroom(tmp_path: Path, memory: str | int, limit: int) -> None:
    found = rendered(tmp_path, {"worker": {"memory": memory, "threads": 1}})
    assert limit_of(found) == limit
    assert str(memory) == found.container("worker")["resources"]["limits"]["memory"]


@given(
    number=st.integers(1, 5000),
    unit=st.sampled_from(["", "M", "G", "Mi", "Gi"]),
    threads=st.integers(1, 64),
    headroom_mib=st.none() | st.integers(0, 20_000),
)
@example(number=960, unit="Mi", threads=1, headroom_mib=None)
@example(number=959, unit="Mi", threads=1, headroom_mib=None)
@example(number=4, unit="Gi", threads=2, headroom_mib=None)
@example(number=3, unit="G", threads=1, headroom_mib=300)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_chart_installs_passes_mops_doctor(
    tmp_path: Path, number: int, unit: str, threads: int, headroom_mib: int | None
) -> None:
    """For any memory, slots and headroom, the chart installs a good cluster or refuses with its calculation."""
    container = number * UNITS[unit] // 4096 * 4096
    tenth = -(-container // 10)
    headroom = max(tenth, 256 * MIB) if headroom_mib is None else headroom_mib * MIB
    limit = (container - headroom) // MIB
    right = headroom >= tenth and limit >= 192 and (limit - 192) // threads - 256 >= 256
    worker: Object = {"memory": f"{number}{unit}", "threads": threads}
    if headroom_mib is not None:
        worker["headroom"] = f"{headroom_mib}Mi"
    if not right:
        said = refused(tmp_path, {"worker": worker})
        assert "worker.headroom:" in said if headroom < tenth else f"- {headroom // MIB} MiB  headroom" in said
        return
    found = rendered(tmp_path, {"worker": worker})
    assert limit_of(found) == limit
    facts = Worker("tcp://w:1", threads, limit * MIB, container, 192 * MIB, False, False, "65536")
    assert list(findings(Scheduler("tcp://s:1", 1.0), [facts], {}, 1)) == []


def test_too_little_memory_is_refused_with_the_calculation_and_a_value_that_works(tmp_path: Path) -> None:
    said = refused(tmp_path, {"worker": {"memory": "1Gi", "threads": 2}})
    for line in (
        "worker.memory: a simulation has 32 MiB, and needs 256 MiB or more",
        "  1024 MiB  worker.memory",
        "- 256 MiB  headroom, max(10 %, 256 MiB)",
        "= 768 MiB  for Dask",
        "Set worker.memory to 1472Mi or more",
    ):
        assert line in said
    assert limit_of(rendered(tmp_path, {"worker": {"memory": "1472Mi", "threads": 2}})) == 1216


@pytest.mark.parametrize("memory", ["4GB", "lots", "-1Gi", "4 Gi"])
def test_an_invalid_amount_of_memory_is_refused(tmp_path: Path, memory: str) -> None:
    assert "/worker/memory" in refused(tmp_path, {"worker": {"memory": memory}})


# Network


def open_ports(container: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def allowed(policy: Object, ports: dict[str, int]) -> set[tuple[str, int]]:
    """Return pairs of a component and a port that it may connect to."""
    found = set()
    for rule in policy["spec"]["ingress"]:
        numbers = [ports[port["port"]] for port in rule["ports"]]
        for peer in rule["from"]:
            terms = peer.get("podSelector", {}).get("matchExpressions", [])
            who = [one for term in terms for one in term["values"]] or ["others"]
            found |= {(component, number) for component in who for number in numbers}
    return found


FROM_OURS = {
    "scheduler": {("worker", 8786), ("runner", 8786), ("autoscaler", 8786), ("test", 8787)},
    "worker": {("scheduler", 8790), *((who, 8789) for who in ("scheduler", "worker", "runner"))},
    "runner": set(),
}


@BOTH
def test_network_policies_allow_exactly_the_connections_that_are_needed(all_of: Rendered, values: Path) -> None:
    policies = all_of.of("NetworkPolicy")
    others = {"scheduler": {8787}, "worker": {8788}, "runner": {9095}}  # Prometheus
    if values == EVERYTHING:  # and a notebook, which fetches results from workers
        others = {"scheduler": {8786, 8787}, "worker": {8788, 8789}, "runner": {9095}}
    for component, ours in FROM_OURS.items():
        policy = policies[f"mops-{component}"]
        selector, labels = policy["spec"]["podSelector"], labels_of(all_of, component)
        if component == "worker":  # and the pod of helm test that has the credentials of workers
            term = {"key": COMPONENT, "operator": "In", "values": [labels.pop(COMPONENT), "test-worker"]}
            assert selector["matchExpressions"] == [term]
        assert selector["matchLabels"] == labels
        container = all_of.client["runner"] if component == "runner" else all_of.container(component)
        assert allowed(policy, open_ports(container)) == ours | {("others", port) for port in others.get(component, ())}


@BOTH
def test_containers_declare_the_ports_that_they_listen_on(all_of: Rendered) -> None:
    """The Service leads to these ports."""
    for component in ("scheduler", "worker"):
        container = all_of.container(component)
        listened = {int(port) for port in re.findall(r"\b87\d\d\b", " ".join(container["args"]))}
        assert set(open_ports(container).values()) == listened
    ports = open_ports(all_of.container("scheduler"))
    service = all_of.of("Service")["mops-scheduler"]["spec"]["ports"]
    assert {port["port"]: ports[port["targetPort"]] for port in service} == {8786: 8786, 8787: 8787}


def test_network_policies_can_be_switched_off(tmp_path: Path) -> None:
    found = rendered(tmp_path, {"networkPolicy": {"enabled": False}}, EVERYTHING)
    assert found.of("NetworkPolicy") == {}
    assert "mops-test-network" not in found.of("Pod"), "nothing closes port 8786"


def test_egress_is_only_restricted_on_request(tmp_path: Path) -> None:
    for policy in rendered(tmp_path).of("NetworkPolicy").values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
    restricted = rendered(tmp_path, {}, EVERYTHING).of("NetworkPolicy")
    for component in FROM_OURS:
        names, release, outside, *more = restricted[f"mops-{component}"]["spec"]["egress"]
        assert {port["port"] for port in names["ports"]} == {53}
        assert release["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "mops"
        assert {port["port"] for port in outside["ports"]} == {443, 6443}
        assert bool(more) == (component == "runner")


DASK_PODS = {"matchExpressions": [{"key": "dask.org/component", "operator": "In", "values": ["scheduler", "worker"]}]}


def test_with_restricted_egress_runners_still_reach_dedicated_clusters(tmp_path: Path) -> None:
    """The port of the scheduler was blocked, so no job could run on a dedicated cluster with restricted egress."""
    found = rendered(tmp_path, {}, EVERYTHING).of("NetworkPolicy")["mops-runner"]["spec"]["egress"][-1]
    assert found["to"] == [{"podSelector": DASK_PODS}]
    assert found["ports"] == [{"port": 8786, "endPort": 8790, "protocol": "TCP"}]
    off = rendered(tmp_path, {"dedicated": {"enabled": False}}, EVERYTHING).of("NetworkPolicy")
    assert "dask.org/component" not in str(off)


def test_restricted_egress_applies_to_dedicated_clusters(tmp_path: Path) -> None:
    """Their workers, which run the code of a model, had no restriction."""
    spec = rendered(tmp_path, {}, EVERYTHING).of("NetworkPolicy")["mops-dedicated"]["spec"]
    assert (spec["podSelector"], spec["policyTypes"]) == (DASK_PODS, ["Ingress", "Egress"])
    names, outside, clusters = spec["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert {port["port"] for port in outside["ports"]} == {443, 6443}
    assert clusters["to"] == [{"podSelector": DASK_PODS}]


def test_only_dedicated_clusters_runners_and_those_of_the_values_connect_to_dedicated_clusters(tmp_path: Path) -> None:
    """A policy of each cluster, which a runner made, needed a right with which it could open each pod."""
    found = rendered(tmp_path, {}, EVERYTHING)
    ours, *others = found.of("NetworkPolicy")["mops-dedicated"]["spec"]["ingress"]
    clusters, runners = ours["from"]
    assert clusters == {"podSelector": DASK_PODS}
    assert "component" in str(runners)
    assert "'runner'" in str(runners)
    assert ours["ports"] == [{"port": 8786, "endPort": 8790, "protocol": "TCP"}]
    assert not any("dask.org" in str(peer) or "runner" in str(peer) for rule in others for peer in rule["from"])


@pytest.mark.parametrize("component", ["scheduler", "worker", "runner", "dedicated"])
def test_restricted_egress_blocks_the_metadata_services_of_clouds(tmp_path: Path, component: str) -> None:
    """The code of a model could take the identity of the node if its port was allowed."""
    values = {"networkPolicy": {"egress": {"enabled": True, "ports": [80, 443]}}, "dedicated": {"enabled": True}}
    for rule in rendered(tmp_path, values).of("NetworkPolicy")[f"mops-{component}"]["spec"]["egress"]:
        if {port["port"] for port in rule["ports"]} == {53} if "ports" in rule else False:
            continue
        for peer in rule.get("to", [{}]):
            assert peer, "a rule without peers allows everything"
            if "ipBlock" in peer:
                blocked = {"0.0.0.0/0": "169.254.169.254/32", "::/0": "fd00:ec2::254/128"}
                assert peer["ipBlock"]["except"] == [blocked[peer["ipBlock"]["cidr"]]]


def test_the_list_of_blocked_addresses_can_be_empty(tmp_path: Path) -> None:
    """Pods that use the identity of their machine need that address."""
    values = {"networkPolicy": {"egress": {"enabled": True, "blocked": []}}}
    outside = rendered(tmp_path, values).of("NetworkPolicy")["mops-worker"]["spec"]["egress"][-1]
    assert {"ipBlock": {"cidr": "0.0.0.0/0"}} in outside["to"]


def test_with_the_values_for_gke_pods_reach_its_metadata_service(tmp_path: Path) -> None:
    """The advice was to unblock the address, and port 80, where it answers, stayed closed."""
    (values,) = (one for one in yaml_of(CHART / "README.md") if "networkPolicy" in one)
    for component in ("worker", "runner"):
        policy = rendered(tmp_path, values).of("NetworkPolicy")[f"mops-{component}"]["spec"]
        (outside,) = (rule for rule in policy["egress"] if {"ipBlock": {"cidr": "0.0.0.0/0"}} in rule.get("to", []))
        assert {"port": 80, "protocol": "TCP"} in outside["ports"]


# Roles


def rules(found: Rendered, name: str) -> set[tuple[str, str, str]]:
    """Return what a Role allows: group, resource (with its name), verb."""
    return {
        (rule["apiGroups"][0], resource + "".join(f"={one}" for one in rule.get("resourceNames", [])), verb)
        for rule in found.of("Role")[name]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


RUNNER = {("", "pods", "list"), ("", "events", "list")}
CLIENT = {
    ("", "configmaps=mops-client", "get"),
    *(("batch", "jobs", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(("", "pods", verb) for verb in ("get", "list", "watch")),
    ("", "pods/log", "get"),
    ("", "events", "list"),
    ("", "services", "get"),
    *(("", "pods/portforward", verb) for verb in ("create", "get")),
}


def dedicated(*verbs: str, kinds: tuple[str, ...] = ("daskclusters", "daskautoscalers")) -> set[tuple[str, str, str]]:
    return {("kubernetes.dask.org", kind, verb) for kind in kinds for verb in verbs}


def test_roles_allow_exactly_what_is_needed(tmp_path: Path) -> None:
    found, everything = rendered(tmp_path), rendered(tmp_path, {}, EVERYTHING)
    assert set(found.of("Role")) == {"mops-runner", "mops-client", "mops-manager"}
    assert set(everything.of("Role")) == {"mops-runner", "mops-client", "mops-manager", "mops-autoscaler"}
    workers = "mops-worker=mops-worker-gpu=mops-worker-large"
    assert rules(everything, "mops-autoscaler") == {
        ("apps", f"deployments={workers}", "get"),
        ("apps", f"deployments/scale={workers}", "patch"),
        *(("", "pods", verb) for verb in ("list", "patch")),
    }
    assert rules(found, "mops-runner") == RUNNER
    clusters = dedicated("create", "get") | dedicated("delete", kinds=("daskclusters",))
    assert rules(everything, "mops-runner") == RUNNER | clusters
    certificate = {("", "secrets=mops-tls", "get")}
    assert rules(found, "mops-client") == CLIENT | certificate
    own = {("", "secrets=dask-tls", "get")}
    assert rules(everything, "mops-client") == CLIENT | own | dedicated("get", "list", "watch")
    assert rules(rendered(tmp_path, {"tls": {"enabled": False}}), "mops-client") == CLIENT
    assert rules(found, "mops-manager") == {("", f"configmaps={names.client_name('mops')}", names.MANAGE_OTHERS)}
    assert found.of("ClusterRole") == everything.of("ClusterRole") == {}


def test_roles_are_bound_to_the_subjects_in_values(tmp_path: Path) -> None:
    bound = {name: binding["subjects"] for name, binding in rendered(tmp_path).of("RoleBinding").items()}
    assert bound == {"mops-runner": [{"kind": "ServiceAccount", "name": "mops-runner", "namespace": "studies"}]}
    everything = rendered(tmp_path, {}, EVERYTHING).of("RoleBinding")
    for role, subjects in {"mops-client": ["modellers", "grace"], "mops-manager": ["grace"]}.items():
        assert [subject["name"] for subject in everything[role]["subjects"]] == subjects
        assert everything[role]["roleRef"]["name"] == role


# Storage


def test_workload_identity_is_set_on_accounts_and_pods(tmp_path: Path) -> None:
    found = rendered(tmp_path, {}, EVERYTHING)
    accounts = {name: one["metadata"].get("annotations", {}) for name, one in found.of("ServiceAccount").items()}
    given = yaml.safe_load(EVERYTHING.read_text())["storage"]
    for component in ("runner", "worker"):
        annotations = accounts[f"mops-{component}"]
        assert annotations["azure.workload.identity/client-id"] == given[component]["workloadIdentity"]["clientId"]
        assert annotations["azure.workload.identity/tenant-id"] == given[component]["workloadIdentity"]["tenantId"]
    assert not any(name.startswith("azure") for name in accounts["mops-scheduler"])
    use = {"azure.workload.identity/use": "true"}
    pods = {name: deployment["spec"]["template"] for name, deployment in found.of("Deployment").items()}
    assert pods["mops-worker"]["metadata"]["labels"].items() >= use.items()
    assert not pods["mops-scheduler"]["metadata"]["labels"].items() >= use.items()
    assert found.client["runner"]["labels"].items() >= use.items()
    assert "azure" not in rendered(tmp_path).text


def test_each_component_has_its_own_secret(tmp_path: Path) -> None:
    found = rendered(tmp_path, {}, EVERYTHING)
    assert found.container("worker")["envFrom"] == [{"secretRef": {"name": "storage-read"}}]
    assert found.client["runner"]["envFrom"] == [{"secretRef": {"name": "storage-write"}}]
    assert "envFrom" not in found.container("scheduler")


def test_a_volume_is_writable_for_runners_and_read_only_for_workers(tmp_path: Path) -> None:
    found = rendered(tmp_path, {"storage": {"url": "", "pvc": {"enabled": True}}})
    assert found.client["storage"] == "/storage"
    (claim,) = found.of("PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert {"name": "storage", "mountPath": "/storage"} in found.client["runner"]["volumeMounts"]
    mount = {"name": "storage", "mountPath": "/storage", "readOnly": True}
    assert mount in found.container("worker")["volumeMounts"]
    volume = {"name": "storage", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert volume in found.client["runner"]["volumes"]


def test_an_existing_claim_is_used(tmp_path: Path) -> None:
    found = rendered(tmp_path, {"storage": {"pvc": {"enabled": True, "existingClaim": "theirs"}}})
    assert found.of("PersistentVolumeClaim") == {}
    assert {"name": "storage", "persistentVolumeClaim": {"claimName": "theirs"}} in found.client["runner"]["volumes"]


# Clients


@BOTH
def test_clients_read_the_pod_templates_of_the_deployments(all_of: Rendered) -> None:
    """Dedicated clusters are made from them, and have no pools."""
    template = all_of.of("Deployment")["mops-worker"]["spec"]["template"]
    del template["metadata"]["labels"]["mops/pool"]
    arguments = template["spec"]["containers"][0]["args"]
    template["spec"]["containers"][0]["args"] = [one for one in arguments if one != "--resources=pool-default=1"]
    assert all_of.client["worker"]["podTemplate"] == template
    assert all_of.client["schedulerPodTemplate"] == all_of.of("Deployment")["mops-scheduler"]["spec"]["template"]


def test_the_client_configuration_of_a_minimal_release(tmp_path: Path) -> None:
    found = rendered(tmp_path)
    client = found.client
    config = found.of("ConfigMap")["mops-client"]
    assert config["metadata"]["labels"]["app.kubernetes.io/component"] == "client"
    assert '\n  "format": 1,' in config["data"]["client.json"]
    assert set(client["worker"]) == {"selector", "podTemplate"}
    assert {key: value for key, value in client.items() if "odTemplate" not in key and key != "worker"} == {
        "format": 1,
        "version": mops.__version__,
        "release": "mops",
        "namespace": "studies",
        "storage": "abfs://studies/mops",
        "scheduler": "tls://mops-scheduler.studies.svc:8786",
        "tlsSecret": "mops-tls",
        "dashboard": {"service": "mops-scheduler", "port": 8787},
        "networkPolicy": True,
        "dedicated": {"enabled": False, "workers": 2, "runnerQueue": ""},
        "runner": {
            "image": f"localhost/mops:{mops.__version__}",
            "imagePullPolicy": "IfNotPresent",
            "serviceAccount": "mops-runner",
            "automountServiceAccountToken": True,
            "podSecurityContext": client["runner"]["podSecurityContext"],
            "securityContext": client["runner"]["securityContext"],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
            "ports": [{"name": "metrics", "containerPort": 9095}],
            "env": [
                {"name": "HOME", "value": "/tmp"},
                {"name": "XDG_CACHE_HOME", "value": "/tmp/.cache"},
                {"name": "DASK_CONFIG", "value": "/etc/mops/dask"},
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "10Gi"}},
                {"name": "dask-config", "configMap": {"name": "mops-dask"}},
                {"name": "tls", "secret": {"secretName": "mops-tls"}},
            ],
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "dask-config", "mountPath": "/etc/mops/dask", "readOnly": True},
                {"name": "tls", "mountPath": "/etc/mops/tls", "readOnly": True},
            ],
            "labels": labels_of(found, "runner"),
            "backoffLimit": 6,
            "ttlSecondsAfterFinished": 604800,
            "terminationGracePeriodSeconds": 60,
        },
    }


def test_the_client_configuration_of_a_runner_with_all_values(tmp_path: Path) -> None:
    runner = rendered(tmp_path, {}, EVERYTHING).client["runner"]
    given = yaml.safe_load(EVERYTHING.read_text())["runner"]
    same = ("resources", "annotations", "nodeSelector", "tolerations", "affinity", "priorityClassName", "queue")
    numbers = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "terminationGracePeriodSeconds")
    assert {key: runner[key] for key in same + numbers} == {key: given[key] for key in same + numbers}
    assert [entry["name"] for entry in runner["env"]][-3:] == ["AZURE_STORAGE_ACCOUNT_NAME", "LANG", "NODE_NAME"]
    assert runner["imagePullSecrets"] == [{"name": "pull"}]


def test_zero_is_kept_as_a_value(tmp_path: Path) -> None:
    """Zero means no retries and Jobs that are removed at once, but no time limit."""
    given = {"runner": {"backoffLimit": 0, "ttlSecondsAfterFinished": 0, "activeDeadlineSeconds": 0}}
    runner = rendered(tmp_path, given).client["runner"]
    assert (runner["backoffLimit"], runner["ttlSecondsAfterFinished"]) == (0, 0)
    assert "activeDeadlineSeconds" not in runner


# Metrics


def test_the_pod_monitor_finds_the_ports_of_all_components(tmp_path: Path) -> None:
    assert rendered(tmp_path).of("PodMonitor") == {}
    found = rendered(tmp_path, {}, EVERYTHING)
    (monitor,) = found.of("PodMonitor").values()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    spec = monitor["spec"]
    components = spec["selector"]["matchExpressions"][0]["values"]
    ports = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    containers = {name: found.container(name) for name in ("scheduler", "worker")} | {"runner": found.client["runner"]}
    assert set(components) == set(containers)
    listened = {name: [port for port in open_ports(one) if port in ports] for name, one in containers.items()}
    assert listened == {"scheduler": ["http"], "worker": ["http"], "runner": ["metrics"]}


SERVICE_MONITOR = {"metrics": {"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}}}


def test_the_service_monitor_finds_the_same_ports_through_services(tmp_path: Path) -> None:
    """Each of these Services selects the pods of one component, and a port of theirs that the monitor names."""
    assert rendered(tmp_path, {}, EVERYTHING).of("ServiceMonitor") == {}
    found = rendered(tmp_path, SERVICE_MONITOR, EVERYTHING)
    assert found.of("PodMonitor") == {}
    (monitor,) = found.of("ServiceMonitor").values()
    (pod_monitor,) = rendered(tmp_path, {}, EVERYTHING).of("PodMonitor").values()
    assert monitor["metadata"] == pod_monitor["metadata"]
    assert monitor["spec"]["selector"] == pod_monitor["spec"]["selector"]
    assert monitor["spec"]["endpoints"] == pod_monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["jobLabel"] == pod_monitor["spec"]["jobLabel"]
    containers = {name: found.container(name) for name in ("scheduler", "worker")} | {"runner": found.client["runner"]}
    services, asked = found.of("Service"), {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    assert set(services) == {"mops-ui", *(f"mops-{component}" for component in containers)}
    selector = monitor["spec"]["selector"]
    for component, container in containers.items():
        service = services[f"mops-{component}"]
        labels = service["metadata"]["labels"]
        assert labels.items() >= selector["matchLabels"].items()
        assert labels["app.kubernetes.io/component"] in selector["matchExpressions"][0]["values"]
        assert service["spec"]["selector"] == labels_of(found, component)
        (port,) = (one for one in service["spec"]["ports"] if one["name"] in asked)
        assert open_ports(container)[port["targetPort"]] == port["port"]
        if component != "scheduler":
            assert service["spec"]["clusterIP"] == "None"


def test_two_monitors_of_the_same_pods_are_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, {"metrics": {"serviceMonitor": {"enabled": True}}}, EVERYTHING)
    assert "Prometheus would have every series twice" in said


def test_the_dashboard_is_rendered_on_request_if_the_chart_has_it(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "dashboards", ignore_errors=True)
    on = {"metrics": {"dashboard": {"enabled": True}}}
    assert "mops-dashboard" not in rendered(tmp_path, on, MINIMAL, chart=chart).of("ConfigMap")
    (chart / "dashboards").mkdir()
    panel = '{"title": "{{ verdict }}"}\n'
    (chart / "dashboards" / "mops.json").write_text(panel)
    assert "mops-dashboard" not in rendered(tmp_path, {}, MINIMAL, chart=chart).of("ConfigMap")
    made = rendered(tmp_path, on, MINIMAL, chart=chart).of("ConfigMap")["mops-dashboard"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["data"] == {"mops.json": panel}


# The web page


def test_the_web_page_is_off_by_default(tmp_path: Path) -> None:
    assert "mops-ui" not in rendered(tmp_path).text


def test_the_web_page_only_reads(tmp_path: Path) -> None:
    found = rendered(tmp_path, {}, EVERYTHING)
    container = found.container("ui")
    assert container["args"][:4] == ["mops", "ui", "--behind-login", "--read-only"]
    assert container["args"][-2:] == ["--storage", found.client["storage"]]
    assert container["envFrom"] == [{"secretRef": {"name": "storage-page"}}]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "storage")
    assert mount["readOnly"] is True
    (port,) = found.of("Service")["mops-ui"]["spec"]["ports"]
    assert open_ports(container)[port["targetPort"]] == port["port"] == 8750
    assert container["args"][container["args"].index("--port") + 1] == "8750"


def test_only_the_pods_in_values_reach_the_web_page(tmp_path: Path) -> None:
    (rule,) = rendered(tmp_path, {}, EVERYTHING).of("NetworkPolicy")["mops-ui"]["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    assert rule["ports"] == [{"port": "page", "protocol": "TCP"}]
    nobody = rendered(tmp_path, {"ui": {"from": []}}, EVERYTHING).of("NetworkPolicy")["mops-ui"]["spec"]
    assert (nobody["policyTypes"][0], nobody["ingress"]) == ("Ingress", [])


# Notes


@BOTH
def test_the_notes_have_the_next_commands(values: Path, tmp_path: Path) -> None:
    """Helm shows notes only after an installation, so the test renders them as a part of the chart."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    wrapper = '{kind: Notes, metadata: {name: mops-notes}, text: {{ tpl (.Files.Get "notes.txt") . | toJson }}}'
    (chart / "templates" / "notes.yaml").write_text(wrapper)
    notes = rendered(tmp_path, {}, values, chart=chart).of("Notes")["mops-notes"]["text"]
    assert "mops connect --namespace studies\n" in notes
    assert "mops jobs submit study.json" in notes
    assert ("WARNING: runners have no credentials" in notes) == (values == MINIMAL)
    assert "app.kubernetes.io/instance=mops,app.kubernetes.io/component=worker" in notes
    autoscaled = values == EVERYTHING
    assert f"has {'1 to 20' if autoscaled else '2'} workers" in notes
    assert ("scale deployment mops-worker --replicas" in notes) == (not autoscaled)
    assert ("logs deployment/mops-autoscaler" in notes) == autoscaled


def test_all_objects_have_the_name_of_their_release(tmp_path: Path) -> None:
    """Two releases in a namespace are independent."""
    ran = helm("template", "second", CHART, "--namespace", "studies", "--values", EVERYTHING)
    names = {found["metadata"]["name"] for found in Rendered(ran.stdout).objects}
    assert all(name.startswith("second-") for name in names)
    assert "mops-" not in re.sub(r"mops-0\.1\.0", "", ran.stdout)


# Dedicated clusters


DEDICATED_EXAMPLE = CHART.parents[1] / "k8s" / "daskcluster.example.yaml"


def test_the_example_of_a_dedicated_cluster_is_what_the_chart_makes(tmp_path: Path) -> None:
    values = {"dedicated": {"enabled": True}, "worker": {"labels": {"cost-centre": "modelling"}}}
    service = ServiceConfig.parse(json.dumps(rendered(tmp_path, values).client), "here")
    labels = {names.JOB: "sir-261005-ab12", names.OWNER: "ada", names.STUDY: "sir"}
    name = names.cluster_name(labels[names.JOB], "7f3a2c")
    made = dedicated_objects.objects(dedicated_objects.spec_builder(), service, name, "studies", Size(2, 16), labels)
    assert made == list(yaml.safe_load_all(DEDICATED_EXAMPLE.read_text())), (
        f"write:\n{yaml.safe_dump_all(made, sort_keys=False)}"
    )


def test_dedicated_schedulers_serve_what_shared_ones_do_and_the_api_of_the_operator(tmp_path: Path) -> None:
    """Without the API, the operator, which has no certificate, could neither add nor retire workers."""
    found = rendered(tmp_path, {"dedicated": {"enabled": True}})
    config = yaml.safe_load(found.of("ConfigMap")["mops-dask"]["data"]["distributed.yaml"])
    shared = config["distributed"]["scheduler"]["http"]["routes"]
    made = yaml.safe_load_all(DEDICATED_EXAMPLE.read_text())
    (container,) = next(made)["spec"]["scheduler"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert ast.literal_eval(variables["DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES"]) == [
        "distributed.http.scheduler.api",
        *shared,
    ]
    policy = found.of("NetworkPolicy")["mops-dedicated"]["spec"]["ingress"]
    (of_prometheus,) = (rule for rule in policy if "monitoring" in str(rule["from"]))
    assert of_prometheus["ports"] == [{"port": 8788, "protocol": "TCP"}]


@BOTH
def test_the_schema_of_the_operator_accepts_and_keeps_all_fields(tmp_path: Path, values: Path) -> None:
    """The schema accepts `cpu: "2"` but not `cpu: 2`, and Kubernetes silently drops unknown fields."""
    numbers = {"worker": {"cpu": 2}, "scheduler": {"resources": {"requests": {"cpu": 2, "memory": 1 << 30}}}}
    service = ServiceConfig.parse(json.dumps(rendered(tmp_path, numbers, values).client), "here")
    drawn = dedicated_objects.objects(
        dedicated_objects.spec_builder(), service, "dask-sir-7f3a2c", "studies", Size(2, 6), {names.JOB: "sir"}
    )
    of_the_operator = [made for made in drawn if made["apiVersion"] == dedicated_objects.API_VERSION]
    assert len(of_the_operator) == 2
    for made in of_the_operator:
        assert list(misfits(made["spec"], schema_of(made["kind"]), made["kind"])) == []


def schema_of(kind: str) -> Object:
    """Return the schema of the spec of a kind, from the chart of the operator."""
    chart = Path(dask_kubernetes.__path__[0]) / "operator/deployment/helm/dask-kubernetes-operator"
    (version,) = yaml.safe_load((chart / f"crds/{kind.lower()}.yaml").read_text())["spec"]["versions"]
    schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}


def misfits(value: Any, schema: Object, path: str) -> Iterator[str]:
    """Yield where a value does not match a schema."""
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        yield f"{path}: {value!r} is no {schema['type']}"
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from misfits(item, schema["items"], f"{path}[{i}]")
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from [f"{path}.{name} is unknown"] if inner is None else misfits(item, inner, f"{path}.{name}")
