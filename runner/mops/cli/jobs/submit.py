"""``mops jobs submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress
from mops.cli.jobs import watch
from mops.cli.start_options import NameOption, ProjectOption, StartOptions, with_start_options
from mops.jobs.submit import submit as submit_study


@with_start_options
def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, like study.json")],
    project: ProjectOption = None,
    name: NameOption = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take simulations that other jobs of the storage have run already")
    ] = False,
    *,
    start: StartOptions,
) -> None:
    """Run a study on this machine or on the connected service.

    Results are durable while the job runs. On a service, the command returns when Kubernetes has accepted the job; with
    --wait it follows the job. mops stores NAME=VALUE of --env with the job. For a secret, give only NAME: the runner
    takes the value from its environment.

    With --reuse, the job runs only simulations that no complete job of the storage has run with the same project files,
    --env, parameters and seed. The study and its file of parameter sets may differ. All targets run again. mops does
    not compare libraries, data outside the project, or variables that simulations inherit from the shell.

    Example:

        mops jobs submit study.json --name waves

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed, 130 stopped, 2 wrong input, 4 storage or service out
    of reach.
    """
    service = start.service()
    with job_progress.displayed(start.settings, as_json=start.as_json) as shown:
        job = submit_study(
            study,
            project=project,
            name=name,
            storage=start.storage,
            on_start=shown.started,
            reuse=reuse,
            **start.run_options(service, shown),
        )
        if not start.detach and service is None:
            shown.ended(job)
    if service is not None and start.wait:
        watch.follow(job, service, as_json=start.as_json)
