"""Status, doctor and dashboard of a service on a real cluster, with different rights and problems."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml
from service_lab import MOPS, Ran, Service, assert_same_rows, begun, wait_for, write_study

from mops.errors import ServiceError, UsageError
from mops.k8s.client import Kubernetes
from mops.k8s.runner_job import runner_job
from runner_jobs import POD, REQUEST

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

LABEL = "app.kubernetes.io/component"
SEES = ("--verb=get,list", "--resource=pods,services,events,jobs.batch")


@pytest.fixture
def kubernetes(service: Service) -> Kubernetes:
    return Kubernetes(service.namespace, kubeconfig=service.env["KUBECONFIG"])


@contextmanager
def granted(service: Service, name: str, account: str, *rights: str) -> Iterator[None]:
    """Give an account rights for the body of the with statement."""
    service.kubectl("create", "role", name, *rights)
    service.kubectl("create", "rolebinding", name, "--role", name, "--serviceaccount", account)
    try:
        yield
    finally:
        service.kubectl("delete", "role,rolebinding", name)


@contextmanager
def person(service: Service, name: str, *role: str) -> Iterator[dict[str, str]]:
    """Create a user with a role; yield the environment of the user."""
    service.kubectl("create", "serviceaccount", name)
    try:
        if role:
            service.kubectl("create", "role", name, *role)
            account = f"{service.namespace}:{name}"
            service.kubectl("create", "rolebinding", name, "--role", name, "--serviceaccount", account)
        config = yaml.safe_load(Path(service.env["KUBECONFIG"]).read_text())
        config["users"][0]["user"] = {"token": service.kubectl("create", "token", name).strip()}
        path = service.home / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield {"KUBECONFIG": str(path)}
    finally:
        service.kubectl("delete", "serviceaccount,role,rolebinding", name, "--ignore-not-found")


@contextmanager
def scaled(service: Service, component: str, replicas: int) -> Iterator[None]:
    """Scale a component for the body of the with statement."""
    deployment = f"deployment/mops-{component}"
    before = service.kubectl("get", deployment, "-o", "jsonpath={.spec.replicas}")
    service.kubectl("scale", deployment, f"--replicas={replicas}")
    try:
        yield
    finally:
        service.kubectl("scale", deployment, f"--replicas={before}")
        service.kubectl("rollout", "status", deployment, "--timeout=180s")
        whole(service)


def status(service: Service, code: int | None = 0, **env: str) -> dict[str, Any]:
    found: dict[str, Any] = service.mops("cluster", "status", "--json", code=code, **env).json
    return found


# cluster status


def test_the_status_has_memory_and_versions_of_workers(service: Service) -> None:
    now = whole(service)
    assert sorted(one["name"] for one in now["workers"]) == sorted(service.pods("worker"))
    for worker in now["workers"]:
        assert (worker["pod"]["word"], worker["pod"]["ready"]) == ("running", True)
        assert 0 < worker["dask"]["tree_bytes"] < worker["dask"]["limit_bytes"]
    assert (
        now["versions"]["here"].keys() == now["versions"]["workers"].keys() == {"mops", "Python", "dask", "distributed"}
    )
    assert now["versions"]["scheduler"] == now["versions"]["workers"]
    assert now["scheduler"]["dask"]["saturation"] == 1
    assert now["faults"] == []
    told = service.mops("cluster", "status").out
    assert all(name in told for name in service.pods("worker"))
    assert f"{len(now['workers'])} running" in told


@contextmanager
def one_more_worker(service: Service, name: str, command: str, **resources: dict[str, str]) -> Iterator[None]:
    """Run another command in a pod with the labels of a worker."""
    labels = {"app.kubernetes.io/name": "mops", "app.kubernetes.io/instance": "mops", LABEL: "worker"}
    container = {
        "name": "worker",
        "image": service.env["MOPS_TEST_SIR_IMAGE"],
        "command": ["python", "-c", command],
        "resources": resources,
        "securityContext": POD.security,
    }
    spec = {"containers": [container], "securityContext": POD.pod_security, "terminationGracePeriodSeconds": 0}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    service.kubectl("apply", "-f", "-", text=yaml.safe_dump(manifest))
    try:
        yield
    finally:
        service.kubectl("delete", "pod", name)


def test_a_worker_that_keeps_running_out_of_memory_is_restarting(service: Service) -> None:
    """Its main process exceeds the memory limit of the container."""
    with one_more_worker(service, "greedy", "b'x' * (1 << 30)", limits={"memory": "64Mi", "cpu": "100m"}):

        def waiting() -> dict[str, Any] | None:
            now = pod_of(service, "greedy")
            return now if now["word"] == "restarting" else None

        found = wait_for(waiting)  # it may run again for a moment
        assert found is not None
        assert found["reason"].startswith("CrashLoopBackOff: ")
        assert found["last_end"] == "OOMKilled, exit code 137"
        wait_for(lambda: "1 restarting" in service.mops("cluster", "status").out)


def test_a_worker_without_room_is_unschedulable_with_the_reason(service: Service) -> None:
    with one_more_worker(service, "large", "", requests={"cpu": "1000"}):
        wait_for(lambda: pod_of(service, "large")["word"] == "unschedulable")
        assert "Insufficient cpu" in pod_of(service, "large")["reason"]
        told = service.mops("cluster", "status")
        assert "Insufficient cpu" in told.out
        assert "hint: wait for room" in told.err


def pod_of(service: Service, name: str) -> dict[str, Any]:
    """Return the state of a pod in the status, or an empty one."""
    found = [one["pod"] for one in status(service)["workers"] if one["name"] == name and one["pod"]]
    return found[0] if found else {"word": ""}


def whole(service: Service) -> dict[str, Any]:
    """Return the status when all workers are connected."""

    def look() -> dict[str, Any]:
        now = status(service, code=None)
        return now if now["workers"] and all(one["dask"] for one in now["workers"]) else {}

    return wait_for(look)


def test_a_service_without_workers_is_reported_with_the_command_to_scale(service: Service) -> None:
    with scaled(service, "worker", 0):
        wait_for(lambda: status(service)["workers"] == [])
        told = service.mops("cluster", "status")
        assert "0 workers connected" in told.out
        assert f"kubectl scale deployment mops-worker --namespace {service.namespace} --replicas 2" in told.err
        assert "no worker answers" in service.mops("doctor", code=1).err


@pytest.mark.parametrize("n_admitted", [0, 1])
def test_a_quota_that_refuses_workers_is_named_and_a_modeller_gets_a_hint_for_modellers(
    service: Service, n_admitted: int
) -> None:
    """Regression: the advice was to scale the Deployment, although its replicas were set, or there was none."""
    with scaled(service, "worker", 0), person(service, "modeller") as env:
        account = f"{service.namespace}:modeller"
        service.kubectl("create", "rolebinding", "modeller", "--role", "mops-client", "--serviceaccount", account)
        wait_for(lambda: not service.pods("worker"))
        service.kubectl("create", "quota", "few", f"--hard=pods={len(service.pods('scheduler')) + n_admitted}")
        try:
            service.kubectl("scale", "deployment/mops-worker", "--replicas=2")
            refused = "warning: Kubernetes refuses pods of workers: exceeded quota: few"
            wait_for(lambda: refused in service.mops("cluster", "status").err)
            assert len(service.pods("worker")) == n_admitted
            assert "hint: raise the quota, or lower worker.cpu" in service.mops("cluster", "status").err
            assert "hint: ask the cluster's operator to start workers" in service.mops("cluster", "status", **env).err
        finally:
            service.kubectl("delete", "quota", "few")
            service.kubectl("scale", "deployment/mops-worker", "--replicas=0")


def test_a_job_without_workers_says_what_it_waits_for_and_runs_when_they_come(service: Service) -> None:
    """Regression: it was "submitted", or "running, 2 min to go", and after 45 minutes its pods had failed too often."""
    study = write_study(service, "waits", sets=60, seconds=0.5)

    def shows(text: str) -> None:
        wait_for(
            lambda: text in service.mops("jobs", "status", "waits").out, said=lambda: service.what_is_wrong("waits")
        )

    with scaled(service, "worker", 0):
        service.submit(study, "waits", CHECKPOINT_SECONDS="0")
        shows("running: waits for workers: there is no pod")
        logged = service.mops("jobs", "logs", "waits", "--pod").out
        assert "has no workers; waiting\n" in logged, "the runner must wait without a limit"
    begun(service, "waits")
    with scaled(service, "worker", 0):
        shows("waits for workers since ")
        with person(service, "nobody") as env:  # Kubernetes refuses; the storage has everything
            listed = service.mops("jobs", "list", **env)
            assert "waits" in listed.out
            assert "warning: Kubernetes does not say which runners are alive" in listed.err
            assert "waits for workers since " in service.mops("jobs", "status", "waits", **env).out
    service.wait("waits")
    assert service.status("waits")["attempt"] == 1
    assert_same_rows(service, study, "waits")


def test_without_a_scheduler_the_status_shows_what_kubernetes_knows(service: Service) -> None:
    with scaled(service, "scheduler", 0):
        wait_for(lambda: not service.pods("scheduler"))
        told = service.mops("cluster", "status", code=4)
        assert "no pod of this Service is ready" in told.err
        assert "  at: " in told.err
        assert all(name in told.out for name in service.pods("worker"))
        assert service.mops("doctor", code=4).err.count("error: ") == 1
        assert "no pod of this Service is ready" in service.mops("dashboard", "--port", "0", code=4).err


def test_without_the_right_to_forward_ports_the_status_shows_what_kubernetes_knows(service: Service) -> None:
    """kr8s retried without end and without a pause."""
    asks = ("--verb=get", "--resource=secrets,configmaps")
    account = f"{service.namespace}:seer"
    with person(service, "seer", *SEES) as env, granted(service, "asks", account, *asks):
        began = time.monotonic()
        told = service.mops("cluster", "status", code=4, **env)
        assert time.monotonic() - began < 60
        assert "needs permission to get and create pods/portforward (Forbidden)" in told.err
        assert all(name in told.out for name in service.pods("worker"))
        assert status(service, code=4, **env)["scheduler"]["dask"] is None
        assert "pods/portforward" in service.mops("dashboard", "--port", "0", code=4, **env).err


def test_without_any_right_each_part_of_the_status_is_an_error(service: Service) -> None:
    with person(service, "nobody") as env:
        told = service.mops("cluster", "status", code=4, **env)
        assert told.err.count("error: Kubernetes does not allow this (403): ") == 3
        assert "unknown: see the error below" in told.out
        assert status(service, code=4, **env)["workers"] is None
        refused = service.mops("connect", "--namespace", service.namespace, code=4, **env).err
        assert "or you may not use it" in refused
        assert "clients.subjects" in refused


def test_without_a_connection_the_commands_say_how_to_connect(service: Service, tmp_path: Path) -> None:
    for command in (["cluster", "status"], ["dashboard"]):
        told = service.mops(*command, code=2, XDG_CONFIG_HOME=str(tmp_path))
        assert told.err.splitlines() == [
            "error: no cluster service is connected",
            f"  at: {tmp_path}/mops/profiles/default.json",
            "hint: connect to a service: mops connect --namespace NAME",
        ]


# doctor


def test_the_doctor_checks_the_connected_service(service: Service) -> None:
    told = service.mops("doctor")
    assert f"checking the connected service: {service.env.get('SERVER', 'https://')}" in told.err
    assert "no problems" in told.err
    assert "where this account can create, read, list and remove files" in told.err
    found = service.mops("doctor", "--json").json
    assert (len(found["workers"]), found["findings"]) == (len(service.pods("worker")), [])
    assert "this machine; " in service.mops("doctor", "--local").err


# dashboard


def get(url: str) -> int:
    """Return the HTTP status of a page, without a proxy."""
    with build_opener(ProxyHandler({})).open(url, timeout=30) as answer:
        return int(answer.status)


def answers(url: str) -> bool:
    try:
        return get(url) == 200
    except OSError:
        return False


@contextmanager
def dashboard(service: Service, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run mops dashboard; yield its process and the URL that it prints."""
    command = [MOPS, "dashboard", "--port", "0", *options]
    with subprocess.Popen(command, env=service.env, stdout=-1, stderr=-1, text=True, cwd=service.home) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_the_dashboard_serves_the_pages_of_dask_until_ctrl_c(service: Service) -> None:
    with dashboard(service) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert get(url) == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert err.splitlines() == ["the dashboard is available until Ctrl-C; open the URL in a browser", "stopped"]
    assert not answers(url)


def test_the_dashboard_reconnects_to_a_new_scheduler(service: Service) -> None:
    with dashboard(service) as (process, url):
        assert get(url) == 200
        service.kubectl("delete", "pod", "-l", f"{LABEL}=scheduler")
        wait_for(lambda: answers(url))
        assert process.poll() is None
    whole(service)


# The client


def test_the_client_knows_the_rights_of_the_user(service: Service, kubernetes: Kubernetes) -> None:
    assert kubernetes.may("create", "jobs", "batch")
    with person(service, "seer", *SEES) as env:
        seer = Kubernetes(service.namespace, kubeconfig=env["KUBECONFIG"])
        assert [seer.may(*asked) for asked in (("list", "jobs", "batch"), ("list", "pods"))] == [True, True]
        assert [seer.may(*asked) for asked in (("create", "jobs", "batch"), ("get", "pods/log"))] == [False, False]
        with pytest.raises(ServiceError, match="cannot create resource"):
            seer.create(runner_job(POD, REQUEST) | {"metadata": {"name": "x", "namespace": service.namespace}})
        with pytest.raises(ServiceError, match="pods/log"):
            list(seer.log_lines(service.pods("worker")[0]))


def suspended(service: Service, name: str) -> dict[str, Any]:
    manifest = runner_job(POD, REQUEST)
    manifest["metadata"] = {"name": name, "namespace": service.namespace}  # without an owner, which would not exist
    manifest["spec"]["suspend"] = True
    return manifest


def test_creating_an_existing_object_and_reading_a_missing_one_are_errors(
    service: Service, kubernetes: Kubernetes
) -> None:
    kubernetes.create(suspended(service, "views-1"))
    try:
        with pytest.raises(ServiceError, match='"views-1" already exists'):
            kubernetes.create(suspended(service, "views-1"))
    finally:
        kubernetes.delete_job("views-1")
    wait_for(lambda: not [one for one in kubernetes.jobs({}) if one["metadata"]["name"] == "views-1"])
    kubernetes.delete_job("views-1")  # deleting it twice raises nothing
    assert kubernetes.config_map("nothing") is None
    with pytest.raises(ServiceError, match="the Secret lacks absent, too"):
        kubernetes.secret("mops-tls", ("tls.crt", "absent", "too"))
    with pytest.raises(ServiceError, match='pods "nothing" not found'):
        list(kubernetes.log_lines("nothing"))


def test_an_invalid_object_is_an_error(service: Service, kubernetes: Kubernetes) -> None:
    with pytest.raises(UsageError, match=r"Kubernetes refused this: .*restartPolicy"):
        kubernetes.create(suspended(service, "x") | {"spec": {"template": {"spec": {}}}})


def test_a_missing_service_is_an_error(kubernetes: Kubernetes) -> None:
    with pytest.raises(ServiceError, match="does not exist"), kubernetes.forwarded("nothing", 80):
        pytest.fail("there is nothing to forward to")


def test_objects_are_plain_json(service: Service, kubernetes: Kubernetes) -> None:
    """They are JSON values and not classes of the library."""
    found = [kubernetes.pods({}), kubernetes.events(), kubernetes.jobs({}), kubernetes.config_map("mops-client")]
    assert json.loads(json.dumps(found)) == found
    assert len(kubernetes.pods({LABEL: "worker"})) == len(service.pods("worker"))


def test_a_log_can_be_followed(service: Service, kubernetes: Kubernetes) -> None:
    lines: list[str] = []
    name = service.pods("scheduler")[0]
    assert len(list(kubernetes.log_lines(name, tail=2))) == 2

    def follow() -> None:
        for line in kubernetes.log_lines(name, follow=True):
            lines.append(line)

    threading.Thread(target=follow, daemon=True).start()
    wait_for(lambda: lines)
    before = len(lines)
    assert service.mops("cluster", "status").code == 0  # the scheduler logs the client
    wait_for(lambda: len(lines) > before)


def test_keys_are_removed_from_the_temporary_folder(service: Service, tmp_path: Path) -> None:
    """Each command left three files with keys of the kubeconfig."""
    ran: Ran = service.run(MOPS, "cluster", "status", TMPDIR=str(tmp_path))
    assert ran.code == 0
    assert not list(tmp_path.iterdir())
