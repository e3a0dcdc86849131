"""``mops jobs run``: the program of a runner that nobody watches."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import running, terminal
from mops.cli.jobs_submit import JobArgument, StorageOption
from mops.job import open_job
from mops.launch import run as run_job
from mops.storage.log import Settled


def run(
    job: JobArgument,
    storage: StorageOption = None,
    person: Annotated[bool, typer.Option("--person", help="Somebody asked for it: go on after a cancel too.")] = False,
) -> None:
    """Run a job that exists.

    Unless a person asks for it, a job that was cancelled or has ended stays so. Exit codes are those of submit.
    """
    with running.shown(as_json=False) as shown:
        found = open_job(job, storage)
        try:
            run_job(found, by="person" if person else "auto", on_progress=shown.progress)
        except Settled as settled:
            terminal.say(f"job {job} has ended ({settled.state}): there is nothing to run")
            raise typer.Exit(terminal.EXIT_CODES[settled.state]) from None
        shown.ended(found)
