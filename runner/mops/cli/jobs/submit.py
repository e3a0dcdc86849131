"""``mops jobs submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mops.cli import job_progress, service_options
from mops.cli.jobs import watch
from mops.cli.options import (
    DetachOption,
    EnvOption,
    JsonOption,
    LocalOption,
    PriorityOption,
    PythonOption,
    StorageOption,
)
from mops.jobs.submit import submit as submit_study
from mops.settings import Settings
from mops.storage.job_options import PodOptions
from mops.worker.environment.variables import read_variables


def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (study.json).")],
    project: Annotated[Path | None, typer.Option(help="The folder with the model; else found from the study.")] = None,
    name: Annotated[str | None, typer.Option(help="The job's name; else made from the study's.")] = None,
    detach: DetachOption = False,
    priority: PriorityOption = None,
    storage: StorageOption = None,
    env: EnvOption = None,
    python: PythonOption = None,
    local: LocalOption = False,
    wait: service_options.WaitOption = False,
    queue: service_options.QueueOption = None,
    priority_class: service_options.PriorityClassOption = None,
    deadline: service_options.DeadlineOption = None,
    keep: service_options.KeepOption = None,
    memory: service_options.MemoryOption = None,
    dedicated: service_options.DedicatedOption = None,
    workers: service_options.WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a study and keep its results as they come.

    On this machine, or on the service that 'mops connect' has found.

    Exit codes: 0 succeeded, 3 some simulations failed, 1 failed, 130 stopped, 2 wrong input, 4 storage or service out
    of reach. On a service the command returns when Kubernetes has taken the job, unless it is to --wait.
    """
    pod = PodOptions(
        queue=queue,
        priority_class=priority_class,
        deadline_s=deadline,
        keep_s=keep,
        memory=memory,
        dedicated=dedicated,
        workers=workers,
    )
    service = service_options.service_of(local=local, detach=detach, pod=pod)
    with job_progress.displayed(as_json=as_json) as shown:
        job = submit_study(
            study,
            project=project,
            name=name,
            storage=storage,
            detach=detach,
            local=local,
            service=service,
            env=read_variables(env or []),
            python=python,
            pod=pod,
            settings=Settings.from_environment(priority=priority),
            on_start=shown.started,
            on_progress=shown.progress,
            on_detach=shown.detached,
        )
        if not detach and service is None:
            shown.ended(job)
    if service is not None and wait:
        watch.follow(job, service, as_json=as_json)
