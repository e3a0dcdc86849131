"""Manifests of a dedicated Dask cluster, for the operator of dask-kubernetes. Pure.

Its pods are the chart's: what the operator needs otherwise is changed here and nowhere else. Who makes the objects, and
when they go, is :mod:`mops.k8s.dedicated_lifecycle`'s; docs/internals/kubernetes.md has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mops.errors import UsageError
from mops.k8s import names
from mops.k8s.chart import Object, ServiceConfig
from mops.k8s.pod_state import is_ready

BuildSpec: TypeAlias = Callable[..., Object]
"""``make_cluster_spec`` of dask-kubernetes."""

API_VERSION = "kubernetes.dask.org/v1"

IDLE_S = 1800
"""Seconds without any task after which the operator removes a cluster whose runner has gone for good. Kubernetes waits
up to ten minutes before it replaces a pod; a runner that finds no cluster makes another one."""

_TARGET_DURATION = "1ms"
"""In how much time all known tasks should end, as Dask reckons how many workers it wants; its default is 5 s. It knows
no more of a job than what is in flight, a bounded window: 200 parameter sets of 10 ms are 2 s of work, for which it
wants one worker, however many are left. With this it wants a slot for each task in flight: there are two a slot."""

_OF_THE_RELEASE = (names.NAME, names.INSTANCE, names.COMPONENT)
"""Labels by which the chart's Service and policies find the pods of the cluster that all share."""

_SIZE = re.compile(r"([1-9]\d*)(?::([1-9]\d*))?")


@dataclass(frozen=True)
class Size:
    """How many workers a cluster has: between ``least``, which is what it begins with, and ``most``."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.adaptive else str(self.least)

    @property
    def adaptive(self) -> bool:
        """Whether workers come and go with the work."""
        return self.least < self.most

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read ``N`` or ``MIN:MAX``; there is one worker at least: a runner sends nothing before it sees one.

        Raises
        ------
        UsageError
            It is neither.
        """
        found = _SIZE.fullmatch(text.strip())
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if most < least:
            raise UsageError(
                f"{text!r} is no number of workers",
                where="--workers",
                hint="write a number, like 8, or the least and the most, like 2:16",
            )
        return cls(least, most)


def spec_builder() -> BuildSpec:
    """Return the function that builds a DaskCluster.

    Raises
    ------
    UsageError
        dask-kubernetes is not installed.
    """
    try:
        from dask_kubernetes.operator import make_cluster_spec  # noqa: PLC0415 - an extra, and half a second
    except ImportError as missing:
        raise UsageError(
            "a Dask cluster of the job's own needs dask-kubernetes, which is not installed here",
            where="--dedicated",
            hint="pip install 'mops-runner[dedicated]'; or leave --dedicated out",
        ) from missing
    return make_cluster_spec  # type: ignore[no-any-return]


def scheduler_address(name: str, namespace: str) -> str:
    """Return where the scheduler of a cluster will listen, inside Kubernetes."""
    return f"tcp://{name}-scheduler.{namespace}.svc:8786"


def objects(
    build_spec: BuildSpec, service: ServiceConfig, name: str, namespace: str, size: Size, labels: Mapping[str, str]
) -> list[Object]:
    """Return a DaskCluster, its NetworkPolicy if the chart has some, and a DaskAutoscaler if its size is adaptive.

    Parameters
    ----------
    labels
        For people, and for who looks for what belongs to a job, which is named among them.
    """
    spec = build_spec(
        name=name,
        image=service.runner.image,
        n_workers=size.least,
        worker_command="dask worker",  # its default is a program that Dask has no more
        idle_timeout=IDLE_S,
    )
    made = [of_the_chart(spec, service, namespace, labels)]
    if service.dedicated.network_policy:
        made.append(_network_policy(name, namespace, labels[names.JOB], egress=service.dedicated.egress))
    if size.adaptive:
        made.append(_autoscaler(name, namespace, size))
    return made


def of_the_chart(drawn: Object, service: ServiceConfig, namespace: str, labels: Mapping[str, str]) -> Object:
    """Return a drawn cluster with the chart's pods: the same images, memory rules, probes and rights.

    Of what was drawn stay its name, its size, when it is idle, and its Service, by which the operator finds ports.
    """
    name, spec = drawn["metadata"]["name"], drawn["spec"]
    # Without a target a port leads to its own number, which the chart's scheduler listens at under another name.
    ports = [{**port} for port in spec["scheduler"]["service"]["ports"]]
    for port in ports:
        port.pop("targetPort", None)
    # The operator writes both unless they are there. A worker's name has to be its own, that of a Deployment, by which
    # it removes the worker again; its address of the scheduler supposes that the cluster's domain is cluster.local.
    worker = _pod(service.worker.pod_template, {"DASK_SCHEDULER_ADDRESS": scheduler_address(name, namespace)})
    scheduler = _pod(service.scheduler_pod_template, {"DASK_DISTRIBUTED__ADAPTIVE__TARGET_DURATION": _TARGET_DURATION})
    return {
        **drawn,
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            **spec,
            "worker": {**spec["worker"], **worker},
            "scheduler": {**scheduler, "service": {**spec["scheduler"]["service"], "ports": ports}},
        },
    }


def _pod(template: Object, environment: Mapping[str, str]) -> Object:
    """Return a pod's template with other variables, and without what makes it one of the release's own."""
    metadata, spec = template["metadata"], template["spec"]
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name not in _OF_THE_RELEASE}
    containers = [
        {
            **one,
            "env": _environment(one.get("env", []), environment),
            "resources": {part: _as_texts(amounts) for part, amounts in one.get("resources", {}).items()},
        }
        for one in spec["containers"]
    ]
    return {
        "metadata": {"labels": labels, "annotations": metadata.get("annotations", {})},
        "spec": {**spec, "containers": containers},
    }


def _as_texts(amounts: Mapping[str, Any]) -> dict[str, str]:
    """Return amounts as texts: the operator's objects take no numbers where Kubernetes takes both."""
    return {name: str(amount) for name, amount in amounts.items()}


def _environment(variables: Iterable[Object], ours: Mapping[str, str]) -> list[Object]:
    kept = [one for one in variables if one["name"] not in ("DASK_WORKER_NAME", *ours)]
    return [*({"name": name, "value": value} for name, value in ours.items()), *kept]


def _network_policy(name: str, namespace: str, job: str, *, egress: bool) -> Object:
    """Let a cluster's pods reach each other, and their job's runner them; the chart's policy lets in nobody else's.

    A policy for each cluster, because none can say "pods with the same value of this label".
    """
    pods = {"podSelector": {"matchLabels": {names.DASK_CLUSTER: name}}}
    runner = {"podSelector": {"matchLabels": {names.COMPONENT: names.RUNNER, names.JOB: job}}}
    ports = [{"protocol": "TCP", "port": 8786, "endPort": 8790}]
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods, runner], "ports": ports}]}
    if egress:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": [pods], "ports": ports}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": {names.JOB: job}},
        "spec": spec,
    }


def _autoscaler(name: str, namespace: str, size: Size) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "DaskAutoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"cluster": name, "minimum": size.least, "maximum": size.most},
    }


def state(name: str, pods: Iterable[Object]) -> str:
    """Return where the pods of a cluster stand, for people."""
    ready: dict[str, list[bool]] = {"scheduler": [], "worker": []}
    for pod in pods:
        ready[pod["metadata"]["labels"][names.DASK_COMPONENT]].append(is_ready(pod))
    if not any(ready.values()):
        return f"{name}: no pods; the operator of dask-kubernetes makes them"
    scheduler = "scheduler ready" if any(ready["scheduler"]) else "scheduler not ready"
    return f"{name}: {scheduler}, {sum(ready['worker'])} of {len(ready['worker'])} workers ready"
