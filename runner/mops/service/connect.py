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
"""What a modeller may do in the namespace: verb, resource, API group."""


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
        The chart's release; None: mops.
    dedicated
        Whether this person's jobs run on dedicated Dask clusters by default.

    Raises
    ------
    UsageError
        The kubeconfig or context does not exist; or the service has no dedicated clusters.
    ServiceError
        The cluster is out of reach, the service does not exist, or this person may not use it.
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
        context=kubernetes.context,  # by name, because another one may be the current one later
        kubeconfig=kubeconfig,
        dedicated=dedicated,
        service=service,
    )
    if dedicated:
        Service(profile, kubernetes, service.runner).check_dedicated()
    return profile


def _config(kubernetes: Kubernetes, name: str, release: str | None) -> Object:
    """Return the chart's ConfigMap for clients."""
    # A modeller may read only this ConfigMap. For other ConfigMaps, Kubernetes does not say whether they exist.
    if not kubernetes.may("get", "configmaps", name=name):
        raise ServiceError(
            f"this namespace has no mops service {release or DEFAULT_RELEASE!r}, or you may not use it",
            where=kubernetes.where,
            hint="check --namespace and --release; if they are right, ask the cluster's operator to add you to "
            "clients.subjects of the chart's values",
        )
    found = kubernetes.config_map(name)
    if found is not None:
        return found
    releases = []
    if kubernetes.may("list", "configmaps"):
        config_maps = kubernetes.config_maps({names.NAME: "mops", names.COMPONENT: names.CLIENT})
        releases = sorted(one["metadata"]["labels"].get(names.INSTANCE, "") for one in config_maps)
    if releases:
        hint = f"use {' or '.join(f'--release {name}' for name in releases)}"
    else:
        hint = "use another --namespace, or ask the cluster's operator to install the chart"
    raise ServiceError(
        f"this namespace has no mops service {release or DEFAULT_RELEASE!r}", where=kubernetes.where, hint=hint
    )
