"""``mops jobs submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mops.cli import running
from mops.launch import submit as submit_study
from mops.settings import Settings
from mops.worker.environment import read_variables

StorageOption = Annotated[
    str | None,
    typer.Option("--storage", help="Folder or URL of the results; else MODELOPS_STORAGE, else mops-storage/."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Return as soon as a runner has begun that outlives this terminal.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="A variable for the model; may be repeated. NAME=VALUE is kept with the job; NAME alone takes the value "
        "from the environment each time that the job runs, for secrets.",
    ),
]
PythonOption = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The interpreter for simulations, like .venv/bin/python; it needs numpy, pyarrow and the model's "
        "libraries, but not mops.",
    ),
]
PriorityOption = Annotated[
    Literal["low", "normal", "high"] | None,
    typer.Option(
        help="Share of a cluster beside other jobs: high has four times what normal has, low a quarter; else "
        "MODELOPS_JOB_PRIORITY.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as submit printed it.")]


def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (study.json).")],
    project: Annotated[Path | None, typer.Option(help="The folder with the model; else found from the study.")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name; else made from the study's.")] = None,
    detach: DetachOption = False,
    priority: PriorityOption = None,
    storage: StorageOption = None,
    env: EnvOption = None,
    python: PythonOption = None,
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
            env=read_variables(env or []),
            python=python,
            settings=Settings.from_environment(priority=priority),
            on_start=shown.started,
            on_progress=shown.progress,
            on_detach=shown.detached,
        )
        if not detach:
            shown.ended(job)
