"""What methods of calibration share: the history of rounds, the total loss of a set, the interface of a method.

A method has no state. It computes the next sets and the weights of all sets from the records of the rounds, so a
calibration that was killed continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mops.errors import UsageError
from mops.storage.calibration_records import Outcome, Round


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
        """Return the posterior weight of each set of all rounds, None for a failed set.

        The weights of all sets have the sum 1.
        """

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether more rounds are not needed; ``ess`` is the effective sample size that is enough."""


@dataclass(frozen=True)
class TotalLoss:
    """The weighted sum of the losses of a set.

    Parameters
    ----------
    weights
        The weight of each loss that counts, by its label; None: the sum of all losses.
    """

    weights: Mapping[str, float] | None = None

    def of(self, outcome: Outcome) -> float | None:
        """Return the total loss; None: the set has failed."""
        if outcome.failure is not None:
            return None
        if self.weights is None:
            return sum(outcome.losses.values())
        return sum(weight * outcome.losses[label] for label, weight in self.weights.items())

    def check(self, history: Sequence[Round]) -> None:
        """Raise UsageError if a weight names no loss."""
        labels = labels_of(history)
        if labels and (unknown := sorted((self.weights or {}).keys() - set(labels))):
            raise UsageError(
                f"no loss has the label {', '.join(map(repr, unknown))}",
                where="the weights",
                hint=f"the labels are {', '.join(map(repr, labels))}",
            )


def outcomes_of(history: Sequence[Round]) -> Iterator[Outcome]:
    """Yield the outcome of each set of all rounds."""
    for each in history:
        yield from each.told.outcomes


def labels_of(history: Sequence[Round]) -> list[str]:
    """Return the labels of all losses."""
    return list({label: None for outcome in outcomes_of(history) for label in outcome.losses})
