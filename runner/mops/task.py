"""Defines what a runner sends to a cluster and what comes back: plain data, which Dask pickles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from mops.child.buffers import FAILURE_BYTES, LOSS_BYTES
from mops.study.column_families import Columns, Families
from mops.study.groups import Group, GroupPart
from mops.verdicts import Counts, Report


@dataclass(frozen=True)
class JobContext:
    """The fields that all tasks of an attempt share."""

    job: str
    run_id: str  # digits that tell this attempt's tasks and child processes from another attempt's on the same workers
    bundle: str  # the bundle's digest
    storage: str  # the URL of the storage that holds the bundle
    model: str
    scenario: str
    targets: tuple[str, ...]
    outputs: tuple[str, ...] | None  # None: all
    slots: int | None  # simulations that run at once on a worker; None: the worker's threads divided by ``threads``
    threads: int = 1  # of one simulation
    timeout_s: float | None = None  # of one simulation or one target; None: no limit
    retries: int = 1  # how often mops retries a simulation or target whose process died
    # whether tasks that run alone go to a pool of workers with more memory
    alone_elsewhere: bool = False
    memory_bytes: int | None = None  # of one simulation's process tree; None: the slot's share of the worker's memory
    tasks_per_child: int = 0  # simulations before mops replaces a child process; 0: any number
    growth_bytes: int = 0  # since its first simulation, at which mops replaces a child process; 0: any growth
    start: str = "auto"  # "fork" from a template that has imported the model, "spawn", or "auto"
    held_bytes: int = 256 << 20  # of finished, unfetched results above which a worker starts no further task
    # for child processes, on top of the worker's own; ``repr`` omits them: some are secrets
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str | None = None  # the interpreter of child processes; None: the worker's own
    install_s: float | None = None  # to install the bundle's dependencies; None: the worker does not install them
    import_s: float | None = None  # to import the model in one process; None: no limit
    # Names of the first set's parameters, which no argument of the model or of a target may have. Child processes check
    # the other sets when they run.
    parameters: tuple[str, ...] = ()
    import_folders: tuple[str, ...] = (".",)  # relative to the bundle's root
    job_id: str = ""  # in the paths of its parts; empty: no job stores the results

    @property
    def mark(self) -> str:
        """The common part in the names of this attempt's keys and buffers."""
        return f"-{self.job}-{self.run_id}-"


@dataclass(frozen=True)
class RunningStep:
    """A simulation or target that a child process runs now."""

    group: int
    param_id: str
    replicate: int | None  # None for a target
    target: str | None
    worker: str  # the host of the worker
    seconds: float  # without the time in which the worker was stopped
    task: int  # the number of its task
    # What its task leaves to other tasks: half-open intervals of groups, or of replicates of its group.
    released: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TaskRequest:
    """A task, with the budget at which it returns early."""

    context: JobContext
    number: int  # of the task in the attempt
    # if ``replicates`` is given: exactly one group, with the seeds of those replicates only
    groups: tuple[Group | GroupPart, ...]
    reference: Families | None  # the reference schema; None: the first good simulation of this task makes it
    # The budget: wall-clock seconds, and bytes of results as Arrow. When it is used up, the task returns after the
    # current group, or after the current replicate of a group that runs in pieces.
    seconds: float
    bytes: int
    # None: whole groups, with their targets. Else the replicates to run of the one group. Empty: only the group's
    # targets, over the replicates that come with the task (TaskResult.buffers of earlier pieces).
    replicates: tuple[int, ...] | None = None
    # nothing else may run on the worker meanwhile, so that the simulations have the memory of all slots
    alone: bool = False
    per_worker: int | None = None  # simulations that run at once on a worker from now on; None: one for each slot
    pool_id: str = ""  # of the pool of child processes that runs the task on its worker; empty: that of the attempt
    # Whether a simulation finds the files of the previous one in its working folder. Only ``study check`` sets this, to
    # find models that read what they wrote.
    keep_folder: bool = False
    encode: bool = False  # whether a child process encodes the rows as Parquet, if the task has enough of them
    attempt: int | None = None  # for which the worker stores these files; None: it returns them
    # How many of a whole group's first replicates are stored already, by group; groups without any are left out. Their
    # results come with the task, if it has targets.
    taken_over: Mapping[int, int] = field(default_factory=dict)
    # The replicates to run that another job has run already, by group. Their results come with the task, and the task
    # returns them like those of the others.
    reused: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def has_input(self) -> bool:
        """Whether results of replicates come with the task."""
        return self.replicates == () or bool(self.reused) or bool(self.taken_over and self.context.targets)

    @property
    def key(self) -> str:
        """The Dask key."""
        # Dask groups tasks by the letters at the start of their keys. It queues only large groups of independent tasks
        # on the scheduler, and sends others to workers ahead of time. So all simulations of a job share a prefix, and
        # its tasks that depend on data have another one. Dask ignores the digits after the prefix.
        word = "targets" if self.has_input else "sim"
        return f"{word}{self.context.mark}{self.number}"

    @property
    def input_key(self) -> str:
        """The Dask key of the results that come with the task."""
        return f"given-{self.key}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Every Dask key of this task."""
        return (self.key, self.input_key) if self.has_input else (self.key,)

    @property
    def part_name(self) -> str:
        """The name of this task's anonymous files, which hold its buffers."""
        return f"mops-part-{self.key}."


def task_number(key: str) -> int:
    """Return the number of the task that has a Dask key (:attr:`TaskRequest.key`)."""
    return int(key.rpartition("-")[2])


class Failure(NamedTuple):
    """A simulation (``target`` is None) or a target (``replicate`` and ``seed`` are None) that failed."""

    group: int
    replicate: int | None
    seed: int | None
    target: str | None
    reason: str  # the verdict
    message: str
    traceback: str
    attempts: int
    signals: str = ""  # the evidence for the verdict, as text; empty: the model raised the error
    peak_bytes: int | None = None  # highest resident memory of the processes that the worker saw; None: it did not look
    peak_at_least: bool | None = None  # the worker killed the processes, so that the true peak is unknown
    limit_bytes: int | None = None  # the memory limit of the processes


def failures_bytes(failures: Sequence[Failure]) -> int:
    """Return the approximate memory of failures. A traceback that several of them share counts once."""
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
    """Rows of one output, of several simulations, as one Arrow stream in a buffer."""

    output: str
    offset: int
    length: int
    simulations: list[tuple[int, int]]  # (group, replicate), in the order of the rows
    rows: list[int]  # of each simulation
    families: Columns = field(default_factory=dict)  # of the columns


@dataclass(frozen=True)
class ResultBuffer:
    """One buffer from a child process: a mapped file and its segments."""

    buffer: pa.Buffer
    segments: list[Segment]


PartContent: TypeAlias = Any  # a file's content: a ``pyarrow.Buffer``, or a spool of the storage. pyarrow has no types.


@dataclass(frozen=True)
class PartFile:
    """A Parquet file with rows of one output that a child process has encoded, of groups that the task has finished."""

    # Rows that an earlier child process of the task has handed over are in its buffers.
    output: str
    groups: frozenset[int]
    rows: int
    bytes: int
    digest: str  # SHA-256 (hexadecimal)
    row_bytes: int  # as Arrow
    families: Columns  # of the columns
    content: PartContent  # a buffer, or a spool if the worker is the runner's process; None: it is stored at ``path``
    path: str = ""


@dataclass
class TaskResult:
    """The result of a task. Only groups in ``done`` count; the runner drops other rows of the buffers."""

    keys: tuple[str, ...]  # the task's Dask keys
    done: frozenset[int]
    seconds: float  # on one slot
    reference: Families | None
    replicates: frozenset[int] = frozenset()  # for a group that runs in pieces: the finished replicates, good or failed
    buffers: list[ResultBuffer] = field(default_factory=list)
    # with rows of groups in ``done``; ``buffers`` has none of these rows
    files: list[PartFile] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    prints: str = ""
    # What exceeded its share of memory and has to run again alone: groups, or replicates of a group in pieces.
    postponed: frozenset[int] = frozenset()
    peak_bytes: int = 0  # the highest resident memory of the task's processes
    # events for the job's log, because the worker's log is elsewhere
    reports: list[Report] = field(default_factory=list)
    # lines that the worker writes once to the job's log, for the same reason
    notes: list[str] = field(default_factory=list)
    children: str = ""  # how the worker starts child processes, and why; empty: it has started none
    allowed_bytes: int = 0  # the memory limit of the worker with all its processes
    own_bytes: int = 0  # the worker's memory without simulations
    # the files that the simulations left in their working folder, if the task keeps it
    written: list[str] = field(default_factory=list)
    worker: str = ""  # the address of the Dask worker that ran the task; empty: none did

    @property
    def is_empty(self) -> bool:
        """Whether the task finished and postponed nothing."""
        return not (self.done or self.replicates or self.postponed)

    @property
    def nbytes(self) -> int:
        """Bytes that the result takes: Arrow data, files, failures with their texts, losses."""
        in_files = sum(file.bytes for file in self.files if file.content is not None)
        return in_files + self._bytes_without_files

    @property
    def row_bytes(self) -> int:
        """Bytes of the result if all of its rows were Arrow data."""
        return sum(file.row_bytes for file in self.files) + self._bytes_without_files

    @property
    def _bytes_without_files(self) -> int:
        in_buffers = sum(int(each.buffer.size) for each in self.buffers)
        return in_buffers + failures_bytes(self.failures) + LOSS_BYTES * len(self.losses)


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


def counts_of_result(result: TaskResult, n_simulations: Callable[[int], int], n_targets: int) -> Counts:
    """Count a result's simulations and targets. Each target of a group without losses has failed."""
    # ``n_simulations``: Returns how many simulations of a group the job runs.
    failed = [failure for failure in result.failures if failure.target is None]
    without = {failure.group for failure in failed}
    failed_targets = sum(failure.target not in (None, "*") for failure in result.failures)
    n_run = sum(map(n_simulations, result.done))
    n_without = n_targets * len(without)
    n_scored = n_targets * len(result.done) - n_without - failed_targets
    verdicts = Counter(failure.reason for failure in result.failures if failure.target != "*")
    return Counts(n_run - len(failed), len(failed), n_scored, n_without + failed_targets, dict(verdicts))


def without_groups(result: TaskResult, removed: AbstractSet[int]) -> TaskResult:
    """Return a result of whole groups without some of them."""
    # The rows of one group cannot be removed from a file, so the other groups of such a file are removed too.
    removed = frozenset(removed).union(*(file.groups for file in result.files if file.groups & removed))
    return replace(
        result,
        done=result.done - removed,
        files=[file for file in result.files if not file.groups & removed],
        failures=[failure for failure in result.failures if failure.group not in removed],
        losses=[loss for loss in result.losses if loss.group not in removed],
    )


def without_work(result: TaskResult) -> TaskResult:
    """Return a result without all that it has finished, so that this runs again."""
    return replace(result, done=frozenset(), replicates=frozenset(), buffers=[], files=[], failures=[], losses=[])


def failed_simulations(result: TaskResult) -> Counter[str]:
    """Count a result's failed simulations by verdict."""
    return Counter(failure.reason for failure in result.failures if failure.replicate is not None)


def missing_losses(failures: Sequence[Failure]) -> Failure:
    """Return the one row that says why a group has no losses (docs/reference/models.md, "Targets")."""
    failed = [(failure.replicate, failure) for failure in failures if failure.replicate is not None]
    replicate, first = min(failed, key=itemgetter(0))
    others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    message = f"no losses: replicate {replicate} (seed {first.seed}){others} failed ({first.reason})"
    return Failure(first.group, None, None, "*", first.reason, message, "", first.attempts)


@dataclass(frozen=True)
class Task:
    """A planned task."""

    number: int
    groups: tuple[int, ...]
    replicates: tuple[int, ...] | None = None  # None: whole groups; empty: only the targets of the one group
    alone: bool = False  # nothing else may run on the worker meanwhile
    # Whether an earlier task with the same simulations killed its workers. One more death is enough to blame it.
    suspect: bool = False
    seconds: float = field(default=0.0, compare=False)  # expected on one slot, as far as it is known

    @property
    def units(self) -> tuple[int, ...]:
        """The groups of the task, or the replicates of its one group."""
        return self.groups if self.replicates is None else self.replicates

    def without(self, released: Collection[int]) -> Task:
        """Return the task without these groups, or without these replicates of its one group."""
        left = tuple(unit for unit in self.units if unit not in released)
        return replace(self, groups=left) if self.replicates is None else replace(self, replicates=left)
