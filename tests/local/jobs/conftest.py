"""A job that tests of figures and plots only read."""

from __future__ import annotations

import pytest
from figure_jobs import submitted

from mops.jobs.job import Job


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job in which some simulations and some targets fail."""
    return submitted(tmp_path_factory.mktemp("figures") / "project")
