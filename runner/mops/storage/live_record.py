"""The live record: what a runner says of itself while it runs. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import JsonCodec, StoredCount, StoredNumber, StoredTime
from mops.storage.paths import JobPaths
from mops.verdicts import Counts


@dataclass(frozen=True)
class Live:
    """A sign of life: the only object that is overwritten, and none that decides anything.

    Parameters
    ----------
    at
        When it was written (s since the epoch, the runner's clock).
    counts
        What has reached the runner, and what earlier attempts committed.
    rate
        Simulations per second.
    memory_bytes
        Resident memory of the runner's process tree.
    settings
        What the attempt runs with: JSON values by field.
    durable
        Simulations that are committed.
    seconds
        Since the attempt began.
    peak_bytes, runner_bytes
        The tree's memory at its highest in this attempt, and the runner's own now.
    in_flight, slots
        Groups sent and not yet back, and simulations that run at once.
    open_bytes
        Results in the runner that are not durable yet.
    expected
        What the attempt was expected to take and give when it had looked: ``seconds``, ``rows``, ``bytes``.
    lines
        The last lines of the job's log.
    limit_bytes
        What the runner and its processes may take: its container's, or the machine's.
    window
        The most groups in flight at that moment.
    children
        How child processes are started, and why.
    sizing
        The arithmetic of MODELOPS_JOB_BATCH_SIZE=auto.
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
    expected: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    limit_bytes: StoredCount = 0
    window: StoredCount = 0
    children: str = ""
    sizing: str = ""


_LIVE = JsonCodec[Live](Live, advisory=True)


def write_live(files: Files, paths: JobPaths, attempt: int, live: Live) -> None:
    """Overwrite the attempt's sign of life."""
    files.put(paths.live(attempt), _LIVE.encode(live))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Live | None:
    """Return the attempt's last sign of life; None if it left none, or one of no use (:mod:`mops.storage.advisory`)."""
    return advisory.read(files, paths.live(attempt), _LIVE.decode)
