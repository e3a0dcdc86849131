"""How a job is started: the options that submit, resume and retry share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mops.cli import terminal
from mops.cli.job_progress import JobDisplay
from mops.cli.options import (
    DetachOption,
    EnvOption,
    JsonOption,
    LocalOption,
    PriorityOption,
    PythonOption,
    StorageOption,
)
from mops.errors import UsageError
from mops.jobs.launch import RunOptions
from mops.jobs.location import locate
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.job_options import PodOptions
from mops.worker.environment.variables import read_variables

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


@dataclass(frozen=True)
class StartOptions:
    """What was given on the command line."""

    detach: DetachOption = False
    priority: PriorityOption = None
    storage: StorageOption = None
    env: EnvOption = None
    python: PythonOption = None
    local: LocalOption = False
    wait: WaitOption = False
    queue: QueueOption = None
    priority_class: PriorityClassOption = None
    deadline: DeadlineOption = None
    keep: KeepOption = None
    memory: MemoryOption = None
    dedicated: DedicatedOption = None
    workers: WorkersOption = None
    as_json: JsonOption = False

    @property
    def pod(self) -> PodOptions:
        """The options of a runner's pod."""
        return PodOptions(
            queue=self.queue,
            priority_class=self.priority_class,
            deadline_s=self.deadline,
            keep_s=self.keep,
            memory=self.memory,
            dedicated=self.dedicated,
            workers=self.workers,
        )

    def service(self) -> Service | None:
        """Return the service that the job runs on, as :func:`service_of`; None: this machine."""
        return service_of(local=self.local, detach=self.detach, pod=self.pod)

    def run_options(self, service: Service | None, display: JobDisplay) -> RunOptions:
        """Return what :mod:`mops.jobs.submit`'s functions share; the environment's settings are read and checked."""
        return RunOptions(
            env=read_variables(self.env or []),
            python=self.python,
            pod=self.pod,
            settings=Settings.from_environment(priority=self.priority),
            detach=self.detach,
            local=self.local,
            service=service,
            on_progress=display.progress,
            on_detach=display.detached,
        )


def with_start_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :class:`StartOptions`, which it takes as its argument ``start``."""
    own = [value for name, value in inspect.signature(command, eval_str=True).parameters.items() if name != "start"]
    shared = inspect.signature(StartOptions, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        start = StartOptions(**{name: given.pop(name) for name in shared})
        command(**given, start=start)

    parameters = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in (*own, *shared.values())]
    # What typer reads of a function.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {value.name: value.annotation for value in parameters}
    return run


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
    if location.local_by == "MODELOPS_SCHEDULER":
        terminal.say("note: MODELOPS_SCHEDULER is set, so that this machine runs the job and not the connected service")
    if location.profile is not None:
        return Service.current(location.profile)
    refuse_here(pod, "--detach" if detach and not local else "--local" if local else location.local_by)
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
