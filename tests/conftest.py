"""Fixtures of all tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from clocks import Clock

# Examples have no deadline: on a busy machine they are slow.
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=2_000)
# tests/mutation.py needs the same examples for each change.
settings.register_profile("mutation", settings.get_profile("ci"), max_examples=30, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _no_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests away from a service to which the developer is connected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cgroup_of() -> Iterator[Callable[[int], Path]]:
    """Return a function that makes a memory cgroup with a limit in bytes. A process joins by its ``cgroup.procs``."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a cgroup")
    made: list[Path] = []
    v1 = Path("/sys/fs/cgroup/memory")

    def make(limit_bytes: int) -> Path:
        folder = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"mops-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            made.append(folder)
            (folder / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(str(limit_bytes))
        except OSError as refused:
            pytest.skip(f"no memory cgroup can be made here: {refused}")
        return folder

    yield make
    for folder in made:
        folder.rmdir()
