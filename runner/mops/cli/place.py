"""Where a job is to run: the options of submit, resume and retry that say so."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mops.cli import terminal
from mops.errors import UsageError
from mops.job import Job
from mops.profile import load
from mops.service import Service
from mops.settings import Settings
from mops.storage.files import Files

LocalOption = Annotated[bool, typer.Option("--local", help="Run on this machine, also if a service is connected.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="On a service: follow the job until it ends.")]
QueueOption = Annotated[str | None, typer.Option(metavar="QUEUE", help="On a service: the Kueue queue to wait in.")]
PriorityClassOption = Annotated[str | None, typer.Option(metavar="CLASS", help="On a service: its pod's priority.")]
DeadlineOption = Annotated[
    int | None, typer.Option(metavar="SECONDS", min=1, help="On a service: the most that all its attempts may take.")
]
KeepOption = Annotated[
    int | None,
    typer.Option(metavar="SECONDS", min=0, help="On a service: how long its Kubernetes Job stays when over."),
]
MemoryOption = Annotated[
    str | None, typer.Option(metavar="BYTES", help="On a service: memory of its runner's pod, like 2Gi.")
]


def service_of(*, local: bool, detach: bool, **given: Any) -> Service | None:
    """Return the service that the job runs on; None: this machine.

    Parameters
    ----------
    given
        Options that only a service has; None: not given.

    Raises
    ------
    UsageError
        Such an option, where the job runs on this machine.
    ServiceError
        The service is out of reach.
    """
    profile, options = None if local or detach else load(), {name: v for name, v in given.items() if v is not None}
    if profile is not None and Settings.from_environment().scheduler is not None:
        terminal.say("note: MODELOPS_SCHEDULER is set, so that this machine runs the job and not the connected service")
        profile = None
    if profile is None:
        if options:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            raise UsageError(
                f"this machine is to run the job, and has no {names}",
                where="the command line",
                hint="leave it out, or connect to a cluster service: mops connect",
            )
        return None
    return Service.of(profile, **_fields(profile.service.runner.resources, options))


def _fields(resources: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as fields of :class:`mops.profile.RunnerPod`."""
    fields = {
        "queue": options.get("queue"),
        "priority_class": options.get("priority_class"),
        "deadline_s": options.get("deadline"),
        "keep_s": options.get("keep"),
    }
    if memory := options.get("memory"):
        both = {part: {**resources.get(part, {}), "memory": memory} for part in ("requests", "limits")}
        fields["resources"] = {**resources, **both}
    return fields


def service_of_job(job: Job) -> Service | None:
    """Return the connected service if it may run this job: it has the job's storage."""
    return service_of_storage(job.files)


def service_of_storage(files: Files) -> Service | None:
    """Return the connected service if its results go to this storage."""
    profile = load()
    if profile is None or profile.service.storage.rstrip("/") != files.url:
        return None
    return Service.of(profile)
