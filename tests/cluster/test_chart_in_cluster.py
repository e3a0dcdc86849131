"""The chart on a real Kubernetes: the API server accepts it; rights, upgrades and rollbacks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_lab import yaml_of
from service_lab import CHART, ROOT, Service, installed, wait_for, write_study

from mops.k8s.chart import ServiceConfig
from mops.k8s.runner_job import runner_job
from programs import Ran
from runner_jobs import REQUEST

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = (
    *("pods", "pods/log", "pods/exec", "pods/portforward", "events", "secrets", "configmaps", "services"),
    *("serviceaccounts", "persistentvolumeclaims", "jobs.batch", "deployments.apps", "roles.rbac.authorization.k8s.io"),
    *("rolebindings.rbac.authorization.k8s.io", "networkpolicies.networking.k8s.io", "deployments.apps/scale"),
    *("daskclusters.kubernetes.dask.org", "daskautoscalers.kubernetes.dask.org"),
)
MAY = {
    "mops-scheduler": set(),
    "mops-worker": set(),
    "mops-runner": {("list", "pods"), ("list", "events")},
}


def allowed(service: Service, who: str) -> set[tuple[str, str]]:
    """Return the verbs and resources that an account may use in the namespace."""
    asked = [(verb, resource) for resource in RESOURCES for verb in VERBS]
    text = yaml.safe_dump_all(review(service.namespace, who, verb, resource) for verb, resource in asked)
    answers = service.kubectl("create", "-f", "-", "-o", r'jsonpath={.status.allowed}{"\n"}', text=text).splitlines()
    return {one for one, answer in zip(asked, answers, strict=True) if answer == "true"}


def review(namespace: str, who: str, verb: str, resource: str) -> dict[str, Any]:
    """Return the question whether an account may do this, which the API server answers when it is created."""
    plain, _, subresource = resource.partition("/")
    name, _, group = plain.partition(".")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": subresource}
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    spec = {"user": who, "groups": groups, "resourceAttributes": asked}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def test_pods_are_admitted_in_a_restricted_namespace(service: Service) -> None:
    namespace = json.loads(service.kubectl("get", "namespace", service.namespace, "-o", "json"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for component in ("scheduler", "worker"):
        assert service.pods(component)
    refused = [event for event in service.objects("events") if event["reason"] == "FailedCreate"]
    assert refused == []


@pytest.fixture(scope="module")
def monitors(service: Service) -> None:
    """Install the kinds of the Prometheus operator, so that the API server compares monitors with their schemas."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, which downloads the kinds of the Prometheus operator")
    ran = service.run(ROOT / "k8s" / "testcluster" / "monitors-up", HOME=str(Path.home()))
    assert ran.code == 0, ran.err


@pytest.mark.usefixtures("monitors")
@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_the_api_server_accepts_everything_values(service: Service, monitor: str) -> None:
    values = CHART / "ci" / "everything-values.yaml"
    chosen = f"metrics.podMonitor.enabled=false,metrics.{monitor}.enabled=true"
    ran = service.run("helm", "template", "other", CHART, "-n", service.namespace, "-f", values, "--set", chosen)
    assert ran.code == 0, ran.err
    objects = [one for one in yaml.safe_load_all(ran.out) if one]
    for pod in (one for one in objects if one["kind"] == "Pod"):  # its account and its class must exist
        pod["spec"]["serviceAccountName"] = "default"
        pod["spec"].pop("priorityClassName", None)
    (client,) = (one for one in objects if one["metadata"]["name"] == "other-client" and one["kind"] == "ConfigMap")
    runner = ServiceConfig.of(client, "here").runner
    objects.append(runner_job(runner, replace(REQUEST, namespace=service.namespace)))
    (found,) = (one for one in objects if one["kind"].lower() == monitor.lower())
    ran = dry_run(service, objects)
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == len(objects)
    found["spec"]["selectors"] = found["spec"].pop("selector")
    ran = dry_run(service, [found])
    assert ran.code != 0
    assert 'unknown field "spec.selectors"' in ran.err
    (rule,) = (one for one in objects if one["kind"] == "PrometheusRule")
    rule["spec"]["groups"][0]["rules"][0]["fors"] = "5m"
    ran = dry_run(service, [rule])
    assert ran.code != 0
    assert 'unknown field "spec.groups[0].rules[0].fors"' in ran.err


def dry_run(service: Service, objects: list[dict[str, Any]]) -> Ran:
    """Let the API server check objects, without creating them."""
    text = yaml.safe_dump_all(objects)
    return service.run("kubectl", "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-", text=text)


def test_the_api_server_accepts_the_objects_of_the_guides(service: Service) -> None:
    objects = yaml_of("costs-and-backups")
    assert {one["kind"] for one in objects} == {"ResourceQuota", "LimitRange"}
    for one in objects:
        one["metadata"]["namespace"] = service.namespace
    ran = dry_run(service, objects)
    assert ran.code == 0, ran.err


def test_the_example_of_a_cronjob_deletes_old_jobs(service: Service) -> None:
    cronjob = yaml.safe_load((ROOT / "k8s" / "clean.example.yaml").read_text())
    cronjob["metadata"]["namespace"] = service.namespace
    ran = dry_run(service, [cronjob])
    assert ran.code == 0, ran.err
    cronjob["spec"]["suspend"] = True
    (container,) = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    image = service.values["image"]
    container["image"], container["imagePullPolicy"] = f"{image['repository']}:{image['tag']}", "Never"
    container["envFrom"][0]["secretRef"]["name"] = "storage"
    variables = {one["name"]: one for one in container["env"]}
    variables["MODELOPS_STORAGE"]["value"] = service.url
    container["env"].remove(variables["AZURE_STORAGE_ACCOUNT_NAME"])
    study = write_study(service, "aged", sets=2, seconds=0)
    for job in ("aged", "young"):
        service.submit(study, job)
        service.wait(job)
    an_hour_ago(service, "aged")
    container["args"] = ["1h" if one == "30d" else one for one in container["args"]]
    service.kubectl("apply", "-f", "-", text=yaml.safe_dump(cronjob))
    service.kubectl("create", "job", "mops-clean-now", "--from=cronjob/mops-clean")
    service.kubectl("wait", "--for=condition=complete", "job/mops-clean-now", "--timeout=120s")
    assert "deleted job aged\n" in service.kubectl("logs", "job/mops-clean-now")
    assert [job["job"] for job in service.mops("jobs", "list", "--json").json if job["job"] in ("aged", "young")] == [
        "young"
    ]


def an_hour_ago(service: Service, job: str) -> None:
    """Let a job have been submitted, and have ended, two hours earlier."""
    files, paths = service.job(job).files, service.job(job).record.paths

    def earlier(found: re.Match[bytes]) -> bytes:
        return found[1] + str(float(found[2]) - 7200).encode()

    for entry in (*files.list(paths.log), *files.list(f"{paths.root}/live")):
        files.put(entry.path, re.sub(rb'("(?:time|at)": ?)([\d.]+)', earlier, files.get(entry.path)))
    record = json.loads(files.get(paths.record))
    created = datetime.fromisoformat(record["created"]) - timedelta(hours=2)
    files.put(paths.record, json.dumps(record | {"created": created.isoformat()}).encode())


def test_helm_test_reaches_the_scheduler_and_the_storage_and_says_so(service: Service) -> None:
    ran = service.run("helm", "test", "mops", "-n", service.namespace, "--timeout", "2m")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("Phase:          Succeeded") == 4
    assert f"{service.url}: this account can create, read, list and remove files" in ran.out + ran.err
    assert f"{service.url}: this account can list and read files" in ran.out + ran.err
    assert "workers connected: 2" in ran.out + ran.err
    assert "mops-scheduler:8786: closed to other pods" in ran.out + ran.err


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Return the chart with an earlier version number."""
    chart = tmp_path / "mops"
    shutil.copytree(CHART, chart)
    text = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(text.replace("\nversion: 0.1.0\n", "\nversion: 0.0.9\n"))
    return chart


@pytest.fixture
def fresh(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service that a test may upgrade."""
    page = {
        "enabled": True,
        "resources": {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
    }
    with installed("mops-upgraded", cluster, connected=False, ui=page) as found:
        yield found


def test_the_web_page_lists_the_jobs_of_the_storage_and_changes_nothing(fresh: Service) -> None:
    sets = {"parameter_sets": [{"x": x} for x in range(10)]}
    study = fresh.write("page", "def run(params, seed):\n    return {'y': [float(params['x'])]}\n", sets)
    fresh.mops("jobs", "submit", study, "--name", "shown", "--local", "--storage", fresh.url)
    proxy = f"/api/v1/namespaces/{fresh.namespace}/services/mops-ui:page/proxy"
    assert "shown" in fresh.kubectl("get", "--raw", f"{proxy}/")
    assert "read-only" in fresh.kubectl("get", "--raw", f"{proxy}/jobs/shown")
    assert "<svg" in fresh.kubectl("get", "--raw", f"{proxy}/jobs/shown/report")
    refused = fresh.run("kubectl", "create", "--raw", f"{proxy}/jobs/shown/cancel", "-f", "-", text="{}")
    assert refused.code != 0
    assert fresh.job("shown").status().state == "succeeded"


def test_an_upgrade_of_the_chart_and_its_rollback_do_not_restart_workers(fresh: Service, earlier: Path) -> None:
    values = fresh.home / "values.yaml"
    old = fresh.run(
        "helm", "upgrade", "mops", earlier, "-n", fresh.namespace, "-f", values, "--wait", "--timeout", "3m"
    )
    assert old.code == 0, old.err
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in fresh.objects("pods")}
    fresh.helm("upgrade")
    back = fresh.run("helm", "rollback", "mops", "-n", fresh.namespace, "--wait", "--timeout", "3m")
    assert back.code == 0, back.err
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in fresh.objects("pods")} == before
    listed = json.loads(fresh.run("helm", "history", "mops", "-n", fresh.namespace, "-o", "json").out)
    assert [one["chart"] for one in listed] == ["mops-0.1.0", "mops-0.0.9", "mops-0.1.0", "mops-0.0.9"]


def test_scaling_down_retires_workers(fresh: Service) -> None:
    def scheduler() -> str:
        return fresh.kubectl("logs", "deployment/mops-scheduler")

    # A pod is ready shortly before its worker is registered, and only a registered worker can be retired.
    wait_for(lambda: scheduler().count("Register worker") == 2, said=scheduler)
    fresh.kubectl("scale", "deployment", "mops-worker", "--replicas", "1")
    wait_for(lambda: len(fresh.pods("worker")) == 1, said=lambda: fresh.kubectl("get", "pods"))
    said = scheduler()
    assert "Retire worker" in said or "Retiring worker" in said, said
