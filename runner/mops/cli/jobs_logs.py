"""``mops jobs logs``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import running, terminal
from mops.cli.jobs_submit import JobArgument, StorageOption
from mops.job import open_job
from mops.textlog import read


def logs(
    job: JobArgument,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt's; the first is 1.")] = None,
    tail: Annotated[int | None, typer.Option("-n", "--tail", min=0, help="Only the last lines, so many.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes until the job ends.")] = False,
    storage: StorageOption = None,
) -> None:
    """Print what mops and the models said while the job ran.

    Among it when each attempt began, and why it ended. The log is kept with each
    checkpoint, so that it is some seconds behind a running job.
    """
    found, printed = open_job(job, storage), False
    try:
        for text in read(found, attempt, tail=tail, follow=follow):
            terminal.data_text(text)
            printed = printed or bool(text)
    except KeyboardInterrupt:
        terminal.say(f"no longer followed; the job itself goes on: {running.command('status', found)}")
        raise typer.Exit(130) from None
    if follow:
        terminal.say(f"job {job} is {found.status().state}")
    elif not printed and tail != 0:
        terminal.say(f"nothing is logged yet: {running.command('status', found)}")
