"""``mops jobs delete``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.location import locate, service_with
from mops.jobs.removal import Deleted, DeletionPlan, delete, plan_deletion
from mops.storage.files import Files


def delete_(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The names of the jobs")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs with their results.

    mops does not delete a running job. If a deletion was killed, run the command again to finish it.

    Example:

        mops jobs delete waves waves-retry
    """
    files = locate(storage, local=local).open()
    found = plan_deletion(files.brief(), jobs)
    say_plan(found)
    if not (yes or terminal.confirmed(f"delete {units.counted(len(found), 'job')} permanently?", option="--yes")):
        terminal.say("nothing was deleted")
        raise typer.Exit(1)
    done = delete_jobs(files, found, local=local)
    if as_json:
        terminal.data_json([asdict(deleted) for deleted in done])


def say_plan(plan: Iterable[DeletionPlan]) -> None:
    """Print what a deletion would remove."""
    for job in plan:
        terminal.say(f"job {job.job}: {job.state}, {units.counted(job.files, 'file')}, {terminal.size(job.bytes)}")


def delete_jobs(files: Files, plan: Sequence[DeletionPlan], *, local: bool) -> list[Deleted]:
    """Delete jobs, print each, and return what was deleted; errors as :func:`mops.jobs.removal.delete`."""
    # Delete queued Kubernetes Jobs before the files: such a Job may start a runner a day later, without its files.
    service = service_with(files, local=local) if plan else None
    for job in plan:
        for name in service.delete_idle_jobs(job.job) if service else ():
            terminal.say(f"deleted its Kubernetes Job {name}, which had not started")
    done = []
    for deleted in delete(files, [job.job for job in plan]):
        done.append(deleted)
        terminal.say(f"deleted job {deleted.job}")
    return done
