"""Builds the manifests of a dedicated Dask cluster, for the operator of dask-kubernetes. Pure.

Its pods are those of the chart. Only this module adapts them to the operator. docs/internals/kubernetes.md has the
reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mops.errors import UsageError
from mops.k8s import names
from mops.k8s.chart import Object, ServiceConfig
from mops.k8s.pod_state import is_queued, is_ready

BuildSpec: TypeAlias = Callable[..., Object]  # ``make_cluster_spec`` of dask-kubernetes

API_VERSION = "kubernetes.dask.org/v1"

# Seconds without a task after which the operator removes a cluster that has lost its runner for good. Kubernetes may
# take minutes to replace a pod; a runner that finds no cluster creates one.
IDLE_S = 1800

# The time in which Dask's adaptive scaling wants to finish all known tasks. Dask knows only the window of a job, not
# the groups that are left: with its default of 5 s it would want one worker for 200 parameter sets of 10 ms. With 1 ms
# it wants a slot for each task in flight, and mops keeps two to four tasks per slot in flight.
_TARGET_DURATION = "1ms"

# What the chart's schedulers serve at their HTTP port, and the API with which the operator asks for the number of
# workers, for idle time, and retires workers. It has no certificate, so it cannot ask at Dask's port.
_ROUTES = [
    "distributed.http.scheduler.api",
    "distributed.http.scheduler.prometheus",
    "distributed.http.health",
    "distributed.http.statics",
]
_SCHEDULER_VARIABLES = {
    "DASK_DISTRIBUTED__ADAPTIVE__TARGET_DURATION": _TARGET_DURATION,
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": str(_ROUTES),
}

# Labels by which the chart's Service and policies select the pods of the shared cluster.
_OF_THE_RELEASE = (names.NAME, names.INSTANCE, names.COMPONENT)

_SIZE = re.compile(r"([1-9]\d*)(?::([1-9]\d*))?")


@dataclass(frozen=True)
class Size:
    """The number of workers of a cluster: ``least`` at its start, and never more than ``most``."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.adaptive else str(self.least)

    @property
    def adaptive(self) -> bool:
        """Whether Dask adds and removes workers."""
        return self.least < self.most

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read ``N`` or ``MIN:MAX``; at least 1, because a runner sends no task before it sees a worker."""
        found = _SIZE.fullmatch(text.strip())
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if most < least:
            hint = "write a number like 8, or a range like 2:16"
            raise UsageError(f"{text!r} is not a number of workers", where="--workers", hint=hint)
        return cls(least, most)


def spec_builder() -> BuildSpec:
    """Return the function that builds a DaskCluster. UsageError: dask-kubernetes is not installed."""
    try:
        from dask_kubernetes.operator import make_cluster_spec  # noqa: PLC0415 - an extra, and half a second
    except ImportError as missing:
        what = "a dedicated Dask cluster needs dask-kubernetes, which is not installed here"
        raise UsageError(what, where="--dedicated", hint="pip install 'mops-runner[dedicated]'") from missing
    return make_cluster_spec  # type: ignore[no-any-return]


def scheduler_address(service: ServiceConfig, name: str, namespace: str) -> str:
    """Return the address of a cluster's scheduler, inside Kubernetes."""
    scheme = service.scheduler.partition("://")[0]  # encrypted as the shared cluster is
    return f"{scheme}://{name}-scheduler.{namespace}.svc:8786"


def objects(
    build_spec: BuildSpec,
    service: ServiceConfig,
    name: str,
    namespace: str,
    size: Size,
    labels: Mapping[str, str],
    queue: str | None = None,
) -> list[Object]:
    """Return a DaskCluster, and a DaskAutoscaler if its size is adaptive; Kueue holds its workers in a queue."""
    spec = build_spec(
        name=name,
        image=service.runner.image,
        n_workers=size.least,
        worker_command="dask worker",  # the default is a program that Dask no longer has
        idle_timeout=IDLE_S,
    )
    made = [with_chart_pods(spec, service, namespace, labels, queue)]
    if size.adaptive:
        metadata = {"name": name, "namespace": namespace}
        limits = {"cluster": name, "minimum": size.least, "maximum": size.most}
        made.append({"apiVersion": API_VERSION, "kind": "DaskAutoscaler", "metadata": metadata, "spec": limits})
    return made


def with_chart_pods(
    cluster: Object, service: ServiceConfig, namespace: str, labels: Mapping[str, str], queue: str | None = None
) -> Object:
    """Return a DaskCluster with the chart's pods: the same images, memory rules, probes and permissions."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    # The targets are port names of dask-kubernetes, and the chart's scheduler has other ones: numbers work for both.
    ports = [{**port} for port in spec["scheduler"]["service"]["ports"]]
    for port in ports:
        port.pop("targetPort", None)
    # The operator sets DASK_WORKER_NAME and DASK_SCHEDULER_ADDRESS unless the template does. The name must be the
    # operator's, which removes workers by it. The address must be ours, because the operator's needs the domain
    # cluster.local.
    worker = _pod(service.worker.pod_template, {"DASK_SCHEDULER_ADDRESS": scheduler_address(service, name, namespace)})
    if queue:  # Kueue admits each worker by itself. The scheduler does not wait: without it, no worker is of use.
        worker["metadata"]["labels"][names.QUEUE] = queue
    scheduler = _pod(service.scheduler_pod_template, _SCHEDULER_VARIABLES)
    # The cluster's name, size, idle timeout and Service stay; the operator finds ports in the Service.
    return {
        **cluster,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            **spec,
            "worker": {**spec["worker"], **worker},
            "scheduler": {**scheduler, "service": {**spec["scheduler"]["service"], "ports": ports}},
        },
    }


def _pod(template: Object, environment: Mapping[str, str]) -> Object:
    """Return a pod's template with other variables, and without the labels by which the release selects its pods."""
    metadata, spec = template["metadata"], template["spec"]
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name not in _OF_THE_RELEASE}
    ours = [{"name": name, "value": value} for name, value in environment.items()]
    replaced = ("DASK_WORKER_NAME", *environment)
    containers = [
        {
            **one,
            "env": [*ours, *(variable for variable in one.get("env", []) if variable["name"] not in replaced)],
            # The operator's objects accept text only, where Kubernetes accepts numbers too.
            "resources": {
                part: {name: str(amount) for name, amount in amounts.items()}
                for part, amounts in one.get("resources", {}).items()
            },
        }
        for one in spec["containers"]
    ]
    return {
        "metadata": {"labels": labels, "annotations": metadata.get("annotations", {})},
        "spec": {**spec, "containers": containers},
    }


def state(name: str, pods: Iterable[Object]) -> str:
    """Return the state of a cluster's pods as text."""
    of: dict[str, list[Object]] = {"scheduler": [], "worker": []}
    for pod in pods:
        of[pod["metadata"]["labels"][names.DASK_COMPONENT]].append(pod)
    if not any(of.values()):
        return f"{name}: no pods yet; the operator of dask-kubernetes creates them"
    scheduler = "scheduler ready" if any(map(is_ready, of["scheduler"])) else "scheduler not ready"
    workers = f"{sum(map(is_ready, of['worker']))} of {len(of['worker'])} workers ready"
    return f"{name}: {scheduler}, {workers}{_queued(of['worker'])}"


def _queued(workers: Iterable[Object]) -> str:
    """Return what Kueue does with workers that name a queue; empty: no worker waits, or none names a queue."""
    found = [(pod, pod["metadata"]["labels"]) for pod in workers if names.QUEUE in pod["metadata"]["labels"]]
    if not found:
        return ""
    queue = found[0][1][names.QUEUE]
    if not all(names.KUEUE_HOLDS in labels for _, labels in found):
        return f"; no Kueue has taken them into queue {queue!r}"
    n_queued = sum(is_queued(pod) for pod, _ in found)
    return f", {n_queued} in the queue {queue}" if n_queued else ""
