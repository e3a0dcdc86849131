"""Kubernetes: the runner's Job, its pods, and dedicated clusters. Nothing here knows about studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes


def connect(namespace: str | None = None, **options: Any) -> Kubernetes:
    """Connect to Kubernetes; the arguments are those of :class:`mops.k8s.client.Kubernetes`."""
    from mops.k8s.client import Kubernetes  # noqa: PLC0415 - a third of a second, and most jobs need no Kubernetes

    return Kubernetes(namespace, **options)
