"""The options of a calibration, checked, with their defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from mops.attempt.reporting.progress import Snapshot
from mops.calibration.rounds import TotalLoss
from mops.errors import UsageError
from mops.project.functions import Code
from mops.settings import Settings
from mops.worker.environment.variables import Variables


class Method(StrEnum):
    """How mops chooses the sets of the rounds."""

    IMPORTANCE = "importance"
    ABC = "abc"


LEAST_ESS = {Method.IMPORTANCE: 200.0, Method.ABC: 50.0}
"""The effective sample size below which there is no posterior, if the caller gives none."""


class CalibrateOptions(TypedDict, total=False):
    """Keyword arguments of calibrate; None: not given."""

    env: Variables | None
    python: str | Path | None
    settings: Settings | None
    local: bool
    on_progress: Callable[[Snapshot], None]
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
    temperature: float
    ess: float
    take_over: bool


@dataclass(frozen=True)
class Plan:
    """The options that may change from call to call, because they change no simulation.

    Parameters
    ----------
    n
        The number of sets in each new round.
    rounds
        The most rounds.
    ess
        The effective sample size below which there is no posterior.
    take_over
        Whether to replace a runner that runs the job of the round.
    """

    method: Method
    n: int
    rounds: int
    seed: int
    loss: TotalLoss
    temperature: float
    ess: float
    take_over: bool

    @classmethod
    def of(cls, options: CalibrateOptions) -> Plan:
        """Return the checked options with their defaults."""
        if unknown := sorted(options.keys() - CalibrateOptions.__annotations__.keys()):
            raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        method = given.get("method", Method.IMPORTANCE)
        if method not in tuple(Method):
            known = ", ".join(Method)
            raise UsageError(f"the method {method!r} is unknown", where="the method", hint=f"use one of {known}")
        plan = cls(
            method=Method(method),
            n=given.get("n", 256),
            rounds=given.get("rounds", 8),
            seed=given.get("seed", 0),
            loss=TotalLoss(given.get("weights") or None),
            temperature=given.get("temperature", 1.0),
            ess=given.get("ess", LEAST_ESS[Method(method)]),
            take_over=given.get("take_over", False),
        )
        plan._check()
        return plan

    def _check(self) -> None:
        positive = {"n": self.n, "rounds": self.rounds, "temperature": self.temperature, "ess": self.ess}
        wrong = {name: value for name, value in positive.items() if not 0 < value < math.inf}
        wrong |= {f"the weight of {label}": w for label, w in (self.loss.weights or {}).items() if not math.isfinite(w)}
        if self.seed < 0:
            wrong["seed"] = self.seed
        for name, value in wrong.items():
            raise UsageError(f"{name} is {value:g}", where="the options", hint="use a finite number above 0")
