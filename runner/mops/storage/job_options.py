"""How a job starts: its variables, its interpreter, its limits, and its runner's pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import not_
from typing import Annotated, Any

from pydantic import Field, WrapSerializer

from mops.options import ADVANCED, COMMON, SERVICE, Option, flag_of


@dataclass(frozen=True)
class PodOptions:
    """Options of a runner's pod, in place of the values of the service's chart; None: the chart's value."""

    queue: Annotated[
        str | None, Option("Start runner and dedicated workers through this Kueue queue", "QUEUE", SERVICE)
    ] = None
    priority_class: Annotated[str | None, Option("Set the PriorityClass of the runner's pod", "CLASS", SERVICE)] = None
    deadline_s: Annotated[int | None, Option("Stop the job after this many seconds", "SECONDS", SERVICE, least=1)] = (
        None
    )
    keep_s: Annotated[
        int | None, Option("Delete the Kubernetes Job this many seconds after its end", "SECONDS", SERVICE, least=0)
    ] = None
    # Request and limit, in Kubernetes' notation of bytes.
    memory: Annotated[str | None, Option("Set the memory of the runner's pod, like 2Gi", "BYTES", SERVICE)] = None
    # None: the choice at `mops connect`.
    dedicated: Annotated[
        bool | None,
        Option(
            "Use a dedicated Dask cluster, or the service's shared one", panel=SERVICE, flags="--dedicated/--shared"
        ),
    ] = None
    workers: Annotated[str | None, Option("Set the number of workers of a dedicated cluster", "N|MIN:MAX", SERVICE)] = (
        None
    )
    pool: Annotated[str | None, Option("Run simulations on this pool of shared workers", "NAME", SERVICE)] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not None, by field."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def of_a_service(self) -> list[str]:
        """The command line's names of the options that only a service can carry out."""
        return [flag_of(name) for name, value in self.given.items() if value is not False]

    def overridden(self, given: PodOptions) -> PodOptions:
        """Return these options with those of a later command in their place."""
        kept = replace(self, workers=None) if given.dedicated is False else self
        if given.dedicated or given.pool == "":
            kept, given = replace(kept, pool=None), replace(given, pool=given.pool or None)
        return replace(kept, **given.given)


def _without_none(pod: PodOptions, serialize: Callable[[PodOptions], dict[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in serialize(pod).items() if value is not None}


@dataclass(frozen=True)
class ProcessOptions:
    """The environment of the processes that run simulations."""

    # Variables for the model; None: the value comes from the runner's environment, and mops does not store it.
    env: Annotated[Mapping[str, str | None], Option("Set a variable for the model; repeatable", "NAME[=VALUE]", COMMON)]
    # An absolute path; None: the worker's own.
    python: Annotated[str | None, Option("Run simulations with this Python interpreter", "PATH", ADVANCED)]


@dataclass(frozen=True)
class JobOptions(ProcessOptions):
    """The options that mops stores with a job besides its study."""

    pod: Annotated[PodOptions, WrapSerializer(_without_none)]
    # The limits of simulations that a person has set: Settings.limits.
    limits: Annotated[Mapping[str, float | int | str | None], Field(exclude_if=not_)] = field(default_factory=dict)

    def overridden(self, given: JobOptions) -> JobOptions:
        """Return these options with those of a later command in their place; ``env`` is merged by variable."""
        pod = self.pod.overridden(given.pod)
        # The limits stay: Settings.over merges them.
        return JobOptions({**self.env, **given.env}, given.python or self.python, pod, self.limits)

    def changes_since(self, before: JobOptions) -> list[str]:
        """Return a line for each option that differs. Limits are settings, so other lines name them."""
        now, then = self._shown(), before._shown()
        names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
        return [f"{name}: {then.get(name, 'unset')} before, {now.get(name, 'unset')} now" for name in names]

    def _shown(self) -> dict[str, str]:
        variables = {
            f"--env {name}": "this environment's" if value is None else value for name, value in self.env.items()
        }
        python = {"--python": self.python} if self.python else {}
        return {**variables, **python, **{flag_of(name): str(value) for name, value in self.pod.given.items()}}


NO_OPTIONS = JobOptions({}, None, PodOptions())
