"""``mops jobs verify``."""

from __future__ import annotations

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JobArgument, JsonOption, LocalOption, StorageOption
from mops.jobs.job import open_job


def verify(
    job: JobArgument, storage: StorageOption = None, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """Check a job's log, and its parts by size and SHA-256.

    The command prints a line for each problem.

    Example:

        mops jobs verify waves

    Exit codes: 0 no problem, 1 problems.
    """
    problems = open_job(job, storage, local=local).verify()
    if as_json:
        terminal.data_json({"job": job, "problems": problems})
    else:
        for problem in problems:
            terminal.data(problem)
    found = units.counted(len(problems), "problem")
    terminal.say(f"job {job} has {found}" if problems else f"job {job} has no problems")
    raise typer.Exit(1 if problems else 0)
