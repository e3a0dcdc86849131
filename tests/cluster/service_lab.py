"""A cluster service: the chart in a namespace of a real Kubernetes."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

from mops.jobs.job import Job, open_job
from programs import Ran
from rows import rows_of, serial_rows
from waiting import until
from warm import warm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "mops"
MOPS = Path(sys.executable).with_name("mops")
PATIENCE_SECONDS = 300.0
"""Far more than anything takes, because the machine may be busy."""

T = TypeVar("T")


def wait_for(what: Callable[[], T], *, patience_s: float = PATIENCE_SECONDS, said: Callable[[], str] = lambda: "") -> T:
    """Poll until ``what()`` is true; fail with ``said()`` if it never is."""
    return until(what, patience_s, look_every_s=0.2, said=said)


def cluster_environment() -> dict[str, str]:
    """Start a cluster with the image of this checkout; return the environment to use it.

    Without MOPS_REQUIRE_K8S=1 the tests are skipped, because the start takes minutes and root.
    """
    if os.environ.get("MOPS_REQUIRE_K8S") != "1":
        pytest.skip("needs a Kubernetes: make test-k8s brings one up")
    with (Path(tempfile.gettempdir()) / "mops-test-env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test process starts the cluster, the others use it
        ran = subprocess.run([ROOT / "k8s" / "test-env"], stdout=subprocess.PIPE, text=True, check=True)
    exports = [line.removeprefix("export ").partition("=") for line in ran.stdout.splitlines() if "=" in line]
    found = {name: shlex.split(value.replace("$PATH", os.environ["PATH"]))[0] for name, _, value in exports}
    return {**os.environ, **found}


@dataclass
class Service:
    """The chart in a namespace, and a user who is connected to it.

    Parameters
    ----------
    home
        The folder of the user, with profile and projects.
    """

    namespace: str
    env: dict[str, str]
    home: Path
    container: str
    values: dict[str, Any] = field(default_factory=dict)
    bucket: str = ""  # of S3, in place of the container of Azure

    def __post_init__(self) -> None:
        self.env = {
            **{name: value for name, value in self.env.items() if not name.startswith("MODELOPS_")},
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "COLUMNS": "200",
        }

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/mops" if self.bucket else f"abfs://{self.container}/mops"

    # --- programs

    def run(self, *command: str | Path, text: str | None = None, **env: str) -> Ran:
        """Run a program in the folder of the user."""
        ran = subprocess.run(
            [str(part) for part in command],
            env={**self.env, **env},
            cwd=self.home,
            input=text,
            capture_output=True,
            text=True,
            timeout=400,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl in the namespace; return what it prints."""
        ran = self.run("kubectl", "-n", self.namespace, *arguments, text=text)
        assert ran.code == 0, ran.err
        return ran.out

    def objects(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return objects of a kind."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]
        return found

    def helm(self, verb: str, *arguments: str) -> str:
        """Install or upgrade the chart with the values of this service."""
        values = self.home / "values.yaml"
        values.write_text(yaml.safe_dump(self.values))
        ran = self.run(
            *("helm", verb, "mops", CHART, "-n", self.namespace, "-f", values, "--wait", "--timeout", "5m"), *arguments
        )
        assert ran.code == 0, ran.err + self.kubectl("get", "pods", "-o", "wide")
        return ran.out

    def mops(self, *arguments: str | Path, code: int | None = 0, **env: str) -> Ran:
        """Run mops; ``code`` is the expected exit code, None: any."""
        ran = Ran(*warm().run([str(one) for one in arguments], self.env | env, self.home, timeout_s=300))
        assert code is None or ran.code == code, f"{arguments} exited with {ran.code}\n{ran.out}\n{ran.err}"
        return ran

    # --- jobs

    def write(self, name: str, model: str, study: Mapping[str, Any], **files: str) -> Path:
        """Write a project; return its study."""
        project = self.home / name
        project.mkdir(exist_ok=True)
        (project / "mops.toml").touch()
        (project / "model.py").write_text(model)
        for file, text in files.items():
            (project / file.replace("__", ".")).write_text(text)
        (project / "study.json").write_text(json.dumps({"model": "model:run", **study}))
        return project / "study.json"

    def submit(self, study: Path, job: str, *options: str, **settings: str) -> None:
        """Submit a study to the service."""
        named = {f"MODELOPS_JOB_{name}": str(value) for name, value in settings.items()}
        self.mops("jobs", "submit", study, "--name", job, *options, **named)

    def job(self, name: str) -> Job:
        """Return a job of the service."""
        return open_job(name, self.url)

    def status(self, job: str) -> dict[str, Any]:
        """Return the output of ``mops jobs status --json``."""
        found: dict[str, Any] = self.mops("jobs", "status", job, "--json").json
        return found

    def wait(self, job: str, state: str = "succeeded", *, patience_s: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Wait until a job has ended; return its status."""
        ended = ("succeeded", "partial", "failed", "cancelled")
        wait_for(
            lambda: self.job(job).status().state in ended, patience_s=patience_s, said=lambda: self.what_is_wrong(job)
        )
        found = self.status(job)
        assert found["state"] == state, self.what_is_wrong(job)
        return found

    def what_is_wrong(self, job: str) -> str:
        """Return status, logs and pods for the message of a failed test."""
        said = [self.mops("jobs", "status", job, code=None), self.mops("jobs", "logs", job, code=None)]
        pods = self.kubectl("get", "pods", "-o", "wide")
        last = self.mops("jobs", "logs", job, "--pod", "-n", "40", code=None)
        return "\n".join([*(ran.out + ran.err for ran in said), pods, last.out + last.err])

    def committed(self, job: str) -> int:
        """Return how many groups of a job are committed."""
        return self.job(job).status().groups

    def runner_pods(self, job: str) -> list[str]:
        """Return the names of the pods of a job that are not ending, oldest first."""
        pods = self.objects("pods", f"mops/job={job}")
        alive = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        alive = [pod for pod in alive if not pod["metadata"].get("deletionTimestamp")]
        return [pod["metadata"]["name"] for pod in sorted(alive, key=lambda pod: pod["metadata"]["creationTimestamp"])]

    def pods(self, component: str) -> list[str]:
        """Return the names of the pods of a component."""
        return [pod["metadata"]["name"] for pod in self.objects("pods", f"app.kubernetes.io/component={component}")]


MODEL = """
import os, random, time

def run(params, seed):
    time.sleep(0 if "HASTE" in os.environ else params["seconds"])
    draw = random.Random(seed)
    return {"daily": {"day": list(range(20)), "cases": [params["beta"] * draw.random() for _ in range(20)]}}
"""
TARGETS = """
def total(params, replicates):
    return sum(sum(replicate["daily"]["cases"].to_pylist()) for replicate in replicates) / len(replicates)
"""


def write_study(service: Service, name: str, *, sets: int, seconds: float) -> Path:
    """Write a study with simulations that sleep."""
    study = {
        "n_replicates": 2,
        "targets": ["targets:total"],
        "parameter_sets": [{"beta": i / 100, "seconds": seconds} for i in range(sets)],
    }
    return service.write(name, MODEL, study, targets__py=TARGETS)


def begun(service: Service, job: str, groups: int = 4) -> None:
    """Wait until some groups are committed."""
    wait_for(lambda: service.committed(job) >= groups, said=lambda: service.what_is_wrong(job))


def assert_same_rows(service: Service, study: Path, job: str) -> None:
    """Check that a job has the rows of a plain loop on this machine, each once, and that its log is valid."""
    found = service.job(job)
    assert rows_of(found) == serial_rows(study, service.home / f"{job}-serial", HASTE="1")
    assert found.failures().to_arrow().num_rows == 0
    assert found.verify() == []


VALUES: dict[str, Any] = {
    "scheduler": {"resources": {"requests": {"cpu": "25m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}},
    "worker": {"replicas": 2, "threads": 1, "cpu": "25m", "memory": "1280Mi", "terminationGracePeriodSeconds": 30},
    "runner": {
        "resources": {"requests": {"cpu": "25m", "memory": "768Mi"}, "limits": {"memory": "768Mi"}},
        "terminationGracePeriodSeconds": 30,
    },
}
"""Several services of this size fit on a node with two processors."""


@contextmanager
def installed(
    name: str, env: Mapping[str, str], *, connected: bool = True, bucket: str = "", **values: Any
) -> Iterator[Service]:
    """Install the chart in a namespace that enforces Pod Security ``restricted``, with Azure Blob, or a bucket of S3.

    Each test process has its own namespace.
    """
    namespace = f"{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'gw0')}"
    container = f"{namespace}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="mops-k8s-") as home:
        service = Service(namespace, dict(env), Path(home), container, bucket=bucket)
        repository, _, tag = env["MOPS_TEST_SIR_IMAGE"].rpartition(":")
        service.values = {
            **VALUES,
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "storage": {
                "url": service.url,
                "env": {name: env[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION") if bucket},
                "runner": {"existingSecret": "storage"},
                "worker": {"existingSecret": "storage-workers"},
                "ui": {"existingSecret": "storage-workers"},
            },
            **values,
        }
        _make_container(service)
        service.run("kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s")
        try:
            _make_namespace(service)
            service.helm("install")
            if connected:
                service.mops("connect", "--namespace", namespace)
            yield service
        finally:
            service.run("kubectl", "delete", "namespace", namespace, "--timeout=120s")
            _client(service).delete_container(container)


def _client(service: Service) -> BlobServiceClient:
    return BlobServiceClient.from_connection_string(service.env["AZURE_STORAGE_CONNECTION_STRING"])


def _make_container(service: Service) -> None:
    os.environ["AZURE_STORAGE_CONNECTION_STRING"] = service.env["AZURE_STORAGE_CONNECTION_STRING"]
    with suppress(ResourceExistsError):
        _client(service).create_container(service.container)


def _make_namespace(service: Service) -> None:
    ran = service.run("kubectl", "create", "namespace", service.namespace)
    assert ran.code == 0, ran.err
    labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    service.run("kubectl", "label", "namespace", service.namespace, *labels)
    whole, name = service.env["AZURE_STORAGE_CONNECTION_STRING"], "AZURE_STORAGE_CONNECTION_STRING"
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if service.bucket else ()
    _make_secret(service, "storage", {name: whole} | {key: service.env[key] for key in keys})
    reading = {key: service.env[f"WORKER_{key}"] for key in keys}
    _make_secret(service, "storage-workers", {name: _only_reading(whole)} | reading)


def _make_secret(service: Service, name: str, variables: Mapping[str, str]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(variables)}
    service.kubectl("apply", "-f", "-", text=yaml.safe_dump(secret))


def _only_reading(connection: str) -> str:
    """Return a connection string that can only read and list, like that of workers."""
    parts = dict(part.partition("=")[::2] for part in connection.split(";") if part)
    token = generate_account_sas(
        parts["AccountName"],
        parts["AccountKey"],
        resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions(read=True, list=True),
        expiry=datetime.now(UTC) + timedelta(days=1),
        protocol="https,http",
    )
    return f"BlobEndpoint={parts['BlobEndpoint']};SharedAccessSignature={token}"
