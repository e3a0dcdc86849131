"""``mops jobs logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import job_text, terminal
from mops.cli.options import SERVICE, JobArgument, LocalOption, StorageOption
from mops.errors import UsageError
from mops.jobs.location import service_with
from mops.jobs.status import JobState, storage_of
from mops.jobs.text_log import read


def logs(
    job: JobArgument,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="Print the log of this attempt only")] = None,
    tail: Annotated[
        int | None, typer.Option("-n", "--tail", metavar="N", min=0, help="Print only this many last lines")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the job ends")] = False,
    pod: Annotated[
        bool, typer.Option("--pod", help="Print the output of the runner's newest pod", rich_help_panel=SERVICE)
    ] = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="Print the output of the workers' pods", rich_help_panel=SERVICE)
    ] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
) -> None:
    """Print the log of a job, with the output of its model.

    The runner writes the log with each checkpoint, so the log is some seconds behind a running job.

    Example:

        mops jobs logs waves --tail 50 --follow
    """
    found, printed = JobState(storage_of(job, storage, local=local), job), False
    if pod or workers:
        _of_pods(found, local=local, workers=workers, follow=follow, tail=tail)
        return
    try:
        for text in read(found, attempt, tail=tail, follow=follow):
            terminal.data_text(text)
            printed = printed or bool(text)
    except KeyboardInterrupt:
        terminal.say(f"stopped following; the job continues: {job_text.command('status', found)}")
        raise typer.Exit(130) from None
    if follow:
        terminal.say(f"job {job} is {found.status().state}")
    elif not printed and tail != 0:
        terminal.say(f"the job has no log yet: {job_text.command('status', found)}")


def _of_pods(job: JobState, *, local: bool, workers: bool, follow: bool, tail: int | None) -> None:
    """Print the output of pods.

    Raises
    ------
    UsageError
        No connected service has this job.
    """
    service = service_with(job.files, local=local)
    if service is None:
        raise UsageError(
            f"job {job.name!r} does not run on a connected service",
            where=job.files.url,
            hint="connect to the service that runs it: mops connect",
        )
    if workers:
        for name, line in service.worker_logs(job.name, tail):
            terminal.data_text(f"{name}: {line}\n")
        return
    for line in service.runner_log(job.name, follow=follow, tail=tail):
        terminal.data_text(f"{line}\n")
