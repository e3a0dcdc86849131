"""``mops jobs compact``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import JsonOption, LocalOption, StorageOption
from mops.jobs.job import open_job
from mops.storage.compaction import Compacted


def compact(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The names of the jobs")],
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Merge small parts of complete jobs into larger ones.

    A job is merged once. Results do not change. The small parts stay until `mops jobs clean` removes them.

    Example:

        mops jobs compact waves
    """
    opened = [open_job(job, storage, local=local) for job in jobs]
    done = []
    for job in opened:
        done.append(job.compact())
        terminal.say(_told(done[-1]))
    if as_json:
        terminal.data_json([asdict(one) for one in done])


def _told(done: Compacted) -> str:
    before, now = units.counted(done.parts_before, "part"), units.counted(done.parts, "part")
    if done.parts == done.parts_before:
        return f"job {done.job}: no small parts to merge ({before}, {terminal.size(done.bytes)})"
    was, is_now = terminal.size(done.bytes_before), terminal.size(done.bytes)
    how = f"to remove the small ones: mops jobs clean {done.job}"
    return f"job {done.job}: had {before} ({was}), has {now} ({is_now}); {how}"
