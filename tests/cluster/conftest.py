"""Fixtures of the tests on a real Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_lab import Service, cluster_environment, installed


@pytest.fixture(scope="session")
def cluster() -> dict[str, str]:
    """Start a cluster with the image of this checkout; return the environment to use it."""
    return cluster_environment()


@pytest.fixture(scope="session")
def service(cluster: dict[str, str]) -> Iterator[Service]:
    """Install a service of two workers, and connect to it."""
    with installed("mops-test", cluster) as found:
        yield found
