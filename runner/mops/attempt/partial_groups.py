"""Keeps the results of groups that run as several tasks on disk, until each group is whole."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mops.errors import InternalError
from mops.storage.backends.base import Spool
from mops.task import ResultBuffer, TaskResult, missing_losses

# The file is rewritten when removed objects take as many bytes as the others, and this much more.
SLACK_BYTES = 64 << 20
COPIED_BYTES = 4 << 20  # objects that are read together are copied if they take less than this
_ALIGN = 64  # Arrow's recommended alignment


@dataclass
class Shelved:
    """Where an object is in the file: start and length of its pickle, then of each of its buffers."""

    extents: list[tuple[int, int]]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(length + -length % _ALIGN for _, length in self.extents)


class ResultShelf:
    """Keeps objects on disk until they are removed. Thread-safe."""

    # All objects are in one file, because a process may have few file descriptors and mappings, and there may be very
    # many objects. The file takes at most about twice the bytes of its objects.

    def __init__(self, spool: Callable[[], Spool], slack_bytes: int = SLACK_BYTES):
        self._new_file, self._slack_bytes = spool, slack_bytes
        self._lock = threading.Lock()
        self._file: Spool | None = None
        self._there: dict[int, Shelved] = {}
        self._size = self._live_bytes = 0

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, including those of removed objects."""
        return self._size

    def keep(self, value: object) -> Shelved:
        """Write an object. If the disk has no room, the shelf cannot be used after that."""
        buffers: list[pickle.PickleBuffer] = []
        description = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        with self._lock:
            shelved = Shelved([self._append(data) for data in (description, *(buffer.raw() for buffer in buffers))])
            self._there[id(shelved)] = shelved
            self._live_bytes += shelved.nbytes
        return shelved

    def read(self, shelved: Iterable[Shelved]) -> list[Any]:
        """Return objects. Their buffers stay valid after the objects are removed."""
        with self._lock:
            wanted = list(shelved)
            if not wanted:
                return []
            assert self._file is not None
            content = memoryview(self._file.mapped())
            copied = sum(one.nbytes for one in wanted) < COPIED_BYTES
            return [_load(content, one.extents, copied=copied) for one in wanted]

    def remove(self, shelved: Iterable[Shelved]) -> None:
        """Remove objects, and rewrite the file if that frees enough."""
        with self._lock:
            for one in shelved:
                del self._there[id(one)]
                self._live_bytes -= one.nbytes
            if self._there and self._size <= 2 * self._live_bytes + self._slack_bytes:
                return
            # The old file lives until its last mapped buffer is released.
            before, self._file, self._size = self._file, None, 0
            if self._there and before is not None:
                content = memoryview(before.mapped())
                for kept in self._there.values():
                    kept.extents = [self._append(content[start : start + length]) for start, length in kept.extents]

    def _append(self, data: Any) -> tuple[int, int]:
        if self._file is None:
            self._file = self._new_file()
        start, length = self._size, memoryview(data).nbytes
        self._file.write(data)
        self._file.write(b"\0" * (-length % _ALIGN))
        self._size += length + -length % _ALIGN
        return start, length


def _load(content: memoryview, extents: list[tuple[int, int]], *, copied: bool) -> Any:
    description, *buffers = (content[start : start + length] for start, length in extents)
    held = [pa.py_buffer(bytes(buffer) if copied else buffer) for buffer in buffers]
    return pickle.loads(description, buffers=held)  # noqa: S301 - the shelf wrote it


@dataclass(frozen=True)
class PartialResult:
    """The result of a task that ran replicates of a group, or its targets."""

    result: TaskResult  # without its buffers, losses and failures
    failed: bool  # whether something of it failed
    rows: Shelved | None  # where the buffers, losses and failures are; None: there are none


@dataclass
class _PartialGroup:
    """The results that the tasks of a group have returned so far. Their prints and reports are not kept."""

    settled: set[int] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    rows: list[Shelved] = field(default_factory=list)
    seconds: float = 0.0
    failed: bool = False


class PartialGroups:
    """The half-done groups of an attempt: results wait on disk until their group is whole."""

    # The delivering thread calls `keep` and `take`, the loop the others: it knows of a result when it gets the event.

    def __init__(self, replicates: Callable[[int], range], *, has_targets: bool, spool: Callable[[], Spool]):
        self._replicates, self._has_targets = replicates, has_targets
        self._groups: dict[int, _PartialGroup] = {}
        self._shelf = ResultShelf(spool)

    def keep(self, result: TaskResult) -> PartialResult:
        """Write the rows of a result to disk. From any thread."""
        rows = None
        if result.buffers or result.failures or result.losses:
            rows = self._shelf.keep((result.buffers, result.failures, result.losses))
        return PartialResult(replace(result, buffers=[], failures=[], losses=[]), bool(result.failures), rows)

    def add(self, group: int, partial: PartialResult) -> bool:
        """Add a result that :meth:`keep` returned to its group; return whether the group is whole."""
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
        return [each for buffers, _, _ in self._shelf.read(self._groups[group].rows) for each in buffers]

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
            buffers=[each for buffers, _, _ in rows for each in buffers],
            failures=failures,
            losses=[loss for _, _, losses in rows for loss in losses],
        )
