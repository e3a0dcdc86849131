"""``mops jobs list``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.jobs_submit import JsonOption, StorageOption
from mops.job import open_storage
from mops.listing import STATES, Listed, list_jobs


def list_(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATES", help=f"Only jobs that are so: {', '.join(STATES)}.")
    ] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Only so many, the newest.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of a storage, newest first.

    Several states are separated by commas.
    """
    files = open_storage(storage)
    states = [name.strip() for names in state or [] for name in names.split(",")]
    found = list_jobs(files.brief(), states, limit)
    if as_json:
        terminal.data_json([asdict(job) for job in found])
        return
    if found:
        terminal.data_table(("job", "state", "sets", "failed", "submitted"), map(_row, found), right=("sets", "failed"))
    else:
        terminal.say(f"no {' or '.join(states) + ' ' if states else ''}jobs in {files.url}")
    for job in found:
        if job.error is not None:
            terminal.say(f"warning: job {job.job} cannot be read: {job.error}")


def _row(job: Listed) -> tuple[str, ...]:
    submitted = terminal.moment(job.created) if job.created else "-"
    if job.groups is None or job.n_groups is None:
        return job.job, job.state, "-", "-", submitted
    return job.job, job.state, f"{job.groups:,}/{job.n_groups:,}", f"{job.simulations_failed:,}", submitted
