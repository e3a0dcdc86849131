"""``mops jobs retry``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import job_progress
from mops.cli.jobs import watch
from mops.cli.options import JobArgument
from mops.cli.start_options import StartOptions, with_start_options
from mops.jobs.job import open_job
from mops.jobs.submit import retry as retry_job


@with_start_options
def retry(
    job: JobArgument,
    verdict: Annotated[
        str,
        typer.Option(
            help="Failures to run again: oom, crashed, timeout, error, invalid_output, lost (a,b,...), or all."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="The new job's name; else made from the job's.")] = None,
    *,
    start: StartOptions,
) -> None:
    """Run what failed again, in a new job.

    It takes over all parameter sets without such failures. The job itself, which must be complete, stays as it is.
    Bundle, study and seeds are the job's; settings are read afresh, so that a timeout can be retried with more time.
    The options of submit are the job's, too, unless they are given here.
    """
    found = open_job(job, start.storage, local=start.local or start.detach)
    service = start.service()
    with job_progress.displayed(as_json=start.as_json) as shown:
        child = retry_job(
            found,
            verdict,
            name=name,
            on_start=shown.derived,
            **start.run_options(service, shown),
        )
        if not start.detach and service is None:
            shown.ended(child)
    if service is not None and start.wait:
        watch.follow(child, service, as_json=start.as_json)
