"""Projects for the tests of commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .command_lab import CommandLab, make_lab


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(tmp_path: Path, cache: Path) -> CommandLab:
    return make_lab(tmp_path, cache)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[CommandLab, str]:
    """A succeeded job that tests only read."""
    lab = make_lab(tmp_path_factory.mktemp("finished"), cache)
    lab.write_study(targets=["model:score"])
    ran = lab.submit("--name", "done")
    assert ran.code == 0, ran.err
    return lab, "done"


@pytest.fixture
def done(lab: CommandLab, finished: tuple[CommandLab, str]) -> CommandLab:
    """A project whose storage has a copy of the succeeded job ``done``, which a test may change."""
    shutil.copytree(finished[0].storage, lab.storage)
    return lab
