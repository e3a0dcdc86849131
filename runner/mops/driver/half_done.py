"""Groups that are run in pieces: keeps what came of each until the whole is there, as if it had come in one task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mops.worker.order import ArrowPart, Failure, Outcome
from mops.worker.work import no_losses


@dataclass
class _Pieces:
    outcomes: list[Outcome] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)

    @property
    def failures(self) -> list[Failure]:
        return [failure for outcome in self.outcomes for failure in outcome.failures]


class HalfDone:
    """The half done groups of an attempt.

    Parameters
    ----------
    n_replicates
        Returns a group's number of replicates.
    has_targets
        Whether groups are scored when their replicates are there.
    """

    def __init__(self, n_replicates: Callable[[int], int], *, has_targets: bool):
        self._n_replicates, self._has_targets = n_replicates, has_targets
        self._groups: dict[int, _Pieces] = {}

    def add(self, group: int, outcome: Outcome) -> Outcome | None:
        """Take what a piece, or the targets, gave; return the whole group's outcome when nothing is left to do."""
        pieces = self._groups.setdefault(group, _Pieces())
        pieces.outcomes.append(outcome)
        pieces.settled |= outcome.replicates
        if group in outcome.done or (self._settled(group) and not self.targets_due(group)):
            return self._whole(group)
        return None

    def targets_due(self, group: int) -> bool:
        """Tell whether a group is to be scored now; one with a failed simulation has no losses."""
        return self._has_targets and self._settled(group) and not self._groups[group].failures

    def parts(self, group: int) -> list[ArrowPart]:
        """Return a group's results so far."""
        return [part for outcome in self._groups[group].outcomes for part in outcome.parts]

    def _settled(self, group: int) -> bool:
        return group in self._groups and len(self._groups[group].settled) == self._n_replicates(group)

    def _whole(self, group: int) -> Outcome:
        pieces = self._groups.pop(group)
        outcomes, failures = pieces.outcomes, sorted(pieces.failures, key=_study_order)
        if self._has_targets and any(failure.replicate is not None for failure in failures):
            failures.append(no_losses(failures))
        return Outcome(
            keys=tuple(key for outcome in outcomes for key in outcome.keys),
            done=frozenset({group}),
            seconds=sum(outcome.seconds for outcome in outcomes),
            reference=outcomes[0].reference,
            parts=[part for outcome in outcomes for part in outcome.parts],
            failures=failures,
            losses=[loss for outcome in outcomes for loss in outcome.losses],
        )


def _study_order(failure: Failure) -> tuple[bool, int]:
    return failure.replicate is None, failure.replicate or 0
