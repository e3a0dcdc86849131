"""Finds a cluster service, and checks that the user may use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mops.errors import ServiceError
from mops.k8s import chart, names
from mops.k8s import connect as connect_kubernetes
from mops.k8s.chart import ASK_FOR_RIGHTS, CONFIG_KEY, Object
from mops.service import profile as profiles
from mops.service.profile import Profile
from mops.service.service import Service

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes


DEFAULT_RELEASE = "mops"

# The rights of a modeller in the namespace: verb, resource, API group.
_NEEDED = (
    ("create", "jobs", "batch"),
    ("list", "jobs", "batch"),
    ("delete", "jobs", "batch"),
    ("list", "pods", ""),
    ("get", "pods/log", ""),
    ("list", "events", ""),
)


@dataclass(frozen=True)
class Wanted:
    """Where a service is."""

    namespace: str | None = None  # these three as for kubectl; None: the current ones
    context: str | None = None
    kubeconfig: str | None = None
    release: str | None = None  # of the chart; None: mops
    dedicated: bool = False  # this person's jobs run on dedicated Dask clusters by default


def connect(name: str | None, wanted: Wanted) -> tuple[Profile, Path]:
    """Find a cluster service, save its profile, and let commands use it; return the profile and its path."""
    if name is not None:
        # If a profile has this name, and ``wanted`` says no place, the service is looked for where that profile says.
        wanted = _where_saved(profiles.checked_name(name), wanted)
    found = _find(wanted)
    name = name or profiles.DEFAULT
    saved = profiles.save(found, name)
    profiles.use(name)
    return found, saved


def _where_saved(name: str, wanted: Wanted) -> Wanted:
    says_place = any((wanted.namespace, wanted.context, wanted.kubeconfig, wanted.release))
    saved = None if says_place else profiles.load(name)
    if saved is None:
        return wanted
    dedicated = wanted.dedicated or saved.dedicated
    return Wanted(saved.namespace, saved.context, saved.kubeconfig, saved.service.release, dedicated)


def _find(wanted: Wanted) -> Profile:
    """Find a cluster service, and check that this person may use it."""
    kubernetes = connect_kubernetes(wanted.namespace, context=wanted.context, kubeconfig=wanted.kubeconfig)
    name = names.client_name(wanted.release or DEFAULT_RELEASE)
    found = _config(kubernetes, name, wanted.release)
    where = f"{kubernetes.where}: ConfigMap {name}"
    service = chart.ServiceConfig.parse(found.get("data", {}).get(CONFIG_KEY, ""), where)
    missing = [
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for verb, resource, group in _NEEDED
        if not kubernetes.may(verb, resource, group)
    ]
    if missing:
        raise ServiceError(
            f"you lack permissions that mops needs: {', '.join(missing)}",
            where=kubernetes.where,
            hint=ASK_FOR_RIGHTS,
        )
    profile = Profile(
        namespace=kubernetes.namespace,
        context=kubernetes.context,  # by name, because another one may be the current one later
        kubeconfig=wanted.kubeconfig,
        dedicated=wanted.dedicated,
        service=service,
    )
    if wanted.dedicated:
        Service(profile, kubernetes, service.runner).check_dedicated()
    return profile


def _config(kubernetes: Kubernetes, name: str, release: str | None) -> Object:
    # A modeller may read only this ConfigMap. For other ConfigMaps, Kubernetes does not say whether they exist.
    if not kubernetes.may("get", "configmaps", name=name):
        raise ServiceError(
            f"this namespace has no mops service {release or DEFAULT_RELEASE!r}, or you may not use it",
            where=kubernetes.where,
            hint=f"check --namespace and --release; if they are right, {ASK_FOR_RIGHTS}",
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
