"""``mops jobs resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from mops.cli import jobs_watch, place, running
from mops.cli.options import DetachOption, JobArgument, JsonOption, LocalOption, PriorityOption, StorageOption
from mops.job import open_job
from mops.launch import resume as resume_job
from mops.settings import Settings


def resume(
    job: JobArgument,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also if a runner is at it: it is superseded and stops.")
    ] = False,
    detach: DetachOption = False,
    priority: PriorityOption = None,
    storage: StorageOption = None,
    local: LocalOption = False,
    wait: place.WaitOption = False,
    dedicated: place.DedicatedOption = None,
    workers: place.WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a job that was stopped or killed.

    What is committed stays, the rest runs. Settings are read afresh; bundle, study and seeds are the job's.
    """
    found = open_job(job, storage, local=local or detach)
    before = found.status().attempt
    service = place.service_of(local=local, detach=detach, dedicated=dedicated or None, workers=workers)
    place.give_own_cluster(service, dedicated=dedicated, workers=workers)
    with running.shown(as_json=as_json) as shown:
        resume_job(
            found,
            take_over=take_over,
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
        jobs_watch.follow(found, service, as_json=as_json, after=before)
