"""Collects the results of groups that run as several tasks, until each group is whole.

Results, losses and failures wait on disk (:mod:`mops.attempt.planning.result_shelf`). A group that is half done takes
memory only for the numbers of its settled replicates, however large its results are and however long it waits for the
last replicate. docs/internals/decisions.md has the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mops.attempt.planning.result_shelf import ResultShelf, Shelved
from mops.errors import InternalError
from mops.storage.backends.spool import Spool
from mops.task import ResultBuffer, TaskResult, missing_losses


@dataclass(frozen=True)
class PartialResult:
    """The result of a task that ran replicates of a group, or its targets.

    Parameters
    ----------
    result
        The result without its parts, losses and failures.
    failed
        Whether something of it failed.
    rows
        Where the parts, losses and failures are on disk; None: there are none.
    """

    result: TaskResult
    failed: bool
    rows: Shelved | None


@dataclass
class _PartialGroup:
    """The results that the tasks of a group have returned so far. Their prints and reports are not kept."""

    settled: set[int] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    rows: list[Shelved] = field(default_factory=list)
    seconds: float = 0.0
    failed: bool = False


class PartialGroups:
    """The half-done groups of an attempt.

    Parameters
    ----------
    replicates
        Returns the replicates of a group that the attempt runs.
    has_targets
        Whether targets run when the replicates of a group are there.
    spool
        Returns an empty file.
    """

    def __init__(self, replicates: Callable[[int], range], *, has_targets: bool, spool: Callable[[], Spool]):
        self._replicates, self._has_targets = replicates, has_targets
        self._groups: dict[int, _PartialGroup] = {}
        self._shelf = ResultShelf(spool)

    def keep(self, result: TaskResult) -> PartialResult:
        """Write the rows of a result to disk. From any thread.

        Raises
        ------
        StorageError
            The disk has no room.
        """
        rows = None
        if result.parts or result.failures or result.losses:
            rows = self._shelf.put((result.parts, result.failures, result.losses))
        return PartialResult(replace(result, parts=[], failures=[], losses=[]), bool(result.failures), rows)

    def add(self, group: int, partial: PartialResult) -> bool:
        """Add a result that :meth:`keep` returned to its group; return whether the group is whole.

        Raises
        ------
        InternalError
            A replicate has come before, so that its rows would be there twice.
        """
        of_group, result = self._groups.setdefault(group, _PartialGroup()), partial.result
        if again := of_group.settled & result.replicates:
            raise InternalError(
                f"replicates {', '.join(map(str, sorted(again)))} of group {group} came twice",
                hint="the committed results are correct; report this, then continue the job: mops jobs resume",
            )
        of_group.settled |= result.replicates
        of_group.keys += result.keys
        of_group.rows += [partial.rows] if partial.rows is not None else []
        of_group.seconds += result.seconds
        of_group.failed |= partial.failed
        return group in result.done or (self._has_all_replicates(group) and not self.targets_due(group))

    def drop(self, partial: PartialResult) -> None:
        """Remove from the disk a result that :meth:`keep` returned."""
        self._shelf.remove([partial.rows] if partial.rows is not None else [])

    def targets_due(self, group: int) -> bool:
        """Tell whether a group's targets can run now. A group with a failed simulation has no losses."""
        return self._has_targets and self._has_all_replicates(group) and not self._groups[group].failed

    def results(self, group: int) -> list[ResultBuffer]:
        """Return the results that a group has so far, mapped from disk."""
        return [part for parts, _, _ in self._shelf.read(self._groups[group].rows) for part in parts]

    def _has_all_replicates(self, group: int) -> bool:
        return group in self._groups and len(self._groups[group].settled) == len(self._replicates(group))

    def take(self, group: int) -> TaskResult:
        """Return the result of a whole group, mapped from disk, and forget the group. From any thread."""
        of_group = self._groups.pop(group)
        rows = self._shelf.read(of_group.rows)
        self._shelf.remove(of_group.rows)
        failures = [failure for _, failures, _ in rows for failure in failures]
        failures.sort(key=lambda failure: failure.replicate or 0)  # failures of targets keep their order
        if self._has_targets and any(failure.replicate is not None for failure in failures):
            failures.append(missing_losses(failures))
        return TaskResult(
            keys=tuple(of_group.keys),
            done=frozenset({group}),
            seconds=of_group.seconds,
            reference=None,  # the group's first task has delivered it
            parts=[part for parts, _, _ in rows for part in parts],
            failures=failures,
            losses=[loss for _, _, losses in rows for loss in losses],
        )
