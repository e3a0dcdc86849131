"""``mops jobs results``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import terminal
from mops.cli.jobs_submit import JobArgument, JsonOption, StorageOption
from mops.export import Format, export
from mops.job import Job, open_job


def results(
    job: JobArgument,
    to: Annotated[
        Path | None, typer.Option(help="Export into this folder, one file for each output and table.")
    ] = None,
    file_format: Annotated[Format, typer.Option("--format", help="The exported files' format.")] = Format.PARQUET,
    overwrite: Annotated[bool, typer.Option(help="Replace exported files that are there already.")] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print where a job's committed results are, or export them.

    Parts are Parquet and readable while the job runs.
    """
    found = open_job(job, storage)
    files = export(found, to, file_format, overwrite=overwrite) if to is not None else _parts(found)
    if as_json:
        terminal.data_json(files)
    else:
        for name, paths in files.items():
            for path in paths:
                terminal.data(f"{name}\t{path}")


def _parts(job: Job) -> dict[str, list[str]]:
    return {name: [f"{job.files.url}/{path}" for path in paths] for name, paths in job.all_paths().items()}
