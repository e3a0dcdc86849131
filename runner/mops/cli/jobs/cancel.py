"""``mops jobs cancel``."""

from __future__ import annotations

from mops.cli import connected_service, job_text, terminal
from mops.cli.options import JobArgument, LocalOption, StorageOption
from mops.jobs.job import open_job


def cancel(job: JobArgument, storage: StorageOption = None, local: LocalOption = False) -> None:
    """Ask a job's runner to stop.

    It commits what is finished within seconds; 'mops jobs resume' goes on later.
    """
    found = open_job(job, storage, local=local)
    if found.cancel():
        terminal.say(f"job {job} is asked to stop; a runner that is at it commits what is finished within seconds")
        service = connected_service.service_with(found.files, local=local)
        for name in service.delete_idle_jobs(job) if service else ():
            terminal.say(f"its Kubernetes Job {name}, which ran nothing, is deleted")
        terminal.say(f"go on later with: {job_text.command('resume', found)}")
    else:
        terminal.say(f"job {job} is complete ({found.status().state}): there is nothing to cancel")
