"""Verdicts of simulations, causes of lost workers, and counts of what succeeded and failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Report:
    """An event of a job that deserves a line of its log: what happened, and what mops does about it."""

    kind: str  # the verdict, or another word for events of one kind: a terminal shows only the first few of them
    what: str  # what happened, to which simulation and where
    then: str  # the action of mops, and what the user can do

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}; {self.then}"


# The values of a failure's ``reason``. The report has advice for each (`_ADVICE`), recovery.py says which are
# retried, and docs/reference/failures.md lists them.
VERDICTS = ("oom", "crashed", "timeout", "error", "invalid_output", "lost")


@dataclass(frozen=True)
class LossCause:
    """Why a worker was lost, or its pod ended."""

    text: str  # the cause in words; empty: it is unknown
    memory: bool = False  # whether it ran out of memory
    removed: bool = False  # whether Kubernetes or a person removed it, so that no task is to blame


@dataclass(frozen=True)
class Counts:
    """Simulations and targets, good and failed.

    Parameters
    ----------
    verdicts
        Failed simulations and targets, by verdict. A target without losses because a simulation failed counts only in
        ``targets_failed``.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - storage refuses other counts

    simulations_good: int = 0
    simulations_failed: int = 0
    targets_good: int = 0
    targets_failed: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.simulations_good + other.simulations_good,
            self.simulations_failed + other.simulations_failed,
            self.targets_good + other.targets_good,
            self.targets_failed + other.targets_failed,
            dict(Counter(self.verdicts) + Counter(other.verdicts)),
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.simulations_good - other.simulations_good,
            self.simulations_failed - other.simulations_failed,
            self.targets_good - other.targets_good,
            self.targets_failed - other.targets_failed,
            dict(Counter(self.verdicts) - Counter(other.verdicts)),
        )

    @property
    def scores_failed(self) -> int:
        """The number of targets that failed, without those that did not run because a simulation failed."""
        return sum(self.verdicts.values()) - self.simulations_failed

    @property
    def scores_not_run(self) -> int:
        """The number of targets that did not run because a simulation failed."""
        return self.targets_failed - self.scores_failed

    @property
    def targets_text(self) -> str:
        """The targets for people: ``30 scored, 2 failed, 8 not run because a simulation failed``."""
        not_run = self.scores_not_run
        because = f", {not_run:,} not run because a simulation failed" if not_run > 0 else ""
        return f"{self.targets_good:,} scored, {self.scores_failed:,} failed{because}"

    @property
    def simulations(self) -> int:
        """Simulations, good and failed."""
        return self.simulations_good + self.simulations_failed

    @property
    def failed(self) -> int:
        """Failed simulations and failed targets."""
        return self.simulations_failed + self.targets_failed

    @property
    def by_verdict(self) -> list[str]:
        """The failures by verdict, the most frequent first: ``3 oom``."""
        return [f"{n:,} {verdict}" for verdict, n in sorted(self.verdicts.items(), key=lambda found: -found[1])]
