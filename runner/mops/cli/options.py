"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

StorageOption = Annotated[
    str | None,
    typer.Option("--storage", help="Folder or URL of the results. See 'mops settings'."),
]
LocalOption = Annotated[bool, typer.Option("--local", help="Work on this machine even when connected to a service.")]
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
