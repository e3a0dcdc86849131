"""``mops jobs delete``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.cli import connected_service, terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.delete import Deleted, delete, plan_deletion
from mops.jobs.location import locate


def delete_(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs' names.")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs with their results, for good.

    A running job is refused. A deletion that was killed is finished by another one. What waits for a place on the
    connected service does not wait any more.
    """
    files = locate(storage, local=local).open()
    found = plan_deletion(files.brief(), jobs)
    for job in found:
        terminal.say(f"job {job.job}: {job.state}, {units.counted(job.files, 'file')}, {terminal.size(job.bytes)}")
    if not (yes or terminal.confirmed(f"delete {units.counted(len(found), 'job')} for good?", unasked="--yes")):
        terminal.say("nothing is deleted")
        raise typer.Exit(1)
    # Before the files go: a Job that waits for a place would start a runner that finds no job, perhaps a day later.
    service = connected_service.service_with(files, local=local)
    for job in found:
        for name in service.delete_idle_jobs(job.job) if service else ():
            terminal.say(f"its Kubernetes Job {name}, which runs nothing, is deleted")
    gone = []
    for deleted in delete(files, [job.job for job in found]):
        gone.append(deleted)
        _say(deleted)
    if as_json:
        terminal.data_json([asdict(deleted) for deleted in gone])


def _say(deleted: Deleted) -> None:
    terminal.say(f"job {deleted.job} is deleted")
    if deleted.hosts:
        where = ", ".join(deleted.hosts)
        terminal.say(
            f"  its runner on {where} was silent and may still be alive: it stops as soon as it looks, "
            f"and no other job can be named {deleted.job}"
        )
