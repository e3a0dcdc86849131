"""The operator of dask-kubernetes, which serves all namespaces, and is missing in some tests."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from service_lab import ROOT, Service


@contextmanager
def sole_use_of_the_operator(env: Mapping[str, str]) -> Iterator[None]:
    """Let one file of tests at a time install the operator; it is missing at the start, and removed at the end."""
    with (Path(tempfile.gettempdir()) / "mops-test-operator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_operator(env)
        try:
            yield
        finally:
            _remove_operator(env)


def install_operator(env: Mapping[str, str]) -> None:
    subprocess.run([ROOT / "k8s" / "testcluster" / "operator-up", sys.executable], env=env, check=True)


def remove_dedicated_clusters(service: Service) -> None:
    """Remove what needs the operator to be removed: DaskClusters have finalizers."""
    for kind in ("job", "daskcluster"):
        service.run("kubectl", "-n", service.namespace, "delete", kind, "--all", "--timeout=120s")


def _remove_operator(env: Mapping[str, str]) -> None:
    """Remove the operator with its CRDs, which helm leaves behind."""
    kinds = ("daskclusters", "daskworkergroups", "daskautoscalers", "daskjobs")
    for command in (
        ["helm", "uninstall", "dask-operator", "-n", "dask-operator", "--wait"],
        ["kubectl", "delete", "crd", "--ignore-not-found", *(f"{kind}.kubernetes.dask.org" for kind in kinds)],
        ["kubectl", "delete", "namespace", "dask-operator", "--ignore-not-found", "--timeout=60s"],
    ):
        subprocess.run(command, env=env, check=False, capture_output=True, timeout=400)
