"""Fixtures of the tests on a real Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_lab import Service, cluster_environment, installed


@pytest.fixture(scope="session")
def cluster() -> dict[str, str]:
    """Have a cluster with this checkout's image; return the variables that lead to it."""
    return cluster_environment()


@pytest.fixture(scope="session")
def service(cluster: dict[str, str]) -> Iterator[Service]:
    """Have a service of two workers, and a person who is connected to it."""
    with installed("mops-test", cluster) as found:
        yield found
