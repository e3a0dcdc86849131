"""``mops jobs clean``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.clean import clean as clean_job
from mops.jobs.job import open_job


def clean(
    job: JobArgument,
    last_attempt: Annotated[
        bool,
        typer.Option(
            "--last-attempt", help="Also what the last attempt left; no runner may be at it, and it is cancelled then."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove parts that killed runners left and that do not count.

    Results stay as they are. A job may be cleaned while it runs.
    """
    done = clean_job(open_job(job, storage, local=local), last_attempt=last_attempt, dry_run=dry_run)
    if as_json:
        terminal.data_json(asdict(done) | {"dry_run": dry_run})
        return
    for path in done.paths:
        terminal.data(path)
    did = "would remove" if dry_run else "removed"
    terminal.say(f"{did} {units.counted(len(done.paths), 'file')}, {terminal.size(done.bytes)}")
    if done.kept:
        terminal.say(
            f"{units.counted(done.kept, 'file')} of the last attempt may yet count, and stay; "
            "if its runner is gone: --last-attempt"
        )
