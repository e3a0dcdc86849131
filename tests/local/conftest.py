"""Fast children for the tests whose subject is not the child."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from mops.worker import processes
from warm import VARIABLE, reapers, warm_children

_REAL = {"attempt", "child", "cluster", "system", "worker"}
"""The folders whose tests start children as users do."""


@pytest.fixture(scope="module", autouse=True)
def _warm_children(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name in _REAL:
        yield
        return
    name = warm_children()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, name)  # for the commands that the tests start
        patch.setattr(processes, "subprocess", reapers(name))
        yield


@pytest.fixture
def real_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this test start children as users do: it looks at processes."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(processes, "subprocess", subprocess)
