"""Kubernetes: the runner's Job, its pods, dedicated clusters. Knows no studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes


def connect(namespace: str | None = None, **given: Any) -> Kubernetes:
    """Return a connection; as :class:`mops.k8s.client.Kubernetes`, which is imported when somebody needs it."""
    from mops.k8s.client import Kubernetes  # noqa: PLC0415 - a third of a second, and most jobs need no Kubernetes

    return Kubernetes(namespace, **given)
