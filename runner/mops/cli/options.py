"""The options that several commands share, and how options become typer's parameters.

An option is declared once, with ``mops.options.Option``: in the signature of a command, as an alias below, or as a
field of a dataclass of options, which a command gets as one argument.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from mops.errors import UsageError
from mops.options import COMMON, SERVICE, Option, flag_of, option_in, options_of

if TYPE_CHECKING:
    from mops.jobs.job import Job
    from mops.jobs.location import Location
    from mops.jobs.status import JobState

STUDY = "Study file (.json)"
AROUND = "Near the best sets of a job"
OLD = "Old jobs, instead of JOB"

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name")]
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, like study.json")]
StorageOption = Annotated[str | None, Option("Use this folder or URL for results", "FOLDER|URL", COMMON)]
LocalOption = Annotated[bool, Option("Use this machine's storage, not the connected service's", panel=COMMON)]
ForceOption = Annotated[
    bool, Option("Also change jobs that other persons have submitted, if you may", panel=SERVICE, flags="--force")
]
JsonOption = Annotated[bool, Option("Print JSON", panel=COMMON, flags="--json")]
WeightOption = Annotated[
    list[str] | None, Option("Set the weight of a loss, leave out the others; repeatable", "LOSS=W", flags="--weight")
]
OneTargetOption = Annotated[str | None, Option("Rank by the losses of this target only", "TARGET", flags="--target")]
NameOption = Annotated[str | None, Option("Name the new job", "NAME")]
ProjectOption = Annotated[Path | None, Option("Use the model in this folder", "FOLDER")]
TrustModelOption = Annotated[bool, Option("Accept changes of files that may belong to the model")]


@dataclass(frozen=True)
class Place:
    """The command line's options for where a command finds jobs. Methods import, so that a help needs no storage."""

    storage: StorageOption = None
    local: LocalOption = False

    def locate(self) -> Location:
        """Return where the command works."""
        from mops.jobs.location import locate  # noqa: PLC0415 - see the class

        return locate(self.storage, local=self.local)

    def open(self, job: str) -> Job:
        """Open a job with its results."""
        from mops.jobs.job import open_job  # noqa: PLC0415 - Arrow: 0.3 s, and many commands need none

        return open_job(job, self.storage, local=self.local)

    def state_of(self, job: str) -> JobState:
        """Open a job without its results."""
        from mops.jobs.status import JobState, storage_of  # noqa: PLC0415 - see the class

        return JobState(storage_of(job, self.locate()), job, local=self.local)


HERE = Place()


@dataclass(frozen=True)
class ModelArguments:
    """The command line's options for a model with its targets, in place of those of a study."""

    model: Annotated[str | None, Option("Set the model", "MODULE:FUNCTION", STUDY)] = None
    targets: Annotated[
        list[str] | None, Option("Add a target; repeatable", "MODULE:FUNCTION", STUDY, flags="--target")
    ] = None
    replicates: Annotated[
        int | None, Option("Set the number of replicates of each parameter set", "N", STUDY, least=1)
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are given, by name."""
        return {name: value for name, value in vars(self).items() if value not in (None, [])}


def read_weights(given: list[str] | None) -> dict[str, float] | None:
    """Return the weights of losses from texts like ``peak=2``; None: no text. UsageError: one has another form."""
    weights: dict[str, float] = {}
    for text in given or []:
        label, _, number = text.rpartition("=")
        try:
            weights[label] = float(number)
        except ValueError:
            label = ""
        if not label:
            raise UsageError(f"{text!r} is not a weight", where="--weight", hint="write it like --weight peak=2")
    return weights or None


def read_age(text: str) -> float:
    """Return the seconds of an age like ``30d`` or ``12h``; UsageError: the text is not an age."""
    found = re.fullmatch(r"([1-9]\d{0,5})([dh])", text)
    if found is None:
        days = text if text.isdecimal() else "30"
        hint = f"write a number of days or hours: --older-than {days}d, or --older-than {days}h"
        raise UsageError(f"{text!r} is not an age", where="--older-than", hint=hint)
    return int(found[1]) * (86400.0 if found[2] == "d" else 3600.0)


def read_states(given: list[str] | None) -> list[str]:
    """Return the states of jobs from texts like ``running,interrupted``."""
    return [name.strip() for names in given or [] for name in names.split(",")]


def _read_variables(given: list[str]) -> Any:
    from mops.worker.environment import read_variables  # noqa: PLC0415 - only commands that run a model need it

    return read_variables(given)


_READERS: Mapping[str, Callable[[list[str]], Any]] = {
    "env": _read_variables,
    "weights": read_weights,
    "objectives": tuple,
}
"""How a field gets its value from the texts of an option that may be repeated."""

_T = TypeVar("_T")


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with typer's parameters: for its options, and for the fields of its dataclasses of options."""
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        if name in kinds:
            parameters += _parameters_of(kinds[name])
        else:
            its, option = option_in(hints[name])
            shown = Annotated[its, _shown(name, option)] if option else hints[name]
            parameters.append(own.replace(annotation=shown, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given: dict[str, Any] = {name: _taken_from(values, kind) for name, kind in kinds.items()}
        command(**values, **given)

    # Typer reads these.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {value.name: value.annotation for value in parameters}
    return run


def _shown(name: str, option: Option) -> Any:
    return typer.Option(
        option.flags or flag_of(name),
        metavar=option.metavar,
        help=option.help,
        min=option.least,
        max=option.most,
        rich_help_panel=option.panel,
    )


def _parameters_of(kind: type) -> Iterator[inspect.Parameter]:
    """Yield typer's parameters for the options of a dataclass."""
    for name, its, default, option in options_of(kind):
        if option is None:
            yield from _parameters_of(its)
            continue
        if name in _READERS:
            its, default = list[str] | None, None
        elif default is MISSING:
            default = None
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[its, _shown(name, option)]
        )


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
