"""The options of a calibration, and the table of its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mops.calibration.rounds import check_labels, comparable
from mops.errors import UsageError, known_name
from mops.jobs.launch import ModelParts, RunnerOptions
from mops.options import ADVANCED, Option, checked
from mops.storage.calibration_records import Round, Scoring
from mops.study.sampling.draw import SETS_LIMIT


class Method(StrEnum):
    """How mops chooses the sets of the rounds."""

    IMPORTANCE = "importance"
    ABC = "abc"
    TPE = "tpe"
    CMAES = "cmaes"
    GP = "gp"

    @property
    def gives_posterior(self) -> bool:
        """Whether the method weighs sets; the others are optimisers."""
        return METHODS[self].gives_posterior


@dataclass(frozen=True)
class MethodTraits:
    """What differs between methods, besides the sets that they choose."""

    n: int = 32  # the number of sets in a round, if the caller gives none
    ess: float = 1.0  # the smallest effective sample size for a posterior, if the caller gives none
    gives_posterior: bool = False
    has_objectives: bool = False  # whether a caller may name several losses as objectives


METHODS = {
    Method.IMPORTANCE: MethodTraits(256, 200.0, gives_posterior=True),
    Method.ABC: MethodTraits(256, 50.0, gives_posterior=True),
    Method.TPE: MethodTraits(has_objectives=True),
    Method.CMAES: MethodTraits(),
    Method.GP: MethodTraits(has_objectives=True),
}


@dataclass(frozen=True)
class Plan:
    """The options of a call that may change from call to call, because they change no simulation."""

    method: Annotated[Method, Option("Choose the sets with this method")] = Method.IMPORTANCE
    n: Annotated[
        int | None,
        Option(
            "Run this many parameter sets in each round (256; optimisers 32)",
            "N",
            flags="-n",
            least=1,
            most=SETS_LIMIT,
        ),
    ] = None
    rounds: Annotated[int, Option("Run at most this many rounds in all", "N", least=1)] = 8
    ess: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False),
        Option("Want at least this effective sample size (200; abc 50)", "N"),
    ] = None
    temperature: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        Option("Divide the total loss by T: likelihood = exp(-loss/T)", "T"),
    ] = 1
    weights: Annotated[
        Mapping[str, Annotated[float, Field(allow_inf_nan=False)]] | None,
        Option("Set the weight of a loss, leave out the others; repeatable", "LOSS=W", flags="--weight"),
    ] = None
    objectives: Annotated[
        tuple[str, ...],
        Option("Minimise this loss as an objective by itself; repeatable", "LOSS", flags="--objective"),
    ] = ()
    seed: Annotated[int, Option("Set the seed; the same seed gives the same sets", "N", least=0)] = 0
    take_over: Annotated[bool, Option("Replace a runner that runs the round's job", panel=ADVANCED)] = False
    trust_data: Annotated[bool, Option("Accept changed data files: losses still compare")] = False

    @property
    def n_sets(self) -> int:
        """The number of sets in each new round."""
        return self.n or METHODS[self.method].n

    @property
    def scoring(self) -> Scoring:
        """How this call weighs the sets, for its record."""
        ess = METHODS[self.method].ess if self.ess is None else self.ess
        return Scoring(dict(self.weights) if self.weights else None, self.temperature, ess, self.objectives)

    def comparable(self, history: Sequence[Round]) -> list[Round]:
        """Return the rounds with each set as failed that lacks a loss that counts."""
        # A wrong name is a UsageError: it must not look like a failure of all sets.
        check_labels(self.weights or {}, history, "the weights")
        check_labels(self.objectives, history, "the objectives")
        return comparable(history, self.scoring.weights)

    def check(self) -> None:
        """Raise UsageError if the method does not have the objectives."""
        if self.objectives and not METHODS[self.method].has_objectives:
            with_objectives = (method for method, traits in METHODS.items() if traits.has_objectives)
            raise UsageError(
                f"the method '{self.method}' has one objective, the total loss",
                where="the objectives",
                hint=f"use the method {', '.join(with_objectives)}; or weigh the losses in their sum",
            )
        if self.objectives and self.weights:
            raise UsageError(
                "objectives have no weights",
                where="the weights",
                hint="leave the weights out, or use the method tpe with the weighted sum as its only objective",
            )
        if len(set(self.objectives)) < len(self.objectives):
            raise UsageError("a loss is named twice", where="the objectives", hint="name each loss once")


class CalibrateOptions(RunnerOptions, ModelParts, total=False):
    """Keyword arguments of calibrate: for the jobs of the rounds, the model, and the fields of ``Plan``."""

    method: Method | str
    n: int | None
    rounds: int
    ess: float | None
    temperature: float
    weights: Mapping[str, float] | None
    objectives: Sequence[str] | None
    seed: int
    take_over: bool
    trust_data: bool


def plan_of(options: CalibrateOptions) -> Plan:
    """Return the checked options with their defaults; the run and the model of the options do not count."""
    method = options.get("method") or Method.IMPORTANCE
    if method not in tuple(Method):
        what = f"the method {method!r} is unknown"
        raise UsageError(what, where="the method", hint=known_name(str(method), Method))
    names = {field.name for field in fields(Plan)}
    others = CalibrateOptions.__annotations__.keys() - names
    plan = checked(Plan, {name: value for name, value in options.items() if name not in others})
    plan.check()
    return plan
