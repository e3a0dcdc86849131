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
class Live:
    """A runner's report: the only file of a job that mops overwrites. Times are by the clock of its machine."""

    at: StoredTime  # when the runner wrote the record
    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    counts: Counts  # of results that have reached the runner, and of those that earlier attempts committed
    rate: StoredNumber  # simulations per second
    memory_bytes: StoredCount  # resident, of the runner's process tree
    settings: dict[str, Any]  # of the attempt: JSON values by field
    durable: StoredCount = 0  # committed simulations
    seconds: StoredNumber = 0.0  # since the attempt's start
    peak_bytes: StoredCount = 0  # of the process tree in this attempt
    runner_bytes: StoredCount = 0  # of the runner itself, now
    in_flight: StoredCount = 0  # groups
    slots: StoredCount = 0  # simulations that run at once
    open_bytes: StoredCount = 0  # results in the runner that are not committed yet
    lines: list[str] = field(default_factory=list)  # the last of the job's log
    limit_bytes: StoredCount = 0  # the memory limit of the container or of the machine
    window: StoredCount = 0  # the limit of groups in flight at that moment
    children: str = ""  # how child processes start, and why
    sizing: str = ""  # the arithmetic of MODELOPS_JOB_BATCH_SIZE=auto
    next_commit_s: StoredNumber | None = None  # until then at the latest; None: no result waits for a commit
    seconds_left: StoredNumber | None = None  # of the attempt; None: unknown
    best: list[BestLoss] = field(default_factory=list)  # the smallest loss of each target, in all attempts
    causes: list[FailureCause] = field(default_factory=list)  # the most frequent ones of this attempt
    # The longest first; at a stop, those that ran then.
    slow: Annotated[list[SlowStep], Field(exclude_if=not_)] = field(default_factory=list)

    def left_at(self, now: float, seconds: float | None) -> float | None:
        """Return how much of ``seconds``, which were left when the runner wrote the record, is left at a time."""
        return None if seconds is None else max(seconds - max(now - self.at, 0.0), 0.0)


_LIVE = JsonCodec[Live](Live, advisory=True)


def write_live(files: Files, paths: JobPaths, attempt: int, live: Live) -> None:
    """Overwrite the attempt's live record."""
    files.put(paths.live(attempt), _LIVE.encode(live))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Live | None:
    """Return the attempt's last live record; None: there is none, or it is unusable (:mod:`mops.storage.advisory`)."""
    return advisory.read(files, paths.live(attempt), _LIVE.decode)
