"""The options of a calibration, checked, with their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from mops.calibration.rounds import TotalLoss, check_labels, comparable
from mops.errors import UsageError, known_name
from mops.project.functions import Code
from mops.service.service import Service
from mops.settings import Settings
from mops.storage.calibration_records import Round, Scoring
from mops.storage.job_options import PodOptions
from mops.storage.progress_record import Progress
from mops.worker.environment import Variables


class Method(StrEnum):
    """How mops chooses the sets of the rounds."""

    IMPORTANCE = "importance"
    ABC = "abc"
    TPE = "tpe"
    CMAES = "cmaes"
    GP = "gp"
    NSGA2 = "nsga2"

    @property
    def gives_posterior(self) -> bool:
        """Whether the method weighs sets; the others are optimisers."""
        return self in (Method.IMPORTANCE, Method.ABC)


# The smallest effective sample size for a posterior, if the caller gives none.
LEAST_ESS = {Method.IMPORTANCE: 200.0, Method.ABC: 50.0}

# The number of sets in a round with a posterior, and of an optimiser, if the caller gives none.
SETS_TO_WEIGH, SETS_TO_SEARCH = 256, 32

_WITH_OBJECTIVES = (Method.TPE, Method.GP, Method.NSGA2)


class CalibrateOptions(TypedDict, total=False):
    """Keyword arguments of calibrate; None: not given."""

    env: Variables | None
    python: str | Path | None
    pod: PodOptions | None
    settings: Settings | None
    local: bool
    service: Service | None
    on_progress: Callable[[Progress], None]
    model: Code
    targets: Sequence[Code]
    replicates: int
    scenario: str
    outputs: Sequence[str]
    method: Method | str
    n: int
    rounds: int
    seed: int
    weights: Mapping[str, float] | None
    objectives: Sequence[str] | None
    temperature: float
    ess: float
    take_over: bool
    trust_data: bool


@dataclass(frozen=True)
class Plan:
    """The options that may change from call to call, because they change no simulation."""

    method: Method
    n: int  # the number of sets in each new round
    rounds: int  # at most
    seed: int
    loss: TotalLoss
    objectives: tuple[str, ...]  # losses; empty: none was named
    temperature: float
    ess: float  # the smallest effective sample size for a posterior
    take_over: bool  # replace a runner that runs the job of the round
    trust_data: bool  # accept data files that differ from those of the rounds before

    @classmethod
    def of(cls, options: CalibrateOptions) -> Plan:
        """Return the checked options with their defaults."""
        if unknown := sorted(options.keys() - CalibrateOptions.__annotations__.keys()):
            raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        method = given.get("method", Method.IMPORTANCE)
        if method not in tuple(Method):
            what = f"the method {method!r} is unknown"
            raise UsageError(what, where="the method", hint=known_name(str(method), Method))
        method = Method(method)
        plan = cls(
            method=method,
            n=given.get("n", SETS_TO_WEIGH if method.gives_posterior else SETS_TO_SEARCH),
            rounds=given.get("rounds", 8),
            seed=given.get("seed", 0),
            loss=TotalLoss(given.get("weights") or None),
            objectives=tuple(given.get("objectives") or ()),
            temperature=given.get("temperature", 1.0),
            ess=given.get("ess", LEAST_ESS.get(method, 1.0)),
            take_over=given.get("take_over", False),
            trust_data=given.get("trust_data", False),
        )
        plan._check()
        plan._check_objectives()
        return plan

    @property
    def scoring(self) -> Scoring:
        """How this call weighs the sets, for its record."""
        weights = None if self.loss.weights is None else dict(self.loss.weights)
        return Scoring(weights, self.temperature, self.ess, self.objectives)

    def comparable(self, history: Sequence[Round]) -> list[Round]:
        """Return the rounds with each set as failed that lacks a loss that counts."""
        # A wrong name is a UsageError: it must not look like a failure of all sets.
        check_labels(self.loss.weights or {}, history, "the weights")
        check_labels(self.objectives, history, "the objectives")
        return comparable(history, self.loss.weights)

    def _check(self) -> None:
        positive = {"n": self.n, "rounds": self.rounds, "temperature": self.temperature, "ess": self.ess}
        wrong = {name: value for name, value in positive.items() if not 0 < value < math.inf}
        wrong |= {f"the weight of {label}": w for label, w in (self.loss.weights or {}).items() if not math.isfinite(w)}
        if self.seed < 0:
            wrong["seed"] = self.seed
        for name, value in wrong.items():
            raise UsageError(f"{name} is {value:g}", where="the options", hint="use a finite number above 0")

    def _check_objectives(self) -> None:
        several = self.objectives or self.method is Method.NSGA2
        if self.objectives and self.method not in _WITH_OBJECTIVES:
            raise UsageError(
                f"the method '{self.method}' has one objective, the total loss",
                where="the objectives",
                hint=f"use the method {', '.join(_WITH_OBJECTIVES)}; or weigh the losses in their sum",
            )
        if several and self.loss.weights:
            raise UsageError(
                "objectives have no weights",
                where="the weights",
                hint="leave the weights out, or use the method tpe with the weighted sum as its only objective",
            )
        if len(set(self.objectives)) < len(self.objectives):
            raise UsageError("a loss is named twice", where="the objectives", hint="name each loss once")
