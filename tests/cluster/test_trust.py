"""What docs/explanation/trust.md says is refused, tried on the real Kubernetes."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from service_lab import ROOT, Service, assert_same_rows, begun, wait_for, write_study
from test_chart_in_cluster import MAY, allowed
from test_views_in_cluster import person

from programs import Ran

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "explanation" / "trust.md"

CHANGE = "change Deployments and Roles, if the namespace enforces Pod Security"
REFUSED = {
    "another pod of the cluster": {
        "use the Dask scheduler (port 8786) and the workers": "test_another_pod_cannot_take_part_in_dask",
        "run code on the scheduler, on workers and in runners": "test_another_pod_cannot_take_part_in_dask",
        "ask the scheduler to retire workers": "test_http_serves_only_health_metrics_and_the_dashboard",
        "read the credentials of workers and of runners": "test_another_pod_has_no_rights_in_the_namespace",
        "read other Secrets of the namespace": "test_another_pod_has_no_rights_in_the_namespace",
        "end or delete jobs of other modellers": "test_another_pod_has_no_rights_in_the_namespace",
        CHANGE: "test_another_pod_has_no_rights_in_the_namespace",
        "set the number of workers, and the images of running pods, if `autoscaler.enabled`": (
            "test_another_pod_has_no_rights_in_the_namespace"
        ),
        "run code on the machine of a modeller who runs `mops cluster status` or `mops doctor`": (
            "test_another_pod_cannot_take_part_in_dask"
        ),
    },
    "a modeller": {CHANGE: "test_a_modeller_has_exactly_the_rights_of_the_role"},
    "a model, on a worker": {CHANGE: "test_a_model_has_at_most_the_rights_of_a_runner"},
}
"""The cells of the table that say "no", and the test of each."""


def test_each_no_of_the_table_has_a_test() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {
        column: {row[0] for row in rows if row[number] == "no"} for number, column in enumerate(head) if number > 0
    }
    assert found == {column: set(checked) for column, checked in REFUSED.items()}
    assert {name for checked in REFUSED.values() for name in checked.values()} <= set(globals())


# Another pod

ASK = """
import asyncio, os, sys
from distributed import Security
from distributed.comm import connect

def tls(ca, cert, key):
    return Security(require_encryption=True, tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key)

async def ask(address, security):
    comm = await connect(address, timeout=5, **security.get_connection_args("client"))
    try:
        await comm.write({"op": "identity", "reply": True})
        return (await comm.read())["type"]
    finally:
        await comm.close()

def answer(address, security):
    try:
        return asyncio.run(asyncio.wait_for(ask(address, security), 10))
    except (OSError, asyncio.TimeoutError):
        return "refused"

own, foreign = tls(os.environ["CA"], os.environ["CERT"], os.environ["KEY"]), Security.temporary()
for place in sys.argv[1:]:
    print(answer(f"tls://{place}", own), answer(f"tls://{place}", foreign), answer(f"tcp://{place}", Security()))
"""
"""Prints for each address what it answers to its own certificate, to one of another authority, and to none."""


@pytest.fixture
def outside(service: Service) -> Iterator[str]:
    """Create a namespace that knows nothing of the service."""
    name = f"outside-{os.environ.get('PYTEST_XDIST_WORKER', 'gw0')}"
    assert service.run("kubectl", "create", "namespace", name).code == 0
    yield name
    service.run("kubectl", "delete", "namespace", name, "--timeout=120s")


@pytest.fixture
def without_policies(service: Service) -> Iterator[None]:
    """Admit all pods, so that only certificates protect the service, as on a cluster that enforces no policies."""
    metadata = {"name": "all", "namespace": service.namespace}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    service.kubectl("create", "-f", "-", text=yaml.safe_dump(policy))
    yield
    service.kubectl("delete", "networkpolicy", "all")


@pytest.mark.usefixtures("without_policies")
def test_another_pod_cannot_take_part_in_dask(service: Service, outside: str) -> None:
    """Without encryption, a pod that reached port 8786 could run code everywhere in the service."""
    secret = json.loads(service.kubectl("get", "secret", "mops-tls", "-o", "json"))["data"]
    workers = [pod["status"]["podIP"] for pod in service.objects("pods", "app.kubernetes.io/component=worker")]
    places = [f"mops-scheduler.{service.namespace}.svc:8786", f"{workers[0]}:8789", f"{workers[0]}:8790"]
    keys = {"CA": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}
    decode = (
        "import base64, os\nfor n in ('CA', 'CERT', 'KEY'): os.environ[n] = base64.b64decode(os.environ[n]).decode()\n"
    )
    container: dict[str, Any] = {
        "name": "ask",
        "image": service.env["MOPS_TEST_SIR_IMAGE"],
        "imagePullPolicy": "Never",
        "args": ["python", "-c", decode + ASK, *places],
        "env": [{"name": name, "value": secret[key]} for name, key in keys.items()],
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ask", "namespace": outside}, "spec": spec}
    created = service.run("kubectl", "create", "-f", "-", text=yaml.safe_dump(pod))
    assert created.code == 0, created.err
    in_it = ("kubectl", "-n", outside)
    phase = (*in_it, "get", "pod", "ask", "-o", "jsonpath={.status.phase}")
    wait_for(lambda: service.run(*phase).out in ("Succeeded", "Failed"))
    said = service.run(*in_it, "logs", "ask").out
    assert [line.split() for line in said.splitlines()] == [
        ["Scheduler", "refused", "refused"],
        ["Worker", "refused", "refused"],
        ["Nanny", "refused", "refused"],
    ], said


def test_http_serves_only_health_metrics_and_the_dashboard(service: Service) -> None:
    """Dask's HTTP API retired workers, and asked for no certificate. The API server of Kubernetes reaches each port."""
    workers = service.pods("worker")
    scheduler, worker = "services/mops-scheduler:8787", f"pods/{workers[0]}:8788"
    known = service.mops("cluster", "status", "--json").json["workers"]

    def ask(verb: str, place: str, *more: str, text: str | None = None) -> Ran:
        path = f"/api/v1/namespaces/{service.namespace}/{place}"
        return service.run("kubectl", verb, "--raw", path, *more, text=text)

    retire = json.dumps({"workers": [one["dask"]["address"] for one in known], "n": len(known)})
    told = ask("create", f"{scheduler}/proxy/api/v1/retire_workers", "-f", "-", text=retire)
    assert (told.code, "NotFound" in told.err) == (1, True), told
    for page in ("api/v1/get_workers", "json/identity.json", "info/main/workers.html", "proxy/1/127.0.0.1/x"):
        assert "NotFound" in ask("get", f"{scheduler}/proxy/{page}").err, page
    assert "NotFound" in ask("get", f"{worker}/proxy/status").err
    for place in (scheduler, worker):
        assert ask("get", f"{place}/proxy/health").out == "ok"
        assert "# TYPE dask_" in ask("get", f"{place}/proxy/metrics").out
    assert ask("get", f"{scheduler}/proxy/status").code == 0


def test_another_pod_has_no_rights_in_the_namespace(service: Service) -> None:
    for namespace in ("default", service.namespace):
        assert allowed(service, f"system:serviceaccount:{namespace}:default") == set()


# Those inside


def test_a_modeller_has_exactly_the_rights_of_the_role(service: Service) -> None:
    with person(service, "someone"):
        account = f"{service.namespace}:someone"
        service.kubectl("create", "rolebinding", "someone", "--role", "mops-client", "--serviceaccount", account)
        found = allowed(service, f"system:serviceaccount:{account}")
        reads = {("get", "services"), ("get", "pods/log"), ("list", "events")}
        jobs = {(verb, "jobs.batch") for verb in ("create", "get", "list", "watch", "patch", "delete")}
        pods = {(verb, "pods") for verb in ("get", "list", "watch")}
        assert found == reads | jobs | pods | {("get", "pods/portforward"), ("create", "pods/portforward")}
        who = ("auth", "can-i", f"--as=system:serviceaccount:{account}", "get")
        assert service.run("kubectl", "-n", service.namespace, *who, "secret/mops-tls").out == "yes\n"
        assert service.run("kubectl", "-n", service.namespace, *who, "secret/storage").out == "no\n"


def test_a_model_has_at_most_the_rights_of_a_runner(service: Service) -> None:
    rights = MAY["mops-worker"] | MAY["mops-runner"]
    assert not {(verb, kind) for verb, kind in rights if verb not in ("get", "list", "watch") or "secrets" in kind}
    for account in MAY:
        assert allowed(service, f"system:serviceaccount:{service.namespace}:{account}") == MAY[account]


LOOKS_FOR_CREDENTIALS = """
import os, socket
from pathlib import Path

POD = socket.gethostname()
IS_POD = "KUBERNETES_SERVICE_HOST" in os.environ
if IS_POD and "-worker-" not in POD:
    raise RuntimeError(f"imported in {POD}")
WRITES, READS = ("".join(parts).encode() for parts in (("Account", "Key="), ("SharedAccess", "Signature=")))

def files():
    yield from Path("/proc").glob("[0-9]*/environ")
    for folder in ("/etc/mops", "/var/run/secrets", "/tmp"):
        for parent, _, names in os.walk(folder):
            yield from (Path(parent, name) for name in names)

def found():
    read = {str(path): content for path in files() if (content := content_of(path)) is not None}
    tokens = sum(path.startswith("/var/run/secrets") for path in read)
    return [sum(WRITES in text for text in read.values()), sum(READS in text for text in read.values()), tokens]

def content_of(path):
    try:
        return path.read_bytes() if path.is_file() or path.name == "environ" else None
    except OSError:
        return None

AT_IMPORT = found() if IS_POD else []  # else this is the check of the submit

def run(params, seed):
    return {"found": dict(zip(("writes", "reads", "tokens"), zip(AT_IMPORT, found()))) | {"pod": [POD, POD]}}
"""
"""Looks for the credential that writes, the one that reads, and tokens; fails if it is imported in a runner's pod."""


def test_a_model_finds_no_credential_of_a_runner(service: Service) -> None:
    """Regression: the runner imported the model in a process with its credential in the environment."""
    study = service.write("looks", LOOKS_FOR_CREDENTIALS, {"parameter_sets": [{"x": x} for x in range(4)]})
    service.submit(study, "looks", CHECKPOINT_SECONDS="0")
    service.wait("looks")
    rows = service.job("looks").outputs("found").to_arrow().to_pylist()
    assert len(rows) == 8
    for row in rows:
        assert (row["writes"], row["tokens"]) == (0, 0), row
        assert row["reads"] > 0, "it finds what its worker has"
        assert row["pod"] in service.pods("worker")


def test_a_runner_has_a_token_for_ten_minutes_and_no_child_process(service: Service) -> None:
    """What others run in the pod of a runner could read the runner's environment and its token."""
    study = write_study(service, "tokened", sets=200, seconds=0.5)
    service.submit(study, "tokened", CHECKPOINT_SECONDS="0")
    begun(service, "tokened")
    (pod,) = service.runner_pods("tokened")
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    inside = ("exec", pod, "--", "sh", "-c")
    text = service.kubectl(*inside, f"cat {token}").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert claims["exp"] - claims["iat"] == 600
    assert claims["kubernetes.io"]["pod"]["name"] == pod
    user, mode, _ = service.kubectl(*inside, f"echo $(id -u) $(stat -Lc '%a %u' {token})").split()
    assert (user, mode[-1]) == ("10001", "0"), "other users do not read it"
    here = "for p in /proc/[0-9]*; do [ ${p#/proc/} = $$ ] || tr '\\0' ' ' < $p/cmdline; echo; done"
    lines = [line for line in service.kubectl(*inside, here).splitlines() if line.strip()]
    ours = [line for line in lines if "jobs run tokened" in line]
    assert len(ours) == len([line for line in lines if not line.startswith("tr ")]) == 2, lines  # dumb-init and mops
    service.mops("jobs", "cancel", "tokened")


def test_a_new_certificate_reaches_a_running_job(service: Service) -> None:
    """As the chart's README says: delete the Secret, upgrade, restart scheduler and workers.

    A rollback wrote the earlier certificate into the Secret, and new pods could not connect to those that ran.
    """
    study = write_study(service, "renewed", sets=100, seconds=0.5)
    service.submit(study, "renewed", CHECKPOINT_SECONDS="0")
    begun(service, "renewed")

    def certificate() -> str:
        return service.kubectl("get", "secret", "mops-tls", "-o", "jsonpath={.data}")

    def restarted(*components: str) -> None:
        deployments = [f"deployment/mops-{component}" for component in components]
        service.kubectl("rollout", "restart", *deployments)
        for deployment in deployments:
            service.kubectl("rollout", "status", deployment, "--timeout=180s")

    before = certificate()
    service.helm("upgrade")
    assert certificate() == before, "an upgrade keeps it"
    service.kubectl("delete", "secret", "mops-tls")
    service.helm("upgrade")
    renewed = certificate()
    assert renewed != before
    restarted("scheduler", "worker")
    back = service.run("helm", "rollback", "mops", "-n", service.namespace, "--wait", "--timeout", "3m")
    assert back.code == 0, back.err
    assert certificate() == renewed
    restarted("worker")
    service.mops("cluster", "status")
    service.wait("renewed")
    assert service.status("renewed")["attempt"] == 1
    assert_same_rows(service, study, "renewed")
