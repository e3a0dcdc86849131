"""What follows from the rounds of a calibration: its losses, and the seeds of its sets.

A method of calibration has no state. It computes the next sets and the weights of all sets from the records of the
rounds, so a calibration that was killed continues as if nothing had happened.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mops.errors import UsageError
from mops.jobs.job import Job
from mops.storage.calibration_records import Asked, Outcome, Round
from mops.study.entry_point import loss_labels
from mops.study.ids_and_seeds import param_id, round_seed
from mops.study.sampling.draw import Floats, Method, unit_points
from mops.study.sampling.space import Space

NO_LOSS = "no loss"  # the failure of a set that lacks a loss that other sets have

# So many repeats of sets with other seeds must all have had the same losses before a model counts as deterministic. A
# loss of a few possible values is often equal by chance: of a model with two policies, each with the same loss in 70 %
# of its simulations, 4 repeats are all equal in 1 of 7 calibrations, and 12 repeats in 1 of 150.
LEAST_REPEATS = 12

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Draw:
    """The sets for a round, and what the method needs at replay besides them."""

    sets: list[dict[str, Any]]
    state: dict[str, Any]


class Fitting(Protocol):
    """A method of calibration with its options."""

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the ``n`` sets of the round after these rounds."""

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return the posterior weight of each set; None: it failed, or the method is an optimiser. The sum is 1."""

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether more rounds are not needed; ``ess`` is the effective sample size that is enough."""


def design(space: Space, n: int, seed: int) -> Floats:
    """Return the points of round 1 in the unit cube, which are the same for every method."""
    return unit_points(space, Method.SOBOL, n=n, seed=seed, where="the space")


@dataclass(frozen=True)
class TotalLoss:
    """The weighted sum of the losses of a set."""

    weights: Mapping[str, float] | None = None  # by the label of each loss that counts; None: the sum of all losses

    def of(self, outcome: Outcome) -> float | None:
        """Return the total loss, the largest float if it is even larger; None: the set has failed."""
        if outcome.failure is not None:
            return None
        weights = dict.fromkeys(outcome.losses, 1.0) if self.weights is None else self.weights
        total = sum(weight * outcome.losses[label] for label, weight in weights.items())
        if math.isfinite(total):
            return total
        # A model may return a very large loss as a penalty: the set is bad, and has not failed.
        exact = sum(Fraction(weight) * Fraction(outcome.losses[label]) for label, weight in weights.items())
        return float(min(max(exact, -sys.float_info.max), sys.float_info.max))

    def of_all(self, history: Sequence[Round]) -> Floats:
        """Return the total loss of each set of all rounds, NaN for a failed set."""
        return np.array([np.nan if (total := self.of(each)) is None else total for each in outcomes_of(history)])

    def formula(self, labels: Iterable[str]) -> str:
        """Return the sum for people, ``peak + 2 cases``, of losses with these labels."""
        weights = dict.fromkeys(labels, 1.0) if self.weights is None else self.weights
        return " + ".join(label if weight == 1 else f"{weight:g} {label}" for label, weight in weights.items())


def outcomes_of(history: Sequence[Round]) -> Iterator[Outcome]:
    """Yield the outcome of each set of all rounds."""
    for each in history:
        yield from each.outcomes


def is_from_prior(state: Mapping[str, Any]) -> bool:
    """Tell by the state of a round whether importance resampling or ABC drew its sets from the prior."""
    # A round that was drawn from a proposal has the number of draws.
    return "drawn" not in state


def labels_of(history: Sequence[Round]) -> list[str]:
    """Return the labels of all losses."""
    return list({label: None for outcome in outcomes_of(history) for label in outcome.losses})


def comparable(history: Sequence[Round], needed: Collection[str] | None = None) -> list[Round]:
    """Return the rounds with each set as failed that lacks a needed loss; None: the losses of all these rounds."""
    # A target may return other losses for other sets, so a later round may have losses that earlier rounds lack.
    labels = set(labels_of(history) if needed is None else needed)

    def checked(outcome: Outcome) -> Outcome:
        return outcome if outcome.failure or labels <= outcome.losses.keys() else Outcome({}, NO_LOSS)

    return [replace(each, outcomes=tuple(map(checked, each.outcomes))) for each in history]


def check_labels(named: Iterable[str], history: Sequence[Round], where: str) -> None:
    """Raise UsageError if one of these names no loss of the rounds."""
    labels = labels_of(history)
    if labels and (unknown := sorted(set(named) - set(labels))):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where=where,
            hint=f"the labels are {', '.join(map(repr, labels))}",
        )


# Seeds. Equal sets of one round are one group of its job, so they share a simulation with its replicates. In another
# round, an equal set has other seeds. If that never changed a loss, the model is deterministic: then a set keeps its
# seeds, and its job takes the simulations of the earlier round.


def entries_of(
    asked: Asked,
    seed: int,  # of the calibration
    n_replicates: int,
) -> list[dict[str, Any]]:
    """Return the parameter sets of a round's job: each different set once for each replicate, with its seed."""
    different = dict(zip(asked.param_ids, asked.sets, strict=True))
    return [
        {"params": params, "seed": round_seed(identity, seed, asked.seeds_of_round(identity), replicate)}
        for identity, params in different.items()
        for replicate in range(n_replicates)
    ]


def kept_seeds(history: Sequence[Round], sets: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the earlier round whose seeds a set of the next round keeps, by its param_id; empty: all get new seeds."""
    if not is_deterministic(history):
        return {}
    earlier: dict[str, int] = {}
    for identity, k, outcome in _simulated(history):
        if outcome.failure is None:
            earlier.setdefault(identity, k)
    return {identity: earlier[identity] for identity in map(param_id, sets) if identity in earlier}


def is_deterministic(history: Sequence[Round]) -> bool:
    """Tell whether the seeds have no effect: all repeats of sets with other seeds had the same losses."""
    # A set that failed tells nothing.
    losses: dict[str, dict[int, dict[str, float]]] = {}
    for identity, k, outcome in _simulated(history):
        if outcome.failure is None:
            losses.setdefault(identity, {})[k] = outcome.losses
    equal = [later == first for first, *others in (list(each.values()) for each in losses.values()) for later in others]
    return len(equal) >= LEAST_REPEATS and all(equal)


def draws_that_tell(history: Sequence[Round]) -> Counts:
    """Return a number for each trial. Trials with the same number share a simulation, and count as one."""
    # If the model is deterministic, each trial has another number: its loss has no randomness that trials could share.
    numbers: dict[tuple[str, int], int] = {}
    shared = [numbers.setdefault((identity, k), len(numbers)) for identity, k, _ in _simulated(history)]
    return np.arange(len(shared)) if is_deterministic(history) else np.array(shared, np.int64)


def sample_size(weights: Iterable[float | None], history: Sequence[Round]) -> float:
    """Return the effective sample size of the trials of some rounds with these weights; None: a failed set."""
    return pooled_sample_size(np.array([weight or 0.0 for weight in weights]), draws_that_tell(history))


def pooled_sample_size(
    weights: Floats,
    draws: Counts,  # from `draws_that_tell`
) -> float:
    """Return how many sets of equal weight tell as much as these trials; 0: all weights are 0."""
    # The effective sample size (Kish 1965, Survey Sampling, Wiley), after the weights of trials that share a simulation
    # are added.
    pooled: Floats = np.bincount(draws, weights).astype(np.float64)
    return float(pooled.sum() ** 2 / (pooled**2).sum()) if pooled.any() else 0.0


def _simulated(history: Sequence[Round]) -> Iterator[tuple[str, int, Outcome]]:
    """Yield for each trial its param_id, the round whose seeds it has, and its outcome."""
    for each in history:
        for identity, outcome in zip(each.param_ids, each.outcomes, strict=True):
            yield identity, each.seeds_of_round(identity), outcome


# The job of a round.


def outcomes_in(job: Job, sets: Sequence[dict[str, Any]]) -> tuple[Outcome, ...]:
    """Return the outcome of each set, in the order of the sets. A set with a failed simulation or target has failed."""
    # The other losses of a failed set would not compare with the losses of complete sets.
    losses = job.losses().to_arrow().to_pylist()
    labels = loss_labels((row["target"], row["name"]) for row in losses)
    of_set: dict[str, dict[str, float]] = {}
    for row in losses:
        of_set.setdefault(row["param_id"], {})[labels[row["target"], row["name"]]] = row["loss"]
    verdicts: dict[str, str] = {}
    for row in job.failures(columns=["param_id", "target", "reason"]).to_arrow().to_pylist():
        if row["target"] != "*":  # the consequence of a failed simulation
            verdicts.setdefault(row["param_id"], row["reason"])

    def outcome(identity: str) -> Outcome:
        found, verdict = of_set.get(identity, {}), verdicts.get(identity)
        is_complete = verdict is None and found and len(found) == len(labels)
        return Outcome(found) if is_complete else Outcome({}, verdict or NO_LOSS)

    return tuple(map(outcome, map(param_id, sets)))
