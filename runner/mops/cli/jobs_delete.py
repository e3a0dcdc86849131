"""``mops jobs delete``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops.cli import describe, terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.deletion import Deleted, delete, doomed
from mops.location import locate


def delete_(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="The jobs' names.")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs with their results, for good.

    A running job is refused. A deletion that was killed is finished by another one.
    """
    files = locate(storage, local=local).open()
    found = doomed(files.brief(), jobs)
    for job in found:
        terminal.say(f"job {job.job}: {job.state}, {describe.counted(job.files, 'file')}, {terminal.size(job.bytes)}")
    if not (yes or terminal.confirmed(f"delete {describe.counted(len(found), 'job')} for good?", unasked="--yes")):
        terminal.say("nothing is deleted")
        raise typer.Exit(1)
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
