"""What the runner sends to Dask and what comes back. Plain data, pickled between runner and worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import pyarrow as pa

from mops.child.buffers import FAILURE_BYTES, LOSS_BYTES
from mops.study.column_families import Columns, Families
from mops.study.groups import Group, GroupPart, GroupTable
from mops.verdicts import Counts, Report


@dataclass(frozen=True)
class JobContext:
    """What all tasks of a job share.

    Parameters
    ----------
    job
        The job's name.
    run
        Digits that tell this attempt's tasks and children from another attempt's on the same workers.
    bundle, storage
        The bundle's digest, and the URL of the storage that holds it.
    model, scenario, targets, outputs
        As in docs/reference/study.md; ``outputs`` None: all.
    slots
        Simulations that run at once on a worker; None: the worker's threads divided by ``threads``.
    threads
        Threads that one simulation may use.
    timeout_s
        Seconds for one simulation or one target; None: no limit.
    retries
        How often a unit whose process died is tried again.
    memory_bytes
        What one simulation's process tree may take; None: the slot's share of the worker's memory.
    tasks_per_child
        Simulations before a child is replaced; 0: any number.
    growth_bytes
        What a child may grow by since its first simulation before it is replaced; 0: any number.
    start
        How children start: "fork" from a template that has imported the model, "spawn", or "auto".
    held_bytes
        Bytes of finished, unfetched results above which a worker starts no further task.
    env
        Variables for the children, on top of the worker's own. Not in the representation: some are secrets.
    python
        The children's interpreter; None: the worker's own.
    install_s
        Seconds that installing what the bundle asks for may take; None: it is not installed.
    parameters
        Names of the first set's parameters, which no argument of the model or of a target may have; those of the other
        sets are looked at when they run.
    """

    job: str
    run: str
    bundle: str
    storage: str
    model: str
    scenario: str
    targets: tuple[str, ...]
    outputs: tuple[str, ...] | None
    slots: int | None
    threads: int = 1
    timeout_s: float | None = None
    retries: int = 1
    memory_bytes: int | None = None
    tasks_per_child: int = 0
    growth_bytes: int = 0
    start: str = "auto"
    held_bytes: int = 256 << 20
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str | None = None
    install_s: float | None = None
    parameters: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """What the keys and parts of this attempt's tasks have in their names."""
        return f"-{self.job}-{self.run}-"


@dataclass(frozen=True)
class TaskRequest:
    """Work for one task, with the budget at which it returns early.

    Parameters
    ----------
    number
        Counts the attempt's tasks.
    groups
        The groups to run; exactly one where ``replicates`` is given, with the seeds of those alone.
    reference
        The reference schema; None: the first good simulation of this task makes it.
    seconds, bytes
        The budget: wall-clock seconds, and bytes of results as Arrow. It returns at a group's border, or at a
        replicate's where a group is run in pieces.
    replicates
        None: whole groups, with their targets. Else the replicates of the one group to run; none of them: its targets
        alone, over the replicates that are handed over beside the task (:class:`TaskResult` parts of earlier pieces).
    alone
        Whether nothing else is to run on its worker meanwhile, so that its simulations have the memory of all slots.
    pool
        Names the pool of children that runs it on its worker; empty: that of the attempt.
    keep_folder
        Whether its simulations find in their working folder what the one before left there, which jobs never want: it
        is how ``study check`` finds out that a model reads what it wrote.
    per_worker
        Simulations that are to run at once on a worker from now on; None: as many as it has slots.
    """

    context: JobContext
    number: int
    groups: tuple[Group | GroupPart, ...]
    reference: Families | None
    seconds: float
    bytes: int
    replicates: tuple[int, ...] | None = None
    alone: bool = False
    per_worker: int | None = None
    pool: str = ""
    keep_folder: bool = False

    @property
    def key(self) -> str:
        """The Dask key.

        For Dask the first words of a key name its group, and only large groups of independent tasks are queued on the
        scheduler instead of being sent to workers ahead of time. So all simulations of a job share their words, and
        its targets, which depend on data, have a word of their own. The digits after them count for nothing there.
        """
        word = "targets" if self.replicates == () else "sim"
        return f"{word}{self.context.mark}{self.number}"

    @property
    def replicates_key(self) -> str:
        """The Dask key of the replicates that are handed over beside a task of targets alone."""
        return f"given-{self.key}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Every Dask key of this task."""
        return (self.key, self.replicates_key) if self.replicates == () else (self.key,)

    @property
    def part_name(self) -> str:
        """The name of this task's anonymous files."""
        return f"mops-part-{self.key}."


class Failure(NamedTuple):
    """A simulation (``target`` is None) or a target (``replicate`` and ``seed`` are None) that failed.

    Parameters
    ----------
    reason
        The verdict.
    signals
        What led to it, in words; empty: the model said it itself.
    peak_bytes
        Highest resident memory of its processes, as far as it was seen; None: it was not looked at.
    peak_at_least
        Whether they would have taken more: they were ended before.
    limit_bytes
        What they might take.
    """

    group: int
    replicate: int | None
    seed: int | None
    target: str | None
    reason: str
    message: str
    traceback: str
    attempts: int
    signals: str = ""
    peak_bytes: int | None = None
    peak_at_least: bool | None = None
    limit_bytes: int | None = None


def failures_bytes(failures: Sequence[Failure]) -> int:
    """Return what failures take in memory, about; a traceback that several refer to counts once."""
    if not failures:
        return 0
    tracebacks = {id(failure.traceback): len(failure.traceback) for failure in failures}
    return sum(tracebacks.values()) + sum(FAILURE_BYTES + len(failure.message) for failure in failures)


class Loss(NamedTuple):  # there are many: a dataclass takes four times as long to make
    """One loss of one target for one group."""

    group: int
    target: str
    name: str
    loss: float
    n_replicates: int


@dataclass(frozen=True)
class Segment:
    """Rows of one output, of several simulations, as one Arrow stream in a part's buffer.

    ``simulations`` holds (group, replicate) and ``rows`` how many rows each has, in the order of the rows; ``families``
    says what the columns hold.
    """

    output: str
    offset: int
    length: int
    simulations: list[tuple[int, int]]
    rows: list[int]
    families: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class ResultBuffer:
    """What a child handed over at once: a mapped file and what is where in it."""

    buffer: pa.Buffer
    segments: list[Segment]


@dataclass
class TaskResult:
    """The answer to a task. Only groups named in ``done`` count; other rows of the parts are to be dropped.

    Parameters
    ----------
    keys
        The Dask keys of the tasks that it answers.
    done
        Groups of which nothing is left to do.
    seconds
        What it took on one slot.
    replicates
        Of a group that is run in pieces: those that are settled, good or failed.
    postponed
        What took more than its share of memory and is to be run again alone: groups; of a group in pieces, replicates.
    peak_bytes
        The highest resident memory of the processes that ran one simulation after the other.
    reports
        What went wrong, where the worker's log is not the runner's.
    notes
        What the worker says once for the job's log, for the same reason.
    children
        How the worker starts its children, and why; empty: it has started none.
    allowed_bytes, own_bytes
        What the worker may take with all its processes, and what it takes without simulations.
    written
        The files that the simulations left in their working folder, where the task keeps it.
    worker
        The address of the Dask worker that ran it; empty: none did.
    """

    keys: tuple[str, ...]
    done: frozenset[int]
    seconds: float
    reference: Families | None
    replicates: frozenset[int] = frozenset()
    parts: list[ResultBuffer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    prints: str = ""
    postponed: frozenset[int] = frozenset()
    peak_bytes: int = 0
    reports: list[Report] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    children: str = ""
    allowed_bytes: int = 0
    own_bytes: int = 0
    written: list[str] = field(default_factory=list)
    worker: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing of what was asked for is in it."""
        return not (self.done or self.replicates or self.postponed)

    @property
    def nbytes(self) -> int:
        """Bytes of all that it brings: Arrow data, failures with their texts, losses."""
        in_parts = sum(int(part.buffer.size) for part in self.parts)
        return in_parts + failures_bytes(self.failures) + LOSS_BYTES * len(self.losses)

    def __sizeof__(self) -> int:  # what Dask's sizeof counts
        return object.__sizeof__(self) + self.nbytes


LOSSES = pa.schema(
    [
        pa.field("param_id", pa.string(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),
        pa.field("n_replicates", pa.int32(), nullable=False),
    ]
)

FAILURES = pa.schema(
    [
        pa.field("param_id", pa.string(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("replicate", pa.int32()),
        pa.field("seed", pa.uint64()),
        pa.field("target", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("signals", pa.string(), nullable=False),
        pa.field("peak_bytes", pa.int64()),
        pa.field("peak_at_least", pa.bool_()),
        pa.field("limit_bytes", pa.int64()),
    ]
)


def counts_of_result(result: TaskResult, groups: GroupTable, n_targets: int) -> Counts:
    """Count a result's simulations and targets; each target of a group without losses has failed."""
    failed = [failure for failure in result.failures if failure.target is None]
    without = {failure.group for failure in failed}
    failed_targets = sum(failure.target not in (None, "*") for failure in result.failures)
    n_simulations = sum(groups.n_replicates(group) for group in result.done)
    n_without = n_targets * len(without)
    n_scored = n_targets * len(result.done) - n_without - failed_targets
    verdicts = Counter(failure.reason for failure in result.failures if failure.target != "*")
    return Counts(n_simulations - len(failed), len(failed), n_scored, n_without + failed_targets, dict(verdicts))


def failed_simulations(result: TaskResult) -> Counter[str]:
    """Count a result's failed simulations by verdict."""
    return Counter(failure.reason for failure in result.failures if failure.replicate is not None)


def missing_losses(failures: Sequence[Failure]) -> Failure:
    """Return the one row that says why a group has no losses (docs/reference/models.md, "Targets").

    Parameters
    ----------
    failures
        The group's failures, at least one of a simulation.
    """
    failed = [(failure.replicate, failure) for failure in failures if failure.replicate is not None]
    replicate, first = min(failed, key=itemgetter(0))
    others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    message = f"no losses: replicate {replicate} (seed {first.seed}){others} failed ({first.reason})"
    return Failure(first.group, None, None, "*", first.reason, message, "", first.attempts)


@dataclass(frozen=True)
class Task:
    """An action: send this as one task.

    Parameters
    ----------
    replicates
        None: whole groups. Else those of the one group to run; none: its targets alone.
    alone
        Whether it is to have its worker for itself.
    suspect
        Whether it is part of what took down workers before: one more is enough.
    seconds
        What it will take on one slot, as far as it is known.
    """

    number: int
    groups: tuple[int, ...]
    replicates: tuple[int, ...] | None = None
    alone: bool = False
    suspect: bool = False
    seconds: float = field(default=0.0, compare=False)
