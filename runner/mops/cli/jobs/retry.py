"""``mops jobs retry``."""

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
from mops.jobs.submit import retry as retry_job
from mops.settings import Settings
from mops.storage.job_options import PodOptions
from mops.worker.environment.variables import read_variables


def retry(
    job: JobArgument,
    verdict: Annotated[
        str,
        typer.Option(
            help="Failures to run again: oom, crashed, timeout, error, invalid_output, lost (a,b,...), or all."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="The new job's name; else made from the job's.")] = None,
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
    """Run what failed again, in a new job.

    It takes over all parameter sets without such failures. The job itself, which must be complete, stays as it is.
    Bundle, study and seeds are the job's; settings are read afresh, so that a timeout can be retried with more time.
    The options of submit are the job's, too, unless they are given here.
    """
    found = open_job(job, storage, local=local or detach)
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
        child = retry_job(
            found,
            verdict,
            name=name,
            env=read_variables(env or []),
            python=python,
            pod=pod,
            settings=Settings.from_environment(priority=priority),
            detach=detach,
            local=local,
            service=service,
            on_start=shown.derived,
            on_progress=shown.progress,
            on_detach=shown.detached,
        )
        if not detach and service is None:
            shown.ended(child)
    if service is not None and wait:
        watch.follow(child, service, as_json=as_json)
