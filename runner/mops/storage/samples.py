"""Samples of a running job: its progress, rate and memory over time, for ``mops jobs watch`` and reports.

A runner writes a few samples as one small file about once a minute. They are advisory, and the last minute of a killed
runner is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

import pyarrow as pa
from pydantic import Field

from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import JsonCodec, StoredCount, StoredNumber, StoredTime
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

_MOST = 2**31  # attempts, groups in flight and slots: the limit of their columns
_Count32: TypeAlias = Annotated[int, Field(ge=0, lt=_MOST)]


@dataclass(frozen=True)
class Sample:
    """A job's progress at one moment. The counts include earlier attempts.

    Parameters
    ----------
    at
        The moment (s since the epoch, the runner's clock).
    simulations_good, simulations_failed, targets_good, targets_failed
        Results that have reached the runner.
    durable
        Committed simulations.
    rate
        Simulations per second since the previous sample.
    memory_bytes, runner_bytes
        Resident memory of the runner's process tree, and of the runner alone.
    in_flight
        Groups in flight.
    slots
        Simulations that run at once.
    open_bytes
        Bytes of results in the runner that are not committed yet, as Arrow.
    verdicts
        How many simulations and targets failed, by verdict.
    """

    at: StoredTime
    simulations_good: StoredCount
    simulations_failed: StoredCount
    targets_good: StoredCount
    targets_failed: StoredCount
    durable: StoredCount
    rate: StoredNumber
    memory_bytes: StoredCount
    runner_bytes: StoredCount
    in_flight: _Count32
    slots: _Count32
    open_bytes: StoredCount
    verdicts: Mapping[str, StoredCount]

    @property
    def simulations(self) -> int:
        """Simulations that have reached the runner, good and failed."""
        return self.simulations_good + self.simulations_failed


_NAMES = tuple(one.name for one in fields(Sample))


@dataclass(frozen=True)
class _Samples:
    samples: list[Sample]


_SAMPLES = JsonCodec[_Samples](_Samples, advisory=True)


def write_samples(files: Files, paths: JobPaths, n: int, c: int, samples: Sequence[Sample]) -> None:
    """Write samples of attempt ``n`` as its object ``c``."""
    files.put(paths.events(n, c), _SAMPLES.encode(_Samples(list(samples))))


def read_samples(files: Files, paths: JobPaths, newest: int | None = None) -> list[tuple[int, Sample]]:
    """Return (attempt, sample) for the samples of a job's runners, in order, without unusable files.

    Parameters
    ----------
    newest
        Read only this number of files, the last ones; None: all.

    Raises
    ------
    StorageUnavailable
        The storage is out of reach.
    """
    listed = [(numbers_of(entry.path), entry.path) for entry in advisory.listed(files, paths.samples)]
    ordered = sorted((*numbers, path) for numbers, path in listed if numbers and path.endswith(".json"))
    chosen = [one for one in ordered if one[0] < _MOST][-newest if newest else 0 :]
    read = advisory.read_many(files, [path for _, _, path in chosen], _SAMPLES.decode)
    found = zip(chosen, read, strict=True)
    return [(n, sample) for (n, _, _), record in found if record is not None for sample in record.samples]


def as_table(samples: Iterable[tuple[int, Sample]]) -> pa.Table:
    """Return samples as a table of :data:`SAMPLES`."""
    rows = list(samples)
    columns: dict[str, list[Any]] = {name: [getattr(sample, name) for _, sample in rows] for name in _NAMES}
    columns["attempt"] = [n for n, _ in rows]
    columns["time"] = [round(1000 * at) for at in columns.pop("at")]
    columns["verdicts"] = [list(verdicts.items()) for verdicts in columns["verdicts"]]
    return pa.table([pa.array(columns[one.name], one.type) for one in SAMPLES], schema=SAMPLES)
