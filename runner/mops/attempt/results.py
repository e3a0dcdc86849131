"""What becomes of a result: the job's schema, groups that come in pieces, and the committer."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.commit import Committer
from mops.attempt.progress import ResultsSoFar
from mops.attempt.sizing import TaskUsage
from mops.attempt.text_log import TextLogBuffer
from mops.errors import InternalError, UsageError
from mops.storage.backends.base import Spool
from mops.storage.job_records import keep_reference
from mops.study.column_families import Families
from mops.task import (
    Failure,
    ResultBuffer,
    Task,
    TaskResult,
    failed_simulations,
    missing_losses,
    without_groups,
    without_work,
)
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

# The file is rewritten when removed objects take as many bytes as the others, and this much more.
SLACK_BYTES = 64 << 20
COPIED_BYTES = 4 << 20  # objects that are read together are copied if they take less than this
MOST_WHOLE = 1000  # different tracebacks that are kept whole; later ones lose their middle
_HEAD_CHARACTERS, _TAIL_CHARACTERS = 200, 500
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

    def put(self, value: object) -> Shelved:
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
    """The half-done groups of an attempt."""

    def __init__(self, replicates: Callable[[int], range], *, has_targets: bool, spool: Callable[[], Spool]):
        self._replicates, self._has_targets = replicates, has_targets
        self._groups: dict[int, _PartialGroup] = {}
        self._shelf = ResultShelf(spool)

    def keep(self, result: TaskResult) -> PartialResult:
        """Write the rows of a result to disk. From any thread."""
        rows = None
        if result.buffers or result.failures or result.losses:
            rows = self._shelf.put((result.buffers, result.failures, result.losses))
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


@dataclass(frozen=True)
class TaskFinished:
    """An event: a task came back, and its result is kept."""

    number: int
    done: frozenset[int]  # groups that are whole, and in the open checkpoint
    counts: Counts  # simulations and targets that no earlier event has counted
    failed: Mapping[str, int]  # failed simulations, by verdict
    run_alone_later: frozenset[int]  # groups, or replicates, that used too much memory while others ran on the worker
    tries: Mapping[tuple[int, int], int]  # how often the task has tried the simulations and targets of these
    usage: TaskUsage
    partial: PartialResult | None  # None: the task was of whole groups
    worker: str  # its address; empty: no worker ran the task
    is_empty: bool  # whether nothing came that was asked for
    children: str  # how the worker starts child processes; empty: the result does not say


@dataclass(frozen=True)
class GroupFinished:
    """An event: a group that ran as several tasks is in the open checkpoint."""

    group: int
    counts: Counts  # of the targets: the simulations were counted as they came


class Tracebacks:
    """Makes failures with equal tracebacks refer to one text. Thread-safe."""

    def __init__(self, most_whole: int = MOST_WHOLE):
        self._most_whole = most_whole
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def shared(self, failures: Iterable[Failure]) -> list[Failure]:
        """Return the failures with their tracebacks shared or cut."""
        with self._lock:
            return [failure._replace(traceback=self._shared(failure.traceback)) for failure in failures]

    def _shared(self, text: str) -> str:
        if (known := self._known.get(text)) is not None:
            return known
        if len(self._known) < self._most_whole:
            return self._known.setdefault(text, text)
        if len(text) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
            return text
        left_out = f"\n[shortened: this attempt has kept {self._most_whole:,} other tracebacks whole]\n"
        return text[:_HEAD_CHARACTERS] + left_out + text[-_TAIL_CHARACTERS:]


class ResultReceiver:
    """What happens to a result before the loop learns about it."""

    def __init__(
        self,
        job: ClaimedJob,
        partial_groups: PartialGroups,
        text_log: TextLogBuffer,
        committer: Committer,
        so_far: ResultsSoFar,
    ):
        self._job, self._partial_groups = job, partial_groups
        self._text_log, self._committer, self._so_far = text_log, committer, so_far
        self._tracebacks = Tracebacks()

    def receive(self, task: Task, result: TaskResult) -> TaskFinished:
        """Keep a result: whole groups in the open checkpoint, parts of a group on disk until the group is whole."""
        result = _kept(task, result)
        if result.reference is not None:
            result = self._with_reference(result)
        fitting, misfit = self._job.families.accept(result)
        if misfit:
            n = len(result.done) - len(fitting.done) or 1
            message = "%s: parameter sets to run again: %d, because another task fixed the types of %s meanwhile"
            logger.info(message, self._job.name, n, misfit)
        result = fitting
        self._log(result)
        self._so_far.add_simulations(result)
        result.failures = self._tracebacks.shared(result.failures)
        failed, is_whole = failed_simulations(result), task.replicates is None
        usage = TaskUsage(
            result.peak_bytes,
            result.row_bytes,
            result.seconds,
            len(result.done) if is_whole else len(result.replicates) / self._job.n_to_run(task.groups[0]),
            result.allowed_bytes,
            result.own_bytes,
        )
        partial = None
        if is_whole:
            self._so_far.add_targets(result)
            counts = self._committer.put(result)  # it owns the buffers from here on
        else:
            counts = Counts(len(result.replicates) - failed.total(), failed.total())
            partial = self._partial_groups.keep(result)
        return TaskFinished(
            task.number,
            done=result.done if is_whole else frozenset(),
            counts=counts,
            failed=failed,
            run_alone_later=result.postponed,
            tries=result.tries,
            usage=usage,
            partial=partial,
            worker=result.worker,
            is_empty=result.is_empty,
            children=result.children,
        )

    def receive_group(self, group: int) -> GroupFinished:
        """Bring a group that ran as several tasks into the open checkpoint."""
        result = self._partial_groups.take(group)
        self._so_far.add_targets(result)
        counts = self._committer.put(result)
        return GroupFinished(group, replace(counts, simulations_good=0, simulations_failed=0))

    def _log(self, result: TaskResult) -> None:
        self._text_log.add(result.prints)
        for report in result.reports:
            logger.warning("%s: %s", self._job.name, report)
        for note in result.notes:
            logger.info("%s: %s", self._job.name, note)

    def _with_reference(self, result: TaskResult) -> TaskResult:
        """Return the result of a task that knew no schema; without its groups if the job's has other columns."""
        assert result.reference is not None
        # The schema of the first good simulation becomes the job's, unless another attempt was first.
        if self._job.families.known is None:
            kept = keep_reference(self._job.files, self._job.paths, result.reference)
            check_outputs(self._job.context.outputs, kept)
            self._job.families.set_reference(kept)
        if _names(self._job.families.known or {}) == _names(result.reference):
            return result
        # The worker checked these groups against another schema, so they run again.
        return without_work(result)


def _kept(task: Task, result: TaskResult) -> TaskResult:
    """Return a result without what other tasks run. Dask ran the whole task again after it had released something."""
    if task.replicates == ():  # such a task releases nothing, and its numbers are those of targets
        return result
    others = (result.done | result.replicates | result.postponed).difference(task.units)
    if not others:
        return result
    result = replace(result, postponed=result.postponed - others)
    return without_groups(result, others) if task.replicates is None else without_work(result)


def _names(families: Families) -> dict[str, list[str]]:
    return {output: list(columns) for output, columns in families.items()}


def check_outputs(wanted: Iterable[str] | None, families: Families) -> None:
    """Check that the model returns the outputs that the study keeps."""
    unknown = [name for name in wanted or () if name not in families]
    if unknown:
        raise UsageError(
            f"the model has no output {', '.join(map(repr, unknown))}; it has: {', '.join(families)}",
            where="$.outputs",
            hint="name outputs that the model returns, or remove 'outputs' to keep all",
        )
