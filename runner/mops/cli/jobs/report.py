"""``mops jobs report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.options import (
    JobArgument,
    JsonOption,
    LocalOption,
    OneTargetOption,
    StorageOption,
    WeightOption,
    read_weights,
)
from mops.jobs.job import open_job


def report(
    job: JobArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file, not to report-JOB.html")
    ] = None,
    weight: WeightOption = None,
    target: OneTargetOption = None,
    storage: StorageOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a job with figures, as one HTML file.

    The report shows what ran, what failed and what to do, and figures of progress, memory, failures, losses and
    outputs. It needs no network and no other file. A running job has a report too; the command replaces the file.

    Example:

        mops jobs report waves --out waves.html

    With several losses and no weights, the report ranks the sets by each loss.
    """
    weights = read_weights(weight)
    written = (
        open_job(job, storage, local=local)
        .report(target=target, weights=weights)
        .save(out or Path(f"report-{job}.html"))
    )
    n_bytes = written.stat().st_size
    if as_json:
        terminal.data_json({"job": job, "file": str(written), "bytes": n_bytes})
    else:
        terminal.data(str(written))
        terminal.say(f"{terminal.size(n_bytes)}; open it in a browser")
