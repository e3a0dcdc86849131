"""The live record: a running runner's report about itself. It is advisory."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import not_
from typing import Annotated, Any

from pydantic import Field

from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import JsonCodec, StoredCount, StoredNumber, StoredTime
from mops.storage.paths import JobPaths
from mops.verdicts import Counts


@dataclass(frozen=True)
class BestLoss:
    """The smallest loss of a target so far, and its parameter set."""

    target: str
    name: str
    loss: Annotated[float, Field(allow_inf_nan=False)]
    param_id: str


@dataclass(frozen=True)
class FailureCause:
    """Failures of an attempt with one cause: their verdict, the first message, and their number."""

    verdict: str
    message: str
    n: StoredCount


@dataclass(frozen=True)
class SlowStep:
    """A simulation or target that runs much longer than others.

    Parameters
    ----------
    replicate, target
        The replicate of a simulation; or the target, and then ``replicate`` is None.
    worker
        The host of the worker.
    since
        When it began (s since the epoch, by the clock of the runner's machine).
    seconds
        How long it had run when the runner wrote the record.
    times_median
        How many times the median of simulations that succeeded that is; None: unknown.
    """

    group: StoredCount
    param_id: str
    replicate: StoredCount | None
    target: str | None
    worker: str
    since: StoredTime
    seconds: StoredNumber
    times_median: StoredNumber | None = None


@dataclass(frozen=True)
class Live:
    """A runner's report: the only file of a job that mops overwrites.

    Parameters
    ----------
    at
        When the runner wrote the record (s since the epoch, by the clock of its machine).
    counts
        Counts of results that have reached the runner, and of those that earlier attempts committed.
    rate
        Simulations per second.
    seconds_left
        How long the attempt will still take; None: unknown.
    memory_bytes
        Resident memory of the runner's process tree.
    settings
        The attempt's settings: JSON values by field.
    durable
        Committed simulations.
    seconds
        Time since the attempt's start.
    peak_bytes, runner_bytes
        The peak memory of the process tree in this attempt, and the runner's own memory now.
    in_flight, slots
        Groups in flight, and simulations that run at once.
    open_bytes
        Results in the runner that are not committed yet.
    lines
        The last lines of the job's log.
    limit_bytes
        The memory limit of the container or of the machine, for the runner and its processes.
    window
        The limit of groups in flight at that moment.
    children
        How child processes start, and why.
    sizing
        The arithmetic of MODELOPS_JOB_BATCH_SIZE=auto.
    next_commit_s
        Seconds until the next commit, at the latest; None: no result waits for one.
    best
        The smallest loss of each target, in all attempts.
    causes
        The most frequent causes of failures in this attempt.
    slow
        Simulations and targets that run much longer than others, the longest first; at a stop, those that ran then.
    """

    at: StoredTime
    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    counts: Counts
    rate: StoredNumber
    memory_bytes: StoredCount
    settings: dict[str, Any]
    durable: StoredCount = 0
    seconds: StoredNumber = 0.0
    peak_bytes: StoredCount = 0
    runner_bytes: StoredCount = 0
    in_flight: StoredCount = 0
    slots: StoredCount = 0
    open_bytes: StoredCount = 0
    lines: list[str] = field(default_factory=list)
    limit_bytes: StoredCount = 0
    window: StoredCount = 0
    children: str = ""
    sizing: str = ""
    next_commit_s: StoredNumber | None = None
    seconds_left: StoredNumber | None = None
    best: list[BestLoss] = field(default_factory=list)
    causes: list[FailureCause] = field(default_factory=list)
    slow: Annotated[list[SlowStep], Field(exclude_if=not_)] = field(default_factory=list)

    def left_at(self, now: float, seconds: float | None) -> float | None:
        """Return how much of some seconds, which were left when the runner wrote the record, is left at a time (s)."""
        return None if seconds is None else max(seconds - max(now - self.at, 0.0), 0.0)


_LIVE = JsonCodec[Live](Live, advisory=True)


def write_live(files: Files, paths: JobPaths, attempt: int, live: Live) -> None:
    """Overwrite the attempt's live record."""
    files.put(paths.live(attempt), _LIVE.encode(live))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Live | None:
    """Return the attempt's last live record; None: there is none, or it is unusable (:mod:`mops.storage.advisory`)."""
    return advisory.read(files, paths.live(attempt), _LIVE.decode)
