"""Starts a child process while a command that runs simulations on this machine is imported."""

from __future__ import annotations

import contextlib
import os
import sys

from mops.errors import UsageError
from mops.jobs.location import locate
from mops.settings import Settings
from mops.worker.reaper.early import start_early


def start_early_child() -> None:
    """Start a child process, unless other machines run the simulations, or nothing runs: for help or completion."""
    if not {"-h", "--help"}.isdisjoint(sys.argv) or "_MOPS_COMPLETE" in os.environ:
        return
    with contextlib.suppress(UsageError):  # the command will raise it too
        settings = Settings.from_environment()
        location = locate(local="--local" in sys.argv, settings=settings)
        if location.profile is None and settings.scheduler is None:
            start_early(settings.sim_threads)
