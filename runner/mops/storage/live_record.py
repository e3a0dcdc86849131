"""The live record: what a runner says of itself while it runs. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mops.errors import CorruptRecord
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.records import counts_from
from mops.storage.json_records import FORMAT, encode_json, is_count, is_number, is_time, parse_object
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

    at: float
    host: str
    pid: int
    counts: Counts
    rate: float
    memory_bytes: int
    settings: dict[str, Any]
    durable: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    runner_bytes: int = 0
    in_flight: int = 0
    slots: int = 0
    open_bytes: int = 0
    expected: dict[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    limit_bytes: int = 0
    window: int = 0
    children: str = ""
    sizing: str = ""


def write_live(files: Files, paths: JobPaths, attempt: int, live: Live) -> None:
    """Overwrite the attempt's sign of life."""
    files.put(paths.live(attempt), encode_json({"format": FORMAT, **asdict(live)}))


def read_live(files: Files, paths: JobPaths, attempt: int) -> Live | None:
    """Return the attempt's last sign of life; None if it left none, or one of no use (:mod:`mops.storage.advisory`)."""
    return advisory.read(files, paths.live(attempt), parse_live)


def parse_live(data: bytes, where: str) -> Live:
    """Return the sign of life that these bytes are.

    Raises
    ------
    NewerFormat, CorruptRecord
        It is of a newer mops, or not what mops wrote: each value is looked at, because commands reckon with it.
    """
    found = parse_object(data, where)
    try:
        known = {one.name: found[one.name] for one in fields(Live) if one.name in found}
        live = Live(**known | {"counts": counts_from(found["counts"])})
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        raise CorruptRecord(f"the sign of life lacks {bad}", where=where) from bad
    fits = all(_FITS[str(one.type)](known[one.name]) for one in fields(Live) if one.name in known)
    if not (fits and is_time(live.at) and 0 < live.pid < _MOST_PIDS):
        raise CorruptRecord("the sign of life has a value that is none of its kind", where=where)
    return live


_MOST_PIDS = 2**31

# By the annotations of Live.
_FITS: dict[str, Callable[[Any], bool]] = {
    "float": is_number,
    "int": is_count,
    "str": lambda value: isinstance(value, str),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "dict[str, Any] | None": lambda value: value is None or isinstance(value, dict),
    "list[str]": lambda value: isinstance(value, list) and all(isinstance(line, str) for line in value),
    "Counts": lambda value: isinstance(value, dict),
}
