"""Finds a cluster service, and checks that the user may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mops.errors import ServiceError
from mops.k8s import chart, names
from mops.k8s import connect as connect_kubernetes
from mops.k8s.chart import CONFIG_KEY, Object
from mops.service.profile import Profile
from mops.service.service import Service, forbidden

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes


DEFAULT_RELEASE = "mops"

_NEEDED = (
    ("create", "jobs", "batch"),
    ("list", "jobs", "batch"),
    ("delete", "jobs", "batch"),
    ("list", "pods", ""),
    ("get", "pods/log", ""),
    ("list", "events", ""),
)
"""What a modeller does in the namespace: verb, resource, API group."""


def connect(
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    release: str | None,
    *,
    dedicated: bool = False,
) -> Profile:
    """Find a cluster service, check that this person may use it, and return its profile.

    Parameters
    ----------
    namespace, context, kubeconfig
        As for kubectl; None: the current ones.
    release
        The chart's release; None: it is called mops.
    dedicated
        Whether this person's jobs run on dedicated Dask clusters by default.

    Raises
    ------
    UsageError
        There is no such kubeconfig, context or release; or the service has no dedicated clusters.
    ServiceError
        The cluster is out of reach, has no such service, or this person may not use it.
    """
    kubernetes = connect_kubernetes(namespace, context=context, kubeconfig=kubeconfig)
    name = names.client_name(release or DEFAULT_RELEASE)
    found = _config(kubernetes, name, release)
    where = f"{kubernetes.where}: ConfigMap {name}"
    service = chart.ServiceConfig.parse(found.get("data", {}).get(CONFIG_KEY, ""), where)
    missing = [
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for verb, resource, group in _NEEDED
        if not kubernetes.may(verb, resource, group)
    ]
    if missing:
        raise forbidden(missing, kubernetes.where)
    profile = Profile(
        namespace=kubernetes.namespace,
        context=kubernetes.context,  # named also where it was the current one: another may be, later
        kubeconfig=kubeconfig,
        dedicated=dedicated,
        service=service,
    )
    if dedicated:
        Service(profile, kubernetes, service.runner).check_dedicated()
    return profile


def _config(kubernetes: Kubernetes, name: str, release: str | None) -> Object:
    """Return the ConfigMap in which the chart says what clients need."""
    # A modeller may read the one of each release; whether another one is not there, or not theirs, nobody says.
    if not kubernetes.may("get", "configmaps", name=name):
        raise ServiceError(
            f"there is no mops service {release or DEFAULT_RELEASE!r} in this namespace, or you may not use it",
            where=kubernetes.where,
            hint="name its namespace (--namespace) and release (--release); if they are right, ask the cluster's "
            "operator to add you to clients.subjects of the chart's values",
        )
    found = kubernetes.config_map(name)
    if found is None:
        raise _no_service(kubernetes, release)
    return found


def _no_service(kubernetes: Kubernetes, release: str | None) -> ServiceError:
    """Return the error for a namespace without the release; who may list what there is, is told."""
    releases = []
    if kubernetes.may("list", "configmaps"):
        there = kubernetes.config_maps({names.NAME: "mops", names.COMPONENT: names.CLIENT})
        releases = sorted(one["metadata"]["labels"].get(names.INSTANCE, "") for one in there)
    if releases:
        hint = f"choose one that is there: {', '.join(f'--release {name}' for name in releases)}"
    else:
        hint = "name another namespace (--namespace) or release (--release), or have the operator install the chart"
    what = f"there is no mops service {release or DEFAULT_RELEASE!r} in this namespace"
    return ServiceError(what, where=kubernetes.where, hint=hint)
