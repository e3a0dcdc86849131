"""``mops jobs logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import connected_service, job_text, terminal
from mops.cli.options import JobArgument, LocalOption, StorageOption
from mops.errors import UsageError
from mops.jobs.job import Job, open_job
from mops.jobs.text_log import read


def logs(
    job: JobArgument,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt's; the first is 1.")] = None,
    tail: Annotated[int | None, typer.Option("-n", "--tail", min=0, help="Only the last lines, so many.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes until the job ends.")] = False,
    pod: Annotated[
        bool, typer.Option("--pod", help="On a service: what its runner's newest pod printed, before any log was kept.")
    ] = False,
    workers: Annotated[bool, typer.Option("--workers", help="On a service: what the workers' pods printed.")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
) -> None:
    """Print what mops and the models said while the job ran.

    Among it when each attempt began, and why it ended. The log is kept with each
    checkpoint, so that it is some seconds behind a running job.
    """
    found, printed = open_job(job, storage, local=local), False
    if pod or workers:
        _of_pods(found, local=local, workers=workers, follow=follow, tail=tail)
        return
    try:
        for text in read(found, attempt, tail=tail, follow=follow):
            terminal.data_text(text)
            printed = printed or bool(text)
    except KeyboardInterrupt:
        terminal.say(f"no longer followed; the job itself goes on: {job_text.command('status', found)}")
        raise typer.Exit(130) from None
    if follow:
        terminal.say(f"job {job} is {found.status().state}")
    elif not printed and tail != 0:
        terminal.say(f"nothing is logged yet: {job_text.command('status', found)}")


def _of_pods(job: Job, *, local: bool, workers: bool, follow: bool, tail: int | None) -> None:
    """Print what pods printed.

    Raises
    ------
    UsageError
        No connected service has this job.
    """
    service = connected_service.service_with(job.files, local=local)
    if service is None:
        raise UsageError(
            f"job {job.name!r} is not one of a connected service",
            where=job.files.url,
            hint="connect to the service that runs it: mops connect; its log is in the storage, too: mops jobs logs",
        )
    if workers:
        for name, line in service.worker_logs(job.name, tail):
            terminal.data_text(f"{name}: {line}\n")
        return
    for line in service.runner_log(job.name, follow=follow, tail=tail):
        terminal.data_text(f"{line}\n")
