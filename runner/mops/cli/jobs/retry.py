"""``mops jobs retry``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import job_progress, job_text
from mops.cli.jobs import watch
from mops.cli.options import JobArgument
from mops.cli.start_options import StartOptions, with_start_options
from mops.errors import UsageError
from mops.jobs.job import open_job
from mops.jobs.submit import retry as retry_job


@with_start_options
def retry(
    job: JobArgument,
    verdict: Annotated[
        str | None,
        typer.Option(metavar="VERDICTS", help="Retry these failures, like oom,timeout, or all; required"),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name the new job")] = None,
    *,
    start: StartOptions,
) -> None:
    """Run the parameter sets with failures again, in a new job.

    The new job takes over all other results. The old job must be complete, and does not change. The new job keeps the
    project, the study and the seeds of the old job, and every option that you do not give here. Settings come from your
    environment now, so you can retry a timeout with more time.

    Verdicts: oom, crashed, timeout, error, invalid_output, lost.

    Example:

        mops jobs retry waves --verdict timeout,oom
    """
    found = open_job(job, start.storage, local=start.local or start.detach)
    if verdict is None and (counts := found.status().counts).verdicts:
        raise UsageError(
            "no verdict is named",
            where=f"the failures of {found.name}: {job_text.verdicts(counts)}",
            hint=f"add --verdict {','.join(sorted(counts.verdicts))}, or --verdict all",
        )
    service = start.service()
    with job_progress.displayed(as_json=start.as_json) as shown:
        child = retry_job(
            found,
            "all" if verdict is None else verdict,  # all: the error says that nothing has failed
            name=name,
            on_start=shown.derived,
            **start.run_options(service, shown),
        )
        if not start.detach and service is None:
            shown.ended(child)
    if service is not None and start.wait:
        watch.follow(child, service, as_json=start.as_json)
