"""Jobs that the tests of reports only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mops.jobs.job import Job

from .report_lab import ODD_MODEL, ODD_TARGETS, ODD_WEIGHTS, WEIGHTS, design, odd_design, saved, submit


@pytest.fixture(scope="session")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job of which 30 % of the sets fail."""
    return submit(tmp_path_factory.mktemp("partial"), design(40))


@pytest.fixture(scope="session")
def partial_page(partial: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(partial, tmp_path_factory.mktemp("pages"), WEIGHTS)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with names that figures use themselves, dates, and equal losses."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "model.py").write_text(ODD_MODEL)
    return submit(folder, odd_design(40), "odd", fields={"targets": ODD_TARGETS, "n_replicates": 1})


@pytest.fixture(scope="session")
def odd_page(odd: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(odd, tmp_path_factory.mktemp("odd-pages"), ODD_WEIGHTS)
