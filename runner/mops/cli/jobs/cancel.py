"""``mops jobs cancel``."""

from __future__ import annotations

from mops.cli import job_text, terminal
from mops.cli.options import JobArgument, LocalOption, StorageOption
from mops.jobs.location import service_with
from mops.jobs.status import JobState, storage_of


def cancel(job: JobArgument, storage: StorageOption = None, local: LocalOption = False) -> None:
    """Stop a job.

    The runner commits what is finished, and stops within seconds. 'mops jobs resume' continues the job later.

    Example:

        mops jobs cancel waves
    """
    found = JobState(storage_of(job, storage, local=local), job)
    if found.cancel():
        terminal.say(f"job {job} is cancelled; if it runs, its runner commits what is finished and stops")
        service = service_with(found.files, local=local)
        for name in service.delete_idle_jobs(job) if service else ():
            terminal.say(f"deleted its Kubernetes Job {name}, which had not started")
        terminal.say(f"to continue it: {job_text.command('resume', found)}")
    else:
        terminal.say(f"job {job} is complete ({found.status().state}): there is nothing to cancel")
