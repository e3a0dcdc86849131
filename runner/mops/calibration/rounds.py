"""What methods of calibration share: the history of rounds, the total loss of a set, the interface of a method.

A method has no state. It computes the next sets and the weights of all sets from the records of the rounds, so a
calibration that was killed continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mops.errors import UsageError
from mops.storage.calibration_records import Outcome, Round

NO_LOSS = "no loss"  # the failure of a set that lacks a loss that other sets have


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


@dataclass(frozen=True)
class TotalLoss:
    """The weighted sum of the losses of a set."""

    weights: Mapping[str, float] | None = None  # by the label of each loss that counts; None: the sum of all losses

    def of(self, outcome: Outcome) -> float | None:
        """Return the total loss; None: the set has failed."""
        if outcome.failure is not None:
            return None
        if self.weights is None:
            return sum(outcome.losses.values())
        return sum(weight * outcome.losses[label] for label, weight in self.weights.items())

    def formula(self, labels: Iterable[str]) -> str:
        """Return the sum for people, ``peak + 2 cases``, of losses with these labels."""
        weights = dict.fromkeys(labels, 1.0) if self.weights is None else self.weights
        return " + ".join(label if weight == 1 else f"{weight:g} {label}" for label, weight in weights.items())


def outcomes_of(history: Sequence[Round]) -> Iterator[Outcome]:
    """Yield the outcome of each set of all rounds."""
    for each in history:
        yield from each.told.outcomes


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

    return [replace(one, told=replace(one.told, outcomes=tuple(map(checked, one.told.outcomes)))) for one in history]


def check_labels(named: Iterable[str], history: Sequence[Round], where: str) -> None:
    """Raise UsageError if one of these names no loss of the rounds."""
    labels = labels_of(history)
    if labels and (unknown := sorted(set(named) - set(labels))):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where=where,
            hint=f"the labels are {', '.join(map(repr, labels))}",
        )
