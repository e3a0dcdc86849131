"""The chart's network policies, enforced: what reaches the pods of a service, and what they reach."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from service_lab import Service, assert_same_rows, installed, wait_for, write_study

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

NODE = "10.89.0.1"
METADATA = "169.254.169.254"  # where clouds give credentials to their machines
PROMETHEUS = {"app": "prometheus"}

CONNECT = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print("open")
    except OSError:
        print("closed")
"""
AT_ONCE = """
import socket, sys, time
host, port = sys.argv[1].rsplit(":", 1)
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        socket.create_connection((host, int(port)), timeout=0.05).close()
        sys.exit("open")
    except OSError:
        time.sleep(0.01)
print("closed")
"""


@pytest.fixture(scope="module")
def closed(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service with restricted egress, whose storage and API server have unusual ports."""
    ports = [storage_port(cluster), api_port(cluster)]
    values = {"networkPolicy": {"egress": {"enabled": True, "ports": ports}}}
    metrics = {"from": [{"podSelector": {"matchLabels": PROMETHEUS}}]}
    with installed("mops-closed", cluster, metrics=metrics, **values) as found:
        found.kubectl("apply", "-f", "-", text=yaml.safe_dump_all([sleeper(found, "stranger")]))
        found.kubectl("apply", "-f", "-", text=yaml.safe_dump_all([sleeper(found, "prometheus", PROMETHEUS)]))
        found.kubectl("wait", "--for=condition=Ready", "pod/stranger", "pod/prometheus", "--timeout=120s")
        yield found


def storage_port(env: dict[str, str]) -> int:
    parts = dict(part.partition("=")[::2] for part in env["AZURE_STORAGE_CONNECTION_STRING"].split(";") if part)
    port = urlsplit(parts["BlobEndpoint"]).port
    assert port is not None
    return port


def api_port(env: dict[str, str]) -> int:
    config = yaml.safe_load(Path(env["KUBECONFIG"]).read_text())
    port = urlsplit(config["clusters"][0]["cluster"]["server"]).port
    assert port is not None
    return port


def sleeper(
    service: Service, name: str, labels: dict[str, str] | None = None, command: tuple[str, ...] = ("sleep", "3600")
) -> dict[str, Any]:
    """Return a pod in the namespace of the service."""
    container = {
        "name": "main",
        "image": service.env["MOPS_TEST_SIR_IMAGE"],
        "imagePullPolicy": "Never",
        "args": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    spec |= {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    metadata = {"name": name, "namespace": service.namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def connects(service: Service, pod: str, *places: str) -> list[str]:
    """Return ``open`` or ``closed`` for each place, as a pod finds it."""
    return service.kubectl("exec", pod, "--", "python", "-c", CONNECT, *places).split()


def addresses(service: Service, component: str) -> dict[str, str]:
    """Return the addresses of the pods of a component, by their names."""
    pods = service.objects("pods", f"app.kubernetes.io/component={component}")
    return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}


def test_only_the_pods_of_the_service_and_prometheus_reach_its_ports(closed: Service) -> None:
    (scheduler,) = addresses(closed, "scheduler").values()
    (worker, _), (_, other) = addresses(closed, "worker").items()
    ports = [f"{scheduler}:8786", f"{scheduler}:8787", *(f"{other}:{port}" for port in (8788, 8789, 8790))]
    by_name = ["mops-scheduler:8786", "mops-scheduler:8787"]
    assert connects(closed, "stranger", *ports, *by_name) == ["closed"] * 7
    assert connects(closed, "prometheus", *ports, *by_name) == [
        *("closed", "open"),  # metrics of the scheduler, and no tasks
        *("open", "closed", "closed"),  # metrics of the worker
        *("closed", "open"),
    ]
    assert connects(closed, worker, *ports, *by_name) == [
        *("open", "closed"),
        *("closed", "open", "closed"),  # results of another worker, and not its nanny
        *("open", "closed"),
    ]


@contextmanager
def listening(host: str, port: int = 0) -> Iterator[str]:
    """Accept connections at an address of the node."""
    with socket.create_server((host, port)) as server:
        threading.Thread(target=accepting, args=(server,), daemon=True).start()
        yield f"{host}:{server.getsockname()[1]}"


def accepting(server: socket.socket) -> None:
    try:
        while True:
            server.accept()[0].close()
    except OSError:  # the test has ended
        return


@pytest.fixture
def metadata_address() -> Iterator[str]:
    """Give the address of the metadata service of clouds to this machine, which is the node."""
    subprocess.run(["ip", "addr", "add", f"{METADATA}/32", "dev", "lo"], check=True)
    yield METADATA
    subprocess.run(["ip", "addr", "delete", f"{METADATA}/32", "dev", "lo"], check=True)


def test_a_worker_reaches_the_storage_and_no_other_address(closed: Service, metadata_address: str) -> None:
    """A model could take the identity of its node from the metadata service, and send data to anyone."""
    storage = f"{NODE}:{storage_port(closed.env)}"
    # The port is allowed, so only the list of blocked addresses closes the metadata service.
    with listening(NODE) as elsewhere, listening(metadata_address, storage_port(closed.env)) as metadata:
        places = (storage, elsewhere, metadata)
        assert connects(closed, "stranger", *places) == ["open", "open", "open"], "without a policy all are there"
        for worker in addresses(closed, "worker"):
            assert connects(closed, worker, *places) == ["open", "closed", "closed"]
        (scheduler,) = addresses(closed, "scheduler")
        assert connects(closed, scheduler, *places) == ["open", "closed", "closed"]


def test_a_pod_is_closed_from_its_first_moment(closed: Service) -> None:
    """A model that starts with its pod tries before policies could be in effect."""
    labels = closed.objects("deployments", "app.kubernetes.io/component=worker")[0]["spec"]["selector"]["matchLabels"]
    with listening(NODE) as elsewhere:
        early = [
            sleeper(closed, "early-worker", labels, ("python", "-c", AT_ONCE, elsewhere)),
            sleeper(closed, "early-stranger", {}, ("python", "-c", AT_ONCE, "mops-scheduler:8786")),
        ]
        closed.kubectl("create", "-f", "-", text=yaml.safe_dump_all(early))
        names = ["early-worker", "early-stranger"]
        phases = ("get", "pods", *names, "-o", "jsonpath={.items[*].status.phase}")
        wait_for(lambda: set(closed.kubectl(*phases).split()) <= {"Succeeded", "Failed"})
        said = {name: closed.kubectl("logs", name).strip() for name in names}
    closed.kubectl("delete", "pod", *names)
    assert said == dict.fromkeys(names, "closed")


def test_a_job_runs_with_all_policies(closed: Service) -> None:
    study = write_study(closed, "guarded", sets=20, seconds=0.1)
    closed.submit(study, "guarded")
    closed.wait("guarded")
    assert_same_rows(closed, study, "guarded")


# What mops and Helm say of policies that have no effect


@contextmanager
def admitting(service: Service, component: str) -> Iterator[None]:
    """Let every pod connect to the pods of a component, as if nothing enforced the policies."""
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "open", "namespace": service.namespace},
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/component": component}},
            "policyTypes": ["Ingress"],
            "ingress": [{}],
        },
    }
    service.kubectl("create", "-f", "-", text=yaml.safe_dump(policy))
    try:
        yield
    finally:
        service.kubectl("delete", "networkpolicy", "open")


def test_helm_test_fails_if_another_pod_reaches_the_scheduler(closed: Service) -> None:
    helm_test = ("helm", "test", "mops", "-n", closed.namespace, "--timeout", "3m")
    ran = closed.run(*helm_test)
    assert ran.code == 0, ran.out + ran.err
    with admitting(closed, "scheduler"):
        ran = closed.run(*helm_test)
    assert ran.code != 0
    assert "error: this cluster does not enforce network policies: any pod can connect to mops-scheduler:8786" in (
        ran.out + ran.err
    )


def test_doctor_warns_of_policies_that_are_not_enforced_or_absent(closed: Service) -> None:
    assert closed.mops("doctor", "--json").json["findings"] == []
    with admitting(closed, "worker"):
        (found,) = closed.mops("doctor", "--json", code=1).json["findings"]
    assert found["where"].startswith("nanny tls://")
    assert "the cluster does not enforce them, or another policy admits the worker" in found["what"]
    kept = closed.values["networkPolicy"]
    closed.values["networkPolicy"] = {"enabled": False}
    try:
        closed.helm("upgrade")
        (found,) = closed.mops("doctor", "--json", code=1).json["findings"]
    finally:
        closed.values["networkPolicy"] = kept
        closed.helm("upgrade")
    assert found["fix"] == "networkPolicy.enabled=true in the chart's values"
