"""How a job starts: its variables, its interpreter, its limits, and its runner's pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import not_
from typing import Annotated, Any

from pydantic import Field, WrapSerializer


@dataclass(frozen=True)
class PodOptions:
    """Options of a runner's pod, in place of the values of the service's chart; None: the chart's value."""

    queue: str | None = None  # a LocalQueue of Kueue
    priority_class: str | None = None
    deadline_s: int | None = None  # the most that all pods of one Kubernetes Job may take
    keep_s: int | None = None  # how long Kubernetes keeps the finished Job
    memory: str | None = None  # request and limit, in Kubernetes' notation of bytes
    dedicated: bool | None = None  # whether the job runs on a dedicated cluster; None: the choice at `mops connect`
    workers: str | None = None  # the size of that cluster: N or MIN:MAX

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not None, by field."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def of_a_service(self) -> list[str]:
        """The command line's names of the options that only a service can carry out."""
        return [option(name) for name, value in self.given.items() if value is not False]

    def overridden(self, given: PodOptions) -> PodOptions:
        """Return these options with those of a later command in their place."""
        kept = replace(self, workers=None) if given.dedicated is False else self
        return replace(kept, **given.given)


def option(name: str) -> str:
    """Return the command line's name for a field of :class:`PodOptions`."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _without_none(pod: PodOptions, serialize: Callable[[PodOptions], dict[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in serialize(pod).items() if value is not None}


@dataclass(frozen=True)
class JobOptions:
    """The options that mops stores with a job besides its study."""

    # Variables for the model; None: the value comes from the runner's environment, and mops does not store it.
    env: Mapping[str, str | None]
    python: str | None  # the interpreter that runs simulations, an absolute path; None: the worker's own
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
        return {**variables, **python, **{option(name): str(value) for name, value in self.pod.given.items()}}


NO_OPTIONS = JobOptions({}, None, PodOptions())
