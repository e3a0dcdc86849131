"""The options of commands that start jobs: typer's parameters, made from the fields of dataclasses of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from mops.cli import terminal
from mops.cli.job_progress import JobDisplay
from mops.cli.options import read_weights
from mops.errors import UsageError
from mops.jobs.launch import RunOptions
from mops.jobs.location import Location, locate
from mops.options import ADVANCED, COMMON, SERVICE, Option, flag_of, options_of
from mops.settings import Settings
from mops.storage.job_options import NO_OPTIONS, JobOptions
from mops.worker.environment import read_variables

NameOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name the new job")]
ProjectOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Use the model in this folder")]
TrustModelOption = Annotated[
    bool, typer.Option("--trust-model", help="Accept changes of files that may belong to the model")
]

_READERS: Mapping[str, Callable[[list[str]], Any]] = {
    "env": read_variables,
    "weights": read_weights,
    "objectives": tuple,
}
"""How a field gets its value from the texts of an option that may be repeated."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunnerArguments:
    """The command line's options for the runner of one or several jobs."""

    priority: Annotated[
        Literal["low", "normal", "high"] | None,
        Option("Set the job's share of a cluster that other jobs also use", panel=ADVANCED),
    ] = None
    storage: Annotated[str | None, Option("Use this folder or URL for results", "FOLDER|URL", COMMON)] = None
    job: JobOptions = NO_OPTIONS  # without its limits, which are settings
    local: Annotated[bool, Option("Run on this machine even when connected to a service", panel=COMMON)] = False
    as_json: Annotated[bool, Option("Print JSON", panel=COMMON, flags="--json")] = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return "--local" if self.local else None

    @functools.cached_property
    def location(self) -> Location:
        """Where the job runs, with the service as its chart describes it now.

        Raises
        ------
        UsageError
            The command line has an option that only a service has, and this machine runs the job.
        ServiceError
            The service is out of reach, or no longer exists.
        """
        settings = Settings.from_environment(priority=self.priority)
        location = locate(self.storage, local=self.local_by is not None, settings=settings)
        if location.local_by == "MODELOPS_SCHEDULER":
            terminal.say("note: MODELOPS_SCHEDULER is set: this machine runs the job, not the connected service")
        if location.profile is None and (names := ", ".join(self.job.pod.of_a_service)):
            local_by = self.local_by or location.local_by
            verb = "unset" if local_by == "MODELOPS_SCHEDULER" else "leave out"
            raise UsageError(
                f"only a cluster service has {names}, and this machine runs the job",
                where="the command line",
                hint=f"{verb} {local_by}" if local_by else "connect to a service: mops connect",
            )
        return location.with_service()


@dataclass(frozen=True)
class StartOptions(RunnerArguments):
    """The command line's options for the start of one job."""

    detach: Annotated[bool, Option("Run in the background, and keep running without a terminal", panel=COMMON)] = False
    wait: Annotated[bool, Option("Follow the job until it ends", panel=SERVICE)] = False

    @property
    def local_by(self) -> str | None:
        """The option of this command that makes this machine run the job; None: there is none."""
        return super().local_by or ("--detach" if self.detach else None)

    def run_options(self, display: JobDisplay) -> RunOptions:
        """Return the options for :mod:`mops.jobs.submit`."""
        if self.detach and self.wait:
            hint = "leave out one of them"
            raise UsageError("--detach returns at once, and --wait at the end", where="the command line", hint=hint)
        return RunOptions(
            env=self.job.env,
            python=self.job.python,
            pod=self.job.pod,
            location=self.location,
            wait=not self.detach and self.location.service is None,
            on_progress=display.progress,
            on_detach=display.detached,
        )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter of a command that is a dataclass of options into the options of its fields."""
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        if name in kinds:
            parameters += _parameters_of(kinds[name])
        else:
            parameters.append(own.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given: dict[str, Any] = {name: _taken_from(values, kind) for name, kind in kinds.items()}
        command(**values, **given)

    # Typer reads these.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {value.name: value.annotation for value in parameters}
    return run


def _parameters_of(kind: type) -> Iterator[inspect.Parameter]:
    """Yield typer's parameters for the options of a dataclass."""
    for name, its, default, option in options_of(kind):
        if option is None:
            yield from _parameters_of(its)
            continue
        shown = typer.Option(
            option.flags or flag_of(name),
            metavar=option.metavar,
            help=option.help,
            min=option.least,
            rich_help_panel=option.panel,
        )
        if name in _READERS:
            its, default = list[str] | None, None
        elif default is MISSING:
            default = None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[its, shown])


def _taken_from(values: dict[str, Any], kind: type[_T]) -> _T:
    """Return a dataclass of options from the values that typer gave; removes these."""
    found: dict[str, Any] = {}
    for name, its, _, option in options_of(kind):
        if option is None:
            found[name] = _taken_from(values, its)
        elif name in _READERS:
            found[name] = _READERS[name](values.pop(name) or [])
        else:
            found[name] = values.pop(name)
    return kind(**found)
