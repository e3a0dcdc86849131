"""What happens to a result between the cluster and the committer: :meth:`ResultReceiver.receive`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.commit import Committer
from mops.attempt.partial_groups import PartialGroups, PartialResult
from mops.attempt.progress import ResultsSoFar
from mops.attempt.sizing import TaskUsage
from mops.attempt.text_log import TextLogBuffer
from mops.errors import UsageError
from mops.storage.job_records import keep_reference
from mops.study.column_families import Families
from mops.task import (
    Failure,
    Task,
    TaskResult,
    failed_simulations,
    without_groups,
    without_work,
)
from mops.verdicts import Counts

logger = logging.getLogger(__name__)

_MOST_SHARED = 1000  # different tracebacks that mops compares others with


@dataclass(frozen=True)
class TaskFinished:
    """An event: a task came back, and its result is kept."""

    number: int
    done: frozenset[int]  # groups that are whole, and in the open checkpoint
    counts: Counts  # simulations and targets that no earlier event has counted
    failed: Mapping[str, int]  # failed simulations, by verdict
    run_alone_later: frozenset[int]  # groups, or replicates, that used too much memory while others ran on the worker
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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def shared(self, failures: Iterable[Failure]) -> list[Failure]:
        """Return the failures with their tracebacks shared."""
        with self._lock:
            return [failure._replace(traceback=self._shared(failure.traceback)) for failure in failures]

    def _shared(self, text: str) -> str:
        if len(self._known) < _MOST_SHARED:
            return self._known.setdefault(text, text)
        return self._known.get(text, text)


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
        self._notes: set[str] = set()

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
            counts = self._committer.add(result)  # it owns the buffers from here on
        else:
            counts = Counts(len(result.replicates) - failed.total(), failed.total())
            partial = self._partial_groups.keep(result)
        return TaskFinished(
            task.number,
            done=result.done if is_whole else frozenset(),
            counts=counts,
            failed=failed,
            run_alone_later=result.postponed,
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
        counts = self._committer.add(result)
        return GroupFinished(group, replace(counts, simulations_good=0, simulations_failed=0))

    def _log(self, result: TaskResult) -> None:
        self._text_log.add(result.prints)
        for report in result.reports:
            logger.warning("%s: %s", self._job.name, report)
        for note in result.notes:
            if note not in self._notes:  # each worker says what it has found about the model
                logger.info("%s: %s", self._job.name, note)
            self._notes.add(note)

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
