"""``mops jobs resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import job_progress, service_options
from mops.cli.jobs import watch
from mops.cli.options import (
    DetachOption,
    EnvOption,
    JobArgument,
    JsonOption,
    LocalOption,
    PriorityOption,
    PythonOption,
    StorageOption,
)
from mops.jobs.job import open_job
from mops.jobs.submit import resume as resume_job
from mops.settings import Settings
from mops.storage.job_options import PodOptions
from mops.worker.environment.variables import read_variables


def resume(
    job: JobArgument,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also if a runner is at it: it is superseded and stops.")
    ] = False,
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
    """Go on with a job that was stopped or killed.

    What is committed stays, the rest runs. Settings are read afresh; bundle, study and seeds are the job's. So are the
    options of submit, unless they are given here: then they are the job's from now on.
    """
    found = open_job(job, storage, local=local or detach)
    before = found.status().attempt
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
        resume_job(
            found,
            take_over=take_over,
            env=read_variables(env or []),
            python=python,
            pod=pod,
            settings=Settings.from_environment(priority=priority),
            detach=detach,
            local=local,
            service=service,
            on_start=shown.resumed,
            on_progress=shown.progress,
            on_detach=shown.detached,
        )
        if not detach and service is None:
            shown.ended(found)
    if service is not None and wait:
        watch.follow(found, service, as_json=as_json, after=before)
