"""``mops jobs cancel``."""

from __future__ import annotations

from mops.cli import terminal
from mops.cli.jobs_submit import JobArgument, StorageOption
from mops.job import open_job


def cancel(job: JobArgument, storage: StorageOption = None) -> None:
    """Ask a job's runner to commit what is finished and stop. ``mops jobs resume`` goes on later."""
    found = open_job(job, storage)
    if found.cancel():
        terminal.say(f"job {job}: asked to stop; its runner notices within seconds. Go on with: mops jobs resume {job}")
    else:
        terminal.say(f"job {job} was complete already ({found.status().state}): there is nothing to cancel")
