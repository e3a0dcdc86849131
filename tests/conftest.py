"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from clocks import Clock

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Where bytecode is not stored, each process that a test starts compiles pyarrow, distributed and pandas again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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


@pytest.fixture(scope="session", autouse=True)
def _frozen_modules() -> None:
    """Exclude the objects of all imported modules from garbage collection: tests call ``gc.collect`` often."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium, which Debian has as a package; ``MOPS_REQUIRE_BROWSER=1`` makes a missing one a failure."""
    program = shutil.which("chromium")
    if program is None:
        missing = "no browser: apt-get install chromium"
        (pytest.fail if os.environ.get("MOPS_REQUIRE_BROWSER") == "1" else pytest.skip)(missing)
    from playwright.sync_api import sync_playwright

    # Not for the whole run: while Playwright is open, no test of the same process can call asyncio.run.
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])  # root has no sandbox
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page, and fail the test if the page reports an error on its console."""
    context = browser.new_context()
    opened, errors = context.new_page(), []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert errors == []


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
