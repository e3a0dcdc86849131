"""``mops jobs submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import running
from mops.launch import submit as submit_study

StorageOption = Annotated[
    str | None,
    typer.Option("--storage", help="Folder or URL of the results; else MODELOPS_STORAGE, else mops-storage/."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Return as soon as a runner has begun that outlives this terminal.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as submit printed it.")]


def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (study.json).")],
    project: Annotated[Path | None, typer.Option(help="The folder with the model; else found from the study.")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name; else made from the study's.")] = None,
    detach: DetachOption = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a study here, and keep its results as they come.

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed, 130 stopped, 2 wrong input, 4 storage out of reach.
    """
    with running.shown(as_json=as_json) as shown:
        job = submit_study(
            study,
            project=project,
            name=name,
            storage=storage,
            detach=detach,
            on_start=shown.started,
            on_progress=shown.progress,
            on_detach=shown.detached,
        )
        if not detach:
            shown.ended(job)
