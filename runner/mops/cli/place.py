"""Where a job is to run: the options of submit, resume and retry that say so."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from mops.cli import terminal
from mops.errors import UsageError
from mops.k8s.dedicated import Size
from mops.location import locate
from mops.profile import load, path
from mops.service import Service
from mops.storage.files import Files

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

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_FORMS = {
    "memory": (re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?"), "write bytes as Kubernetes does, like 2Gi or 500Mi"),
    "queue": (_NAME, "write the name of a LocalQueue of Kueue: kubectl get localqueues"),
    "priority_class": (_NAME, "write the name of a PriorityClass: kubectl get priorityclasses"),
}
"""Options that Kubernetes reads: how they are written, and where to look."""


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
    options = {name: value for name, value in given.items() if value is not None}
    location = locate(local=local or detach)
    if location.passed_by == "MODELOPS_SCHEDULER":
        terminal.say("note: MODELOPS_SCHEDULER is set, so that this machine runs the job and not the connected service")
    if location.profile is not None:
        return Service.of(location.profile, **_fields(location.profile.service.runner.resources, options))
    if options:
        raise _not_here(options, "--detach" if detach and not local else "--local" if local else location.passed_by)
    return None


def give_own_cluster(service: Service | None, *, dedicated: bool | None, workers: str | None) -> None:
    """Let the jobs of a service have a Dask cluster of their own, if these options or the profile say so.

    Raises
    ------
    UsageError
        They do not fit together, or the job runs on this machine.
    """
    if service is None:
        if given := {name: value for name, value in {"dedicated": dedicated, "workers": workers}.items() if value}:
            raise _not_here(given, "")
        return
    if dedicated is None:
        dedicated = service.profile.dedicated
    if workers and not dedicated:
        raise UsageError(
            "--workers is for a Dask cluster of the job's own",
            where="the command line",
            hint="add --dedicated; the workers that all share are the operator's to scale",
        )
    if dedicated:
        service.own_cluster = Size.parse(workers or str(service.profile.service.dedicated.workers))


def _not_here(options: dict[str, Any], kept_here: str) -> UsageError:
    """Return the error for options that this machine does not have."""
    names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
    service = (
        f"{kept_here} to run on a connected service" if kept_here else "connect to a cluster service: mops connect"
    )
    return UsageError(
        f"this machine is to run the job, and has no {names}",
        where="the command line",
        hint=f"leave out {names}, or {service}",
    )


def _fields(resources: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as fields of :class:`mops.profile.RunnerPod`.

    Raises
    ------
    UsageError
        Kubernetes would refuse one of them, when the job is in the storage already.
    """
    for name, (form, right) in _FORMS.items():
        if name in options and not form.fullmatch(options[name]):
            raise UsageError(
                f"{options[name]!r} is not valid for --{name.replace('_', '-')}", where="the command line", hint=right
            )
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


def service_with(files: Files, *, local: bool) -> Service | None:
    """Return the service that may know of runners of the jobs in this storage; None: there is none."""
    location = locate(local=local)
    if location.profile is None or not location.seen_from_pods(files.url):
        return None
    return Service.of(location.profile)


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
