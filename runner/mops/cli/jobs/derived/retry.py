"""``mops jobs retry``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from mops.cli import job_progress
from mops.cli.jobs import watch
from mops.cli.options import JobArgument
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, with_start_options
from mops.errors import UsageError
from mops.jobs.derive import retry as retry_job
from mops.jobs.job import Job, open_job


@with_start_options
def retry(
    job: JobArgument,
    verdict: Annotated[
        str | None,
        typer.Option(metavar="VERDICTS", help="Retry these failures, like oom,timeout, or all"),
    ] = None,
    with_new_code: Annotated[
        bool, typer.Option("--with-new-code", help="Run the present code of the project: retry after a repair")
    ] = False,
    name: NameOption = None,
    project: ProjectOption = None,
    *,
    start: StartOptions,
) -> None:
    """Run the parameter sets with failures again, in a new job.

    The new job takes over all other results. If only targets of a set have failed, no simulation of it runs again. The
    old job must be complete, and does not change. The new job keeps the project, the study and the seeds of the old
    job, its limits of time and memory, and every option that you do not give here. A variable of your environment
    overrides a limit, so you can retry a timeout with more time.

    With --with-new-code, the failed sets run with the present files of the project, so you can repair the model and
    retry only what failed. Without --verdict, this retries all failures. Simulations that the new job takes over ran
    with the old files. If the repair changes what good simulations compute, submit the study again instead.

    Verdicts: oom, crashed, timeout, error, invalid_output, lost.

    Example:

        mops jobs retry waves --with-new-code

        mops jobs retry waves --verdict timeout,oom
    """
    found = open_job(job, start.storage, local=start.local or start.detach)
    if verdict is None and not with_new_code and (counts := found.status().counts).verdicts:
        raise UsageError(
            "no verdict is named",
            where=f"the failures of {found.name}: {', '.join(counts.by_verdict)}",
            hint=f"add --verdict {','.join(sorted(counts.verdicts))}, or --verdict all; after a repair of the code: "
            "--with-new-code",
        )
    # all: the error says that nothing has failed
    more = {"verdicts": "all" if verdict is None else verdict, "new_code": with_new_code, "project": project}
    derive(retry_job, job, start, name=name, **more)


def derive(derive_job: Callable[..., Job], job: str, start: StartOptions, **arguments: Any) -> None:
    """Start a job derived from another, and show it as the options of the start say.

    Parameters
    ----------
    derive_job
        A function of :mod:`mops.jobs.derive`.
    **arguments
        Its arguments, without those of the start.
    """
    found = open_job(job, start.storage, local=start.local or start.detach)
    service = start.service()
    with job_progress.displayed(start.settings, as_json=start.as_json) as shown:
        child = derive_job(found, on_start=shown.derived, **arguments, **start.run_options(service, shown))
        if not start.detach and service is None:
            shown.ended(child)
    if service is not None and start.wait:
        watch.follow(child, service, as_json=start.as_json)
