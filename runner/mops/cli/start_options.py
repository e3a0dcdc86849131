"""The options that commands share which start jobs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mops.cli import terminal
from mops.cli.job_progress import JobDisplay
from mops.cli.options import (
    SERVICE,
    DetachOption,
    EnvOption,
    JsonOption,
    PriorityOption,
    PythonOption,
    RunLocallyOption,
    StorageOption,
)
from mops.errors import UsageError
from mops.jobs.launch import RunOptions
from mops.jobs.location import locate
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.job_options import PodOptions
from mops.worker.environment import read_variables

NameOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name the new job")]
ProjectOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Use the model in this folder")]
TrustModelOption = Annotated[
    bool, typer.Option("--trust-model", help="Accept changes of files that may belong to the model")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Follow the job until it ends", rich_help_panel=SERVICE)]
QueueOption = Annotated[
    str | None, typer.Option(metavar="QUEUE", help="Start the runner through this Kueue queue", rich_help_panel=SERVICE)
]
PriorityClassOption = Annotated[
    str | None, typer.Option(metavar="CLASS", help="Set the PriorityClass of the runner's pod", rich_help_panel=SERVICE)
]
DeadlineOption = Annotated[
    int | None,
    typer.Option(metavar="SECONDS", min=1, help="Stop the job after this many seconds", rich_help_panel=SERVICE),
]
KeepOption = Annotated[
    int | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Delete the Kubernetes Job this many seconds after its end",
        rich_help_panel=SERVICE,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Set the memory of the runner's pod, like 2Gi", rich_help_panel=SERVICE),
]
DedicatedOption = Annotated[
    bool | None,
    typer.Option(
        "--dedicated/--shared",
        help="Use a dedicated Dask cluster, or the service's shared one",
        rich_help_panel=SERVICE,
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN:MAX",
        help="Set the number of workers of a dedicated cluster",
        rich_help_panel=SERVICE,
    ),
]


@dataclass(frozen=True)
class RunnerOptions:
    """The command line's options for the runner of one or several jobs."""

    priority: PriorityOption = None
    storage: StorageOption = None
    env: EnvOption = None
    python: PythonOption = None
    local: RunLocallyOption = False
    queue: QueueOption = None
    priority_class: PriorityClassOption = None
    deadline: DeadlineOption = None
    keep: KeepOption = None
    memory: MemoryOption = None
    dedicated: DedicatedOption = None
    workers: WorkersOption = None
    as_json: JsonOption = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return "--local" if self.local else None

    @property
    def pod(self) -> PodOptions:
        """The options of the runner's pod."""
        return PodOptions(
            queue=self.queue,
            priority_class=self.priority_class,
            deadline_s=self.deadline,
            keep_s=self.keep,
            memory=self.memory,
            dedicated=self.dedicated,
            workers=self.workers,
        )

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of the environment, checked."""
        return Settings.from_environment(priority=self.priority)

    def service(self) -> Service | None:
        """Return the service that runs the job, as its chart describes it now; None: this machine runs it.

        Raises
        ------
        UsageError
            The command line has an option that only a service has, and this machine runs the job.
        ServiceError
            The service is out of reach, or no longer exists.
        """
        location = locate(local=self.local_by is not None)
        if location.local_by == "MODELOPS_SCHEDULER":
            terminal.say("note: MODELOPS_SCHEDULER is set: this machine runs the job, not the connected service")
        if location.profile is not None:
            return Service.current(location.profile)
        names = ", ".join(self.pod.of_a_service)
        if names:
            local_by = self.local_by or location.local_by
            verb = "unset" if local_by == "MODELOPS_SCHEDULER" else "leave out"
            raise UsageError(
                f"only a cluster service has {names}, and this machine runs the job",
                where="the command line",
                hint=f"{verb} {local_by}" if local_by else "connect to a service: mops connect",
            )
        return None


@dataclass(frozen=True)
class StartOptions(RunnerOptions):
    """The command line's options for the start of one job."""

    detach: DetachOption = False
    wait: WaitOption = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return super().local_by or ("--detach" if self.detach else None)

    def run_options(self, service: Service | None, display: JobDisplay) -> RunOptions:
        """Return the options for :mod:`mops.jobs.submit`."""
        if self.detach and self.wait:
            hint = "leave out one of them"
            raise UsageError("--detach returns at once, and --wait at the end", where="the command line", hint=hint)
        return RunOptions(
            env=read_variables(self.env or []),
            python=self.python,
            pod=self.pod,
            settings=self.settings,
            wait=not self.detach and service is None,
            local=self.local_by is not None,
            service=service,
            on_progress=display.progress,
            on_detach=display.detached,
        )


def _with_options(kind: type[RunnerOptions], command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a class, which it takes as its argument ``start``."""
    own = [value for name, value in inspect.signature(command, eval_str=True).parameters.items() if name != "start"]
    shared = inspect.signature(kind, eval_str=True).parameters

    @functools.wraps(command)
    def run(**values: Any) -> None:
        start = kind(**{name: values.pop(name) for name in shared})
        command(**values, start=start)

    parameters = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in (*own, *shared.values())]
    # Typer reads these.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {value.name: value.annotation for value in parameters}
    return run


with_start_options = functools.partial(_with_options, StartOptions)
with_runner_options = functools.partial(_with_options, RunnerOptions)
