"""Groups that are run in pieces: keeps what came of each until the whole is there, as if it had come in one task.

Results, losses and failures of pieces wait on disk (:mod:`mops.attempt.planning.result_shelf`): a half-done group takes
memory for the numbers of its settled replicates only, however many groups wait for a last replicate, and however large
they are. docs/decisions.md has the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mops.attempt.planning.result_shelf import Kept, ResultShelf
from mops.errors import InternalError
from mops.storage.backends.spool import Spool
from mops.task import Failure, ResultBuffer, TaskResult, missing_losses


@dataclass(frozen=True)
class PartialResult:
    """What a piece of a group, or its targets, gave.

    Parameters
    ----------
    result
        The result without its parts, losses and failures.
    failed
        Whether something of it failed.
    rows
        Where the parts, losses and failures wait; None: there are none.
    """

    result: TaskResult
    failed: bool
    rows: Kept | None


@dataclass
class _PartialGroup:
    """What a group's pieces gave together; of their results, which bring prints and reports, none is held."""

    settled: set[int] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    seconds: float = 0.0
    failed: bool = False

    def add(self, piece: PartialResult) -> None:
        result = piece.result
        self.settled |= result.replicates
        self.keys += result.keys
        self.kept += [piece.rows] if piece.rows is not None else []
        self.seconds += result.seconds
        self.failed |= piece.failed


class PartialGroups:
    """The half done groups of an attempt.

    Parameters
    ----------
    n_replicates
        Returns a group's number of replicates.
    has_targets
        Whether groups are scored when their replicates are there.
    spool
        Returns an empty file.
    """

    def __init__(self, n_replicates: Callable[[int], int], *, has_targets: bool, spool: Callable[[], Spool]):
        self._n_replicates, self._has_targets = n_replicates, has_targets
        self._groups: dict[int, _PartialGroup] = {}
        self._shelf = ResultShelf(spool)

    def keep(self, result: TaskResult) -> PartialResult:
        """Put what a piece gave on disk. From any thread.

        Raises
        ------
        StorageError
            There is no room for it.
        """
        rows = None
        if result.parts or result.failures or result.losses:
            rows = self._shelf.put((result.parts, result.failures, result.losses))
        return PartialResult(replace(result, parts=[], failures=[], losses=[]), bool(result.failures), rows)

    def add(self, group: int, piece: PartialResult) -> bool:
        """Take what :meth:`keep` returned; return whether nothing of the group is left to do.

        Raises
        ------
        InternalError
            A replicate has come before: its rows would be there twice.
        """
        pieces = self._groups.setdefault(group, _PartialGroup())
        if again := pieces.settled & piece.result.replicates:
            raise InternalError(
                f"replicates {', '.join(map(str, sorted(again)))} of group {group} came twice",
                hint="what is committed is right: mops jobs resume goes on from there; please report this",
            )
        pieces.add(piece)
        return group in piece.result.done or (self._settled(group) and not self.targets_due(group))

    def drop(self, piece: PartialResult) -> None:
        """Keep nothing of what :meth:`keep` returned."""
        self._shelf.remove([piece.rows] if piece.rows is not None else [])

    def targets_due(self, group: int) -> bool:
        """Tell whether a group is to be scored now; one with a failed simulation has no losses."""
        return self._has_targets and self._settled(group) and not self._groups[group].failed

    def parts(self, group: int) -> list[ResultBuffer]:
        """Return a group's results so far, mapped from disk."""
        return [part for parts, _, _ in self._shelf.read(self._groups[group].kept) for part in parts]

    def _settled(self, group: int) -> bool:
        return group in self._groups and len(self._groups[group].settled) == self._n_replicates(group)

    def take(self, group: int) -> TaskResult:
        """Return a whole group's result, mapped from disk, and keep nothing of it. From any thread."""
        pieces = self._groups.pop(group)
        rows = self._shelf.read(pieces.kept)
        self._shelf.remove(pieces.kept)
        failures = sorted((failure for _, failures, _ in rows for failure in failures), key=_replicate)
        if self._has_targets and any(failure.replicate is not None for failure in failures):
            failures.append(missing_losses(failures))
        return TaskResult(
            keys=tuple(pieces.keys),
            done=frozenset({group}),
            seconds=pieces.seconds,
            reference=None,  # the job has it from the first piece
            parts=[part for parts, _, _ in rows for part in parts],
            failures=failures,
            losses=[loss for _, _, losses in rows for loss in losses],
        )


def _replicate(failure: Failure) -> int:
    """Return what failures are sorted by: all are of replicates, or all of targets, which came in their order."""
    return failure.replicate or 0
