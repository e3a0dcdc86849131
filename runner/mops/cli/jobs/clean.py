"""``mops jobs clean``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.job import open_job
from mops.jobs.removal import clean as clean_job


def clean(
    job: JobArgument,
    last_attempt: Annotated[
        bool,
        typer.Option("--last-attempt", help="Also remove files of the last attempt; cancel an interrupted job"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the files without removing them")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files that are not results.

    Killed runners leave such files, and `mops jobs compact` leaves the small parts that it has merged. Results do not
    change. You can clean a job while it runs, but --last-attempt needs a job without a runner.

    Example:

        mops jobs clean waves --dry-run
    """
    done = clean_job(open_job(job, storage, local=local), last_attempt=last_attempt, dry_run=dry_run)
    if as_json:
        terminal.data_json(asdict(done) | {"dry_run": dry_run})
        return
    for path in done.paths:
        terminal.data(path)
    verb = "would remove" if dry_run else "removed"
    terminal.say(f"{verb} {units.counted(len(done.paths), 'file')}, {terminal.size(done.bytes)}")
    if done.kept:
        terminal.say(
            f"kept {units.counted(done.kept, 'file')} that a runner or mops jobs compact may still need; "
            "if neither runs, add --last-attempt"
        )
