"""Finds a cluster service, and checks that the user may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mops.errors import ServiceError, absolute
from mops.k8s import chart, names
from mops.k8s import connect as connect_kubernetes
from mops.k8s.chart import ASK_FOR_RIGHTS, Object
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


def connect(
    name: str | None,  # of the profile; None: the default one
    namespace: str | None,  # these three as for kubectl; None: the current ones
    context: str | None,
    kubeconfig: str | Path | None,
    release: str | None,  # of the chart; None: mops
    dedicated: bool,  # this person's jobs run on dedicated Dask clusters by default
) -> tuple[Profile, Path]:
    """Find a cluster service, save its profile, and let commands use it; return the profile and its path."""
    kubeconfig = str(absolute(Path(kubeconfig))) if kubeconfig else None
    if name is not None:
        says_place = any((namespace, context, kubeconfig, release))  # else the service is where this profile says
        profiles.check_name(name)
        if not says_place and (saved := profiles.load(name)) is not None:
            namespace, context, kubeconfig = saved.namespace, saved.context, saved.kubeconfig
            release, dedicated = saved.service.release, dedicated or saved.dedicated
    kubernetes = connect_kubernetes(namespace, context=context, kubeconfig=kubeconfig)
    service = chart.ServiceConfig.of(_config(kubernetes, release), kubernetes.where)
    missing = [
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for verb, resource, group in _NEEDED
        if not kubernetes.may(verb, resource, group)
    ]
    if missing:
        what = f"you lack permissions that mops needs: {', '.join(missing)}"
        raise ServiceError(what, where=kubernetes.where, hint=ASK_FOR_RIGHTS)
    found = Profile(
        namespace=kubernetes.namespace,
        context=kubernetes.context,  # by name, because another one may be the current one later
        kubeconfig=kubeconfig,
        dedicated=dedicated,
        service=service,
    )
    if dedicated:
        Service(found, kubernetes, service.runner).check_dedicated()
    name = name or profiles.DEFAULT
    file = profiles.save(found, name)
    profiles.use(name)
    return found, file


def _config(kubernetes: Kubernetes, release: str | None) -> Object:
    """Return the ConfigMap of a service. ServiceError: there is none, or this person may not use it."""
    wanted = release or DEFAULT_RELEASE
    name, absent = names.client_name(wanted), f"this namespace has no mops service {wanted!r}"
    # A modeller may read only this ConfigMap. For other ConfigMaps, Kubernetes does not say whether they exist.
    if not kubernetes.may("get", "configmaps", name=name):
        hint = f"check --namespace and --release; if they are right, {ASK_FOR_RIGHTS}"
        raise ServiceError(f"{absent}, or you may not use it", where=kubernetes.where, hint=hint)
    found = kubernetes.config_map(name)
    if found is not None:
        return found
    releases = []
    if kubernetes.may("list", "configmaps"):
        config_maps = kubernetes.config_maps({names.NAME: "mops", names.COMPONENT: names.CLIENT})
        releases = sorted(one["metadata"]["labels"].get(names.INSTANCE, "") for one in config_maps)
    hint = "use another --namespace, or ask the cluster's operator to install the chart"
    if saved := profiles.names():
        hint += f"; or use a saved profile: --profile {' or '.join(saved)}"
    if releases:
        hint = f"use {' or '.join(f'--release {name}' for name in releases)}"
    raise ServiceError(absent, where=kubernetes.where, hint=hint)
