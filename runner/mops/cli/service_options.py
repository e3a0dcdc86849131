"""Where a job is to run: the options of submit, resume and retry that say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from mops.cli import terminal
from mops.errors import UsageError
from mops.jobs.location import locate
from mops.service.profile import load, path
from mops.service.service import Service
from mops.storage.files import Files
from mops.storage.job_options import PodOptions

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
DedicatedOption = Annotated[
    bool | None,
    typer.Option(
        "--dedicated/--shared",
        help="On a service: on a Dask cluster of its own, or on the one that all share; else as 'mops connect' says.",
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN:MAX", help="On a Dask cluster of its own: how many workers; between two numbers, as work asks."
    ),
]


def service_of(*, local: bool, detach: bool, pod: PodOptions) -> Service | None:
    """Return the service that a job runs on, as its chart describes it now; None: this machine.

    Parameters
    ----------
    pod
        Options that only a service has.

    Raises
    ------
    UsageError
        Such an option, where the job runs on this machine.
    ServiceError
        The service is out of reach, or gone.
    """
    location = locate(local=local or detach)
    if location.passed_by == "MODELOPS_SCHEDULER":
        terminal.say("note: MODELOPS_SCHEDULER is set, so that this machine runs the job and not the connected service")
    if location.profile is not None:
        return Service.current(location.profile)
    refuse_here(pod, "--detach" if detach and not local else "--local" if local else location.passed_by)
    return None


def refuse_here(pod: PodOptions, kept_here: str) -> None:
    """Refuse options that this machine does not have.

    Parameters
    ----------
    kept_here
        What on the command line keeps the job on this machine; empty: no service is connected.

    Raises
    ------
    UsageError
        There are such options.
    """
    names = ", ".join(pod.of_a_service)
    if not names:
        return
    service = (
        f"{kept_here} to run on a connected service" if kept_here else "connect to a cluster service: mops connect"
    )
    raise UsageError(
        f"this machine is to run the job, and has no {names}",
        where="the command line",
        hint=f"leave out {names}, or {service}",
    )


def service_with(files: Files, *, local: bool) -> Service | None:
    """Return the service that may know of runners of the jobs in this storage; None: there is none."""
    location = locate(local=local)
    if location.profile is None or not location.seen_from_pods(files.url):
        return None
    return replace(Service.of(location.profile), results=files.url)


def connected() -> Service:
    """Return the connected service.

    Raises
    ------
    UsageError
        There is none.
    ServiceError
        It is out of reach.
    """
    profile = load()
    if profile is None:
        raise UsageError(
            "no cluster service is connected", where=str(path()), hint="connect to one: mops connect --namespace NAME"
        )
    return Service.of(profile)
