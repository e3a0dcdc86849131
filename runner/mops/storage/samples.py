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
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import FORMAT, is_count, is_number, is_time, parse_object
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
_MOST_ATTEMPTS = 2**31  # and slots, and groups in flight: what their columns take


def write_samples(files: Files, paths: JobPaths, n: int, c: int, samples: Sequence[Sample]) -> None:
    """Write samples of attempt ``n`` as its object ``c``."""
    record = {"format": FORMAT, "samples": [asdict(sample) for sample in samples]}
    files.put(paths.events(n, c), json.dumps(record, separators=(",", ":")).encode())


def read_samples(files: Files, paths: JobPaths, newest: int | None = None) -> list[tuple[int, Sample]]:
    """Return (attempt, sample) for what a job's runners kept, in their order; objects of no use are left out.

    Parameters
    ----------
    newest
        Read so many objects only, the last ones; None: all.

    Raises
    ------
    StorageUnavailable
        The storage is out of reach.
    """
    listed = [(numbers_of(entry.path), entry.path) for entry in advisory.listed(files, paths.samples)]
    ordered = sorted((*numbers, path) for numbers, path in listed if numbers and path.endswith(".json"))
    chosen = [one for one in ordered if one[0] < _MOST_ATTEMPTS][-newest if newest else 0 :]
    read = advisory.read_many(files, [path for _, _, path in chosen], _samples)
    return [(n, sample) for (n, _, _), samples in zip(chosen, read, strict=True) for sample in samples or ()]


def _samples(data: bytes, where: str) -> list[Sample]:
    record = parse_object(data, where)
    try:
        return [_sample(one) for one in record["samples"]]
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        raise CorruptRecord("these samples are not what mops wrote", where=where) from bad


def _sample(one: Mapping[str, Any]) -> Sample:
    sample = Sample(**{name: one[name] for name in _NAMES})
    counted = [one[field.name] for field in SAMPLES if pa.types.is_integer(field.type) and field.name in one]
    named = all(isinstance(name, str) and is_count(n) for name, n in sample.verdicts.items())
    small = max(sample.in_flight, sample.slots) < _MOST_ATTEMPTS
    if not (is_time(sample.at) and is_number(sample.rate) and all(map(is_count, counted)) and named and small):
        raise ValueError("a value is none of its kind")
    return sample


def as_table(samples: Iterable[tuple[int, Sample]]) -> pa.Table:
    """Return samples as a table of :data:`SAMPLES`."""
    rows = list(samples)
    columns: dict[str, list[Any]] = {name: [getattr(sample, name) for _, sample in rows] for name in _NAMES}
    columns["attempt"] = [n for n, _ in rows]
    columns["time"] = [round(1000 * at) for at in columns.pop("at")]
    columns["verdicts"] = [list(verdicts.items()) for verdicts in columns["verdicts"]]
    return pa.table([pa.array(columns[one.name], one.type) for one in SAMPLES], schema=SAMPLES)
