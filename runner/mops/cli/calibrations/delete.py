"""``mops calibrations delete``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.calibration.stored import jobs_of, stored_calibration
from mops.cli import terminal
from mops.cli.jobs.delete import delete_jobs, say_plan
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.location import locate
from mops.jobs.removal import plan_deletion


def delete_(
    calibrations: Annotated[list[str], typer.Argument(metavar="CALIBRATION", help="The names of the calibrations")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking")] = False,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete calibrations with the jobs of their rounds.

    mops does not delete a calibration whose job runs. If a deletion was killed, run the command again to finish it.

    Example:

        mops calibrations delete fit
    """
    files = locate(storage, local=local).open()
    records = [stored_calibration(files.brief(), name) for name in dict.fromkeys(calibrations)]
    plan = plan_deletion(files.brief(), [job for one in records for job in jobs_of(one)])
    for one in records:
        terminal.say(f"calibration {one.name}: {units.counted(len(one.begun()), 'round')}")
    say_plan(plan)
    what = f"{units.counted(len(records), 'calibration')} with {units.counted(len(plan), 'job')}"
    if not (yes or terminal.confirmed(f"delete {what} permanently?", option="--yes")):
        terminal.say("nothing was deleted")
        raise typer.Exit(1)
    done = delete_jobs(files, plan, local=local)
    for one in records:
        one.remove()
        terminal.say(f"deleted calibration {one.name}")
    if as_json:
        names = [one.name for one in records]
        terminal.data_json({"calibrations": names, "jobs": [asdict(deleted) for deleted in done]})
