"""Optimisers of Optuna: TPE, CMA-ES and Gaussian processes, by its public interface ask and tell.

Round 1 is a design. For each later round, mops replays all rounds into a study of Optuna in memory, so sets of a round
that has begun are never asked again (docs/internals/calibration.md). Only this module imports Optuna, at its first use:
it is not installed with mops.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mops.calibration.rounds import Draw, TotalLoss, design
from mops.errors import UsageError
from mops.storage.calibration_records import Round
from mops.study.sampling.draw import sets_at, varying
from mops.study.sampling.space import Choice, Range, Space

_EXTRA = "pip install 'mops-runner[calibrate]'"
# What each method imports, and how to install it.
_PACKAGES = {
    "tpe": {"optuna": _EXTRA},
    "cmaes": {"optuna": _EXTRA, "cmaes": _EXTRA},
    "gp": {"optuna": _EXTRA, "torch": "pip install torch"},
}

_LEAST_SOURCES = 10  # CMA-ES starts from the best tenth of the design, which needs a set

_LEAST_GENERATION = 4


@dataclass(frozen=True)
class Optimiser:
    """Asks a sampler of Optuna for the sets of each round; it gives no posterior weights."""

    space: Space
    method: str  # the name of a sampler: a key of `_PACKAGES`
    seed: int
    loss: TotalLoss
    objectives: tuple[str, ...] = ()  # labels; empty: the total loss is the only objective

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the sets of the round after these rounds: the design, or what the sampler asks for."""
        if not history:
            return Draw(sets_at(self.space, design(self.space, n, self.seed)).to_pylist(), {})
        with _quiet():
            study, distributions = self.replayed(history, n), self._distributions()
            asked = [study.ask(distributions).params for _ in range(n)]
        fixed = {name: entry.values[0] for name, entry in self.space.items() if isinstance(entry, Choice)}
        return Draw([{name: (fixed | params)[name] for name in self.space} for params in asked], {})

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return None for each set: an optimiser gives no posterior."""
        return [None for each in history for _ in each.sets]

    def is_over(self, _history: Sequence[Round], _ess: float) -> bool:
        """Tell that the number of rounds alone decides."""
        return False

    def replayed(self, history: Sequence[Round], n: int) -> Any:
        """Return a study of Optuna that has seen these rounds, with the sampler of the next round of ``n`` sets."""
        study = _optuna().create_study(directions=["minimize"] * max(1, len(self.objectives)))
        sizes = [*(len(each.sets) for each in history), n]
        distributions = self._distributions()
        for each in history:
            study.sampler = self._sampler(study, each.k, sizes)
            trials = []
            for params in each.sets:
                study.enqueue_trial({name: params[name] for name in distributions})
                trials.append(study.ask(distributions))
                if self.method == "cmaes":
                    # It marks a trial with its generation when it samples it. The trial keeps the queued values.
                    _ = trials[-1].relative_params
            for trial, outcome in zip(trials, each.outcomes, strict=True):
                if (total := self.loss.of(outcome)) is None:
                    study.tell(trial, state=_optuna().trial.TrialState.FAIL)
                else:
                    study.tell(trial, [outcome.losses[label] for label in self.objectives] or total)
        study.sampler = self._sampler(study, len(history) + 1, sizes)
        return study

    def _sampler(
        self,
        study: Any,
        k: int,
        sizes: Sequence[int],  # the number of sets of each round, and of the next one
    ) -> Any:
        samplers = _optuna().samplers
        seed = int(np.random.SeedSequence([self.seed, k]).generate_state(1)[0])
        match self.method:
            case "tpe":
                return samplers.TPESampler(seed=seed, constant_liar=True)
            case "gp":
                return samplers.GPSampler(seed=seed)
        design = [trial for trial in study.trials[: sizes[0]] if trial.values is not None]
        # An eighth of the sets of a round may fail without delaying the next generation.
        return samplers.CmaEsSampler(
            seed=seed,
            n_startup_trials=0,
            popsize=max(_LEAST_GENERATION, sizes[1] - sizes[1] // 8),
            source_trials=design if len(design) >= _LEAST_SOURCES else None,
        )

    def _distributions(self) -> dict[str, Any]:
        return {name: _distribution(self.space[name]) for name in varying(self.space)}


def check_optimiser(method: str, space: Space, where: str) -> None:
    """Raise UsageError if a package of a method is missing here, or the method cannot search the space."""
    for package, install in _PACKAGES.get(method, {}).items():
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the method {str(method)!r} needs {package}", where="this Python", hint=install)
    if method == "cmaes":
        for name in varying(space):
            if isinstance(space[name], Choice):
                raise UsageError(
                    f"the method 'cmaes' searches ranges only, and {name!r} is a list of values",
                    where=where,
                    hint="use --method tpe",
                )


def _distribution(entry: Choice | Range) -> Any:
    distributions = _optuna().distributions
    if isinstance(entry, Choice):
        return distributions.CategoricalDistribution(entry.values)
    if entry.is_int:
        return distributions.IntDistribution(int(entry.low), int(entry.high), log=entry.is_log)
    return distributions.FloatDistribution(float(entry.low), float(entry.high), log=entry.is_log)


def _optuna() -> Any:
    return importlib.import_module("optuna")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's notes on new studies, and its warnings about options that are new."""
    logging = _optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(before)
