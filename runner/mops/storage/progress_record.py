"""The progress of a job, as its runner reports it: one record for programs, terminals, metrics and the storage.

The *live record* of an attempt is its last progress in the storage: advisory, and the only file of a job that mops
overwrites. *Samples* are the same records over time (samples.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field

from mops.errors import MopsError
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import JsonCodec, StoredCount, StoredNumber, StoredTime
from mops.storage.paths import JobPaths
from mops.units import to_go
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
    """A simulation or target that runs much longer than others."""

    group: StoredCount
    param_id: str
    replicate: StoredCount | None  # None: a target
    target: str | None
    worker: str  # its host
    since: StoredTime  # by the clock of the runner's machine
    seconds: StoredNumber  # until the runner wrote the record
    times_median: StoredNumber | None = None  # of simulations that succeeded; None: unknown


@dataclass(frozen=True)
class RunnerError:
    """The error that ended an attempt: the name of its class, and what a terminal shows of it."""

    kind: str
    what: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: Exception) -> RunnerError:
        """Return the record of an error, which is a defect of mops if it is no MopsError."""
        kind = type(error).__name__
        if isinstance(error, MopsError):
            return cls(kind, error.what, error.where, error.hint)
        return cls(kind, f"{kind}: {error}".partition("\n")[0])


_Count32: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


def _countable(counts: Counts) -> Counts:
    numbers = [n for name, n in vars(counts).items() if name != "verdicts"]
    if not all(0 <= n < 2**63 for n in (*numbers, *counts.verdicts.values())):
        raise ValueError("these are no counts")
    return counts


_Counts: TypeAlias = Annotated[Counts, AfterValidator(_countable)]


@dataclass(frozen=True)
class Progress:
    """Where a job stands. Times of the day are by the clock of the runner's machine.

    Parameters
    ----------
    at
        When the runner looked (s since the epoch).
    finished, durable
        Counts of what has reached the runner, and of what is committed, in all attempts.
    job, total
        The name of the job, and its simulations.
    rate
        Simulations per second over the last 20 s; 0 before the first result. In a sample: since the one before.
    waits_for, waits_since
        What the runner waits for before anything can run: ``workers`` or ``the Dask scheduler``; empty: nothing. Since
        when (s since the epoch).
    seconds_left
        Seconds until the end, without what runs much longer than others; None: unknown.
    seconds
        Time since the attempt began.
    memory_bytes, peak_bytes
        Resident memory of the runner's process tree, now and at its peak.
    in_flight, slots
        Groups in flight, and simulations that run at once.
    window
        The most groups in flight.
    children
        How child processes start, and why; empty before one has run a simulation.
    sizing
        How MODELOPS_JOB_BATCH_SIZE=auto chose the window; empty before it did, and if a number is set.
    ended
        Simulations that have reached the runner in this attempt, by verdict; good ones as ``good``.
    inherited
        Counts of the groups that earlier attempts committed, and of those that a retry took over.
    n_groups, n_groups_durable, n_groups_committed
        Groups of the job, those that are committed, and those that this attempt has committed.
    limit_bytes
        The memory limit of the container or of the machine; 0: unknown.
    next_commit_s
        Seconds until the next commit, at the latest; None: no result waits for one.
    best
        The smallest loss of each target, in all attempts.
    causes
        The most frequent causes of failures in this attempt.
    slow
        Simulations and targets that run much longer than others, the longest first; at a stop, those that ran then.
    host, pid
        The runner's process.
    runner_bytes, open_bytes
        Resident memory of the runner alone, and bytes of results in it that are not committed yet, as Arrow.
    lines
        The last lines of the job's log.
    settings
        Settings of the attempt: JSON values by field.
    error
        The error that ended the attempt; None: none did, or the runner could not write it.
    """

    at: StoredTime
    finished: _Counts
    job: str = ""
    durable: _Counts = field(default_factory=Counts)
    total: StoredCount = 0
    rate: StoredNumber = 0.0
    seconds: StoredNumber = 0.0
    memory_bytes: StoredCount = 0
    peak_bytes: StoredCount = 0
    in_flight: _Count32 = 0
    slots: _Count32 = 0
    waits_for: str = ""
    waits_since: StoredTime = 0.0
    seconds_left: StoredNumber | None = None
    window: StoredCount = 0
    children: str = ""
    sizing: str = ""
    ended: Mapping[str, StoredCount] = field(default_factory=dict)
    inherited: _Counts = field(default_factory=Counts)
    n_groups: StoredCount = 0
    n_groups_durable: StoredCount = 0
    n_groups_committed: StoredCount = 0
    limit_bytes: StoredCount = 0
    next_commit_s: StoredNumber | None = None
    best: tuple[BestLoss, ...] = ()
    causes: tuple[FailureCause, ...] = ()
    slow: tuple[SlowStep, ...] = ()
    host: str = ""
    pid: Annotated[int, Field(gt=0, lt=2**31)] = 0  # 0: the record does not say
    runner_bytes: StoredCount = 0
    open_bytes: StoredCount = 0
    lines: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    error: RunnerError | None = None

    @property
    def left(self) -> int:
        """Simulations that have neither succeeded nor failed."""
        return self.total - self.finished.simulations

    @property
    def outlook(self) -> str:
        """What the runner waits for, or how long the job still takes, for people; empty: unknown."""
        if self.waits_for:
            return f"waits for {self.waits_for} since {datetime.fromtimestamp(self.waits_since):%H:%M:%S}"
        return to_go(self.seconds_left, len(self.slow))

    def aged(self, now: float) -> Progress:
        """Return the record as a reader shows it later: with less time left."""
        age = max(now - self.at, 0.0)
        left, commit = (None if s is None else max(s - age, 0.0) for s in (self.seconds_left, self.next_commit_s))
        return replace(self, seconds_left=left, next_commit_s=commit)

    def sample(self) -> Progress:
        """Return what a sample keeps."""
        kept = {name: getattr(self, name) for name in _SAMPLED}
        return Progress(self.at, self.finished, rate=round(self.rate, 3), **kept)


_SAMPLED = ("durable", "memory_bytes", "runner_bytes", "in_flight", "slots", "open_bytes")


_LIVE = JsonCodec[Progress](Progress, advisory=True, without_defaults=True)


def write_live(files: Files, paths: JobPaths, attempt: int, now: Progress) -> None:
    """Overwrite the attempt's live record."""
    files.put(paths.live(attempt), _LIVE.encode(now))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Progress | None:
    """Return the attempt's last live record; None: there is none, or it is unusable (:mod:`mops.storage.advisory`)."""
    return advisory.read(files, paths.live(attempt), _LIVE.decode)


def write_error(files: Files, paths: JobPaths, attempt: int, seconds: float, error: Exception) -> None:
    """Add the error that ends an attempt to its live record; ``seconds``: how long it took, if it has no record yet."""
    last = read_live(files, paths, attempt) or Progress(
        time.time(), Counts(), paths.job, seconds=seconds, host=os.uname().nodename, pid=os.getpid()
    )
    write_live(files, paths, attempt, replace(last, error=RunnerError.of(error)))
