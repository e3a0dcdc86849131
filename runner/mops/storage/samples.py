"""Samples of a running job: where it stood, how fast, in how much memory. Kept with the job for watch and for reports.

A runner writes a few of them as one small object about once a minute. They decide nothing, and a killed runner's last
minute is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from mops.errors import CorruptRecord
from mops.storage.files import Files
from mops.storage.jobs import FORMAT, parse_object
from mops.storage.paths import JobPaths, numbers_of

SAMPLES = pa.schema(
    [
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("simulations_good", pa.int64(), nullable=False),
        pa.field("simulations_failed", pa.int64(), nullable=False),
        pa.field("targets_good", pa.int64(), nullable=False),
        pa.field("targets_failed", pa.int64(), nullable=False),
        pa.field("durable", pa.int64(), nullable=False),
        pa.field("rate", pa.float64(), nullable=False),
        pa.field("memory_bytes", pa.int64(), nullable=False),
        pa.field("runner_bytes", pa.int64(), nullable=False),
        pa.field("in_flight", pa.int32(), nullable=False),
        pa.field("slots", pa.int32(), nullable=False),
        pa.field("open_bytes", pa.int64(), nullable=False),
        pa.field("verdicts", pa.map_(pa.string(), pa.int64()), nullable=False),
    ]
)


@dataclass(frozen=True)
class Sample:
    """Where a job stood at one moment. Counts are of the whole job, earlier attempts included.

    Parameters
    ----------
    at
        When (s since the epoch, the runner's clock).
    simulations_good, simulations_failed, targets_good, targets_failed
        What has reached the runner.
    durable
        Simulations that are committed.
    rate
        Simulations per second since the sample before.
    memory_bytes, runner_bytes
        Resident memory of the runner's process tree, and of the runner alone.
    in_flight
        Groups sent and not yet back.
    slots
        Simulations that run at once.
    open_bytes
        Results that are in the runner and not yet durable, as Arrow.
    verdicts
        How many simulations and targets failed, by verdict.
    """

    at: float
    simulations_good: int
    simulations_failed: int
    targets_good: int
    targets_failed: int
    durable: int
    rate: float
    memory_bytes: int
    runner_bytes: int
    in_flight: int
    slots: int
    open_bytes: int
    verdicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def simulations(self) -> int:
        """Simulations that have reached the runner, good and failed."""
        return self.simulations_good + self.simulations_failed


_NAMES = tuple(one.name for one in fields(Sample))


def write_samples(files: Files, paths: JobPaths, n: int, c: int, samples: Sequence[Sample]) -> None:
    """Write samples of attempt ``n`` as its object ``c``."""
    record = {"format": FORMAT, "samples": [asdict(sample) for sample in samples]}
    files.put(paths.events(n, c), json.dumps(record, separators=(",", ":")).encode())


def read_samples(files: Files, paths: JobPaths, newest: int | None = None) -> list[tuple[int, Sample]]:
    """Return (attempt, sample) for what a job's runners kept, in their order.

    Parameters
    ----------
    newest
        Read so many objects only, the last ones; None: all.

    Raises
    ------
    NewerFormat, CorruptRecord
        An object is of a newer mops, or not what mops wrote.
    StorageError
        The storage refuses, or is out of reach.
    """
    listed = [(numbers_of(entry.path), entry.path) for entry in files.list(paths.samples)]
    ordered = sorted((*numbers, path) for numbers, path in listed if numbers and path.endswith(".json"))
    chosen = ordered[-newest:] if newest else ordered
    read = files.get_many([path for _, _, path in chosen])
    return [
        (n, sample)
        for (n, _, path), data in zip(chosen, read, strict=True)
        if data is not None  # gone since it was listed: the job is being deleted
        for sample in _samples(data, f"{files.url}/{path}")
    ]


def _samples(data: bytes, where: str) -> list[Sample]:
    record = parse_object(data, where)
    try:
        return [_sample(one) for one in record["samples"]]
    except (KeyError, TypeError) as bad:
        raise CorruptRecord("these samples are not what mops wrote", where=where) from bad


def _sample(one: Mapping[str, Any]) -> Sample:
    return Sample(**{name: one[name] for name in _NAMES})


def as_table(samples: Iterable[tuple[int, Sample]]) -> pa.Table:
    """Return samples as a table of :data:`SAMPLES`."""
    rows = list(samples)
    columns: dict[str, list[Any]] = {name: [getattr(sample, name) for _, sample in rows] for name in _NAMES}
    columns["attempt"] = [n for n, _ in rows]
    columns["time"] = [round(1000 * at) for at in columns.pop("at")]
    columns["verdicts"] = [list(verdicts.items()) for verdicts in columns["verdicts"]]
    return pa.table([pa.array(columns[one.name], one.type) for one in SAMPLES], schema=SAMPLES)
