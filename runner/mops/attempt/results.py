"""Receives the results of tasks: checks them against the job's schema, and hands groups to the committer.

Everything here runs in the delivering thread (:mod:`mops.attempt.task_threads`), and events tell the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mops.attempt.checkpoint.tracebacks import Tracebacks
from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.job_families import JobFamilies
from mops.attempt.planning.batch_size import TaskUsage
from mops.attempt.planning.partial_groups import PartialGroups, PartialResult
from mops.attempt.reporting.results_so_far import ResultsSoFar
from mops.attempt.reporting.text_log import TextLogBuffer
from mops.errors import UsageError
from mops.storage.job_records import keep_reference
from mops.study.column_families import Families
from mops.task import Task, TaskResult, failed_simulations, without_groups, without_work
from mops.verdicts import Counts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFinished:
    """An event: a task came back, and its result is kept.

    Parameters
    ----------
    number
        The task's number.
    done
        Groups that are whole, and in the open checkpoint.
    counts, failed
        Simulations and targets that no earlier event has counted; failed simulations by verdict.
    run_alone_later
        Groups, or replicates of the task's group, that used too much memory while others ran on the worker.
    tries
        How often the task has tried the simulations and targets of these (:class:`mops.task.TaskResult`).
    usage
        The time and memory of the task.
    partial
        The result for a group that runs as several tasks; None: the task was of whole groups.
    worker
        The worker's address; empty: no worker ran the task.
    is_empty
        Whether the task came back without anything that it was asked for.
    """

    number: int
    done: frozenset[int]
    counts: Counts
    failed: Mapping[str, int]
    run_alone_later: frozenset[int]
    tries: Mapping[tuple[int, int], int]
    usage: TaskUsage
    partial: PartialResult | None
    worker: str
    is_empty: bool


@dataclass(frozen=True)
class GroupFinished:
    """An event: a group that ran as several tasks is in the open checkpoint.

    Parameters
    ----------
    counts
        The group's targets. Its simulations were counted as they came.
    """

    group: int
    counts: Counts


class ResultReceiver:
    """What happens to a result before the loop learns about it.

    Parameters
    ----------
    families
        The families of the job's columns.
    put
        Takes the result of whole groups into the open checkpoint, and counts it. Waits while too many bytes wait there.
    on_start
        Called with how a worker starts child processes.
    so_far
        Looks at each result.
    """

    def __init__(
        self,
        job: ClaimedJob,
        families: JobFamilies,
        partial_groups: PartialGroups,
        text_log: TextLogBuffer,
        put: Callable[[TaskResult], Counts],
        on_start: Callable[[str], None],
        so_far: ResultsSoFar,
    ):
        self._job, self._families, self._partial_groups = job, families, partial_groups
        self._text_log, self._put, self._on_start, self._so_far = text_log, put, on_start, so_far
        self._tracebacks = Tracebacks()

    def receive(self, task: Task, result: TaskResult) -> TaskFinished:
        """Keep a result: whole groups in the open checkpoint, parts of a group on disk until the group is whole.

        Raises
        ------
        UsageError
            The model lacks an output that the study names.
        """
        result = _kept(task, result)
        if result.reference is not None:
            result = self._with_reference(result)
        fitting, misfit = self._families.accept(result)
        if misfit:
            n = len(result.done) - len(fitting.done) or 1
            message = "%s: parameter sets to run again: %d, because another task fixed the types of %s meanwhile"
            logger.info(message, self._job.name, n, misfit)
        result = fitting
        self._log(result)
        failed = failed_simulations(result)
        self._so_far.add_simulations(result)
        result.failures = self._tracebacks.shared(result.failures)
        measured = (result.peak_bytes, result.row_bytes, result.seconds)
        memory = (result.allowed_bytes, result.own_bytes)
        alone, tries = result.postponed, result.tries
        rest = (result.worker, result.is_empty)
        if task.replicates is None:
            usage = TaskUsage(*measured, len(result.done), *memory)
            self._so_far.add_targets(result)
            counts = self._put(result)  # from here on the committer owns its buffers
            return TaskFinished(task.number, result.done, counts, failed, alone, tries, usage, None, *rest)
        usage = TaskUsage(*measured, len(result.replicates) / self._job.n_to_run(task.groups[0]), *memory)
        counts = Counts(len(result.replicates) - failed.total(), failed.total())
        partial = self._partial_groups.keep(result)
        return TaskFinished(task.number, frozenset(), counts, failed, alone, tries, usage, partial, *rest)

    def receive_group(self, group: int) -> GroupFinished:
        """Bring a group that ran as several tasks into the open checkpoint."""
        result = self._partial_groups.take(group)
        self._so_far.add_targets(result)
        counts = self._put(result)
        return GroupFinished(group, replace(counts, simulations_good=0, simulations_failed=0))

    def _log(self, result: TaskResult) -> None:
        self._text_log.add(result.prints)
        if result.children:
            self._on_start(result.children)
        for report in result.reports:
            logger.warning("%s: %s", self._job.name, report)
        for note in result.notes:
            logger.info("%s: %s", self._job.name, note)

    def _with_reference(self, result: TaskResult) -> TaskResult:
        """Return the result of a task that knew no schema; without its groups if the job's has other columns.

        The schema of the first good simulation becomes the job's, unless another attempt was first.
        """
        assert result.reference is not None
        if self._families.known is None:
            kept = keep_reference(self._job.files, self._job.paths, result.reference)
            check_outputs(self._job.context.outputs, kept)
            self._families.set_reference(kept)
        if _names(self._families.known or {}) == _names(result.reference):
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
    """Check that the model returns the outputs that the study keeps.

    Raises
    ------
    UsageError
        It does not.
    """
    unknown = [name for name in wanted or () if name not in families]
    if unknown:
        raise UsageError(
            f"the model has no output {', '.join(map(repr, unknown))}; it has: {', '.join(families)}",
            where="$.outputs",
            hint="name outputs that the model returns, or remove 'outputs' to keep all",
        )
