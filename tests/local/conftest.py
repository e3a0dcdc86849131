"""Fast children for the tests whose subject is not the child."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from mops.worker import processes
from warm import VARIABLE, reapers, warm_children

_REAL = {"child", "cluster", "system", "worker"}
"""The folders whose tests start children as users do, unless a module has ``WARM_CHILDREN = True``.

A module has it if most of its tests look neither at processes nor at their memory; the others use ``real_children``.
``study_lab.Runner.alive``, for example, finds no warm child.
"""


@pytest.fixture(scope="module", autouse=True)
def _warm_children(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name in _REAL and not getattr(request.module, "WARM_CHILDREN", False):
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
