"""``mops jobs resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import job_progress
from mops.cli.jobs import watch
from mops.cli.options import JobArgument
from mops.cli.start_options import StartOptions, with_start_options
from mops.jobs.job import open_job
from mops.jobs.submit import resume as resume_job


@with_start_options
def resume(
    job: JobArgument,
    take_over: Annotated[bool, typer.Option("--take-over", help="Replace the runner that runs the job")] = False,
    *,
    start: StartOptions,
) -> None:
    """Continue a job that was stopped or killed.

    mops runs the parameter sets that are not committed. The job keeps its project, its study and its seeds, its limits
    of time and memory, and every option that you do not give here. Other settings come from your environment now.

    Example:

        mops jobs resume waves
    """
    found = open_job(job, start.storage, local=start.local or start.detach)
    before = found.status().attempt
    service = start.service()
    with job_progress.displayed(start.settings, as_json=start.as_json) as shown:
        resume_job(
            found,
            take_over=take_over,
            on_start=shown.resumed,
            **start.run_options(service, shown),
        )
        if not start.detach and service is None:
            shown.ended(found)
    if service is not None and start.wait:
        watch.follow(found, service, as_json=start.as_json, after=before)
