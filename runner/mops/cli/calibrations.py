"""``mops calibrations list`` and ``delete``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.calibration.stored import Listed, jobs_of, list_calibrations, stored_calibration
from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.cli.tidy import delete_jobs, say_plan
from mops.jobs.location import locate
from mops.jobs.removal import plan_deletion


def list_(storage: StorageOption = None, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """List the calibrations of a storage, newest first.

    Example:

        mops calibrations list
    """
    files = locate(storage, local=local).open()
    found = list_calibrations(files.brief())
    if as_json:
        terminal.data_json([asdict(one) for one in found])
    elif found:
        columns = ("calibration", "method", "rounds", "sets", "failed", "began", "open round")
        terminal.data_table(columns, map(_row, found), right=("rounds", "sets", "failed"))
    else:
        terminal.say(f"no calibrations in {files.url}")
    for one in found:
        if one.error is not None:
            terminal.say(f"warning: calibration {one.calibration} cannot be read: {one.error}")


def _row(one: Listed) -> tuple[str, ...]:
    if one.scored is None or one.failed is None or one.created is None:
        return one.calibration, *("-" for _ in range(6))
    counts = (f"{one.rounds:,}", f"{one.scored + one.failed:,}", f"{one.failed:,}")
    return one.calibration, str(one.method), *counts, units.moment(one.created), one.open_job or ""


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
