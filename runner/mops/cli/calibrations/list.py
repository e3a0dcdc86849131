"""``mops calibrations list``."""

from __future__ import annotations

from dataclasses import asdict

from mops import units
from mops.calibration.stored import Listed, list_calibrations
from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.location import locate


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
