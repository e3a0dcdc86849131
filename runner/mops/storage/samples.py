"""Samples of a running job: its progress, rate and memory over time, for ``mops jobs watch`` and reports.

A runner writes them about once a minute. They are advisory, and the last minute of a killed runner is missing.
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

_TYPES = {
    "attempt": pa.int32(),
    "time": pa.timestamp("ms", "UTC"),
    **dict.fromkeys(("simulations_good", "simulations_failed", "targets_good", "targets_failed"), pa.int64()),
    "durable": pa.int64(),
    "rate": pa.float64(),
    "memory_bytes": pa.int64(),
    "runner_bytes": pa.int64(),
    "in_flight": pa.int32(),
    "slots": pa.int32(),
    "open_bytes": pa.int64(),
    "verdicts": pa.map_(pa.string(), pa.int64()),
}
SAMPLES = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _TYPES.items()])

_MOST = 2**31  # attempts, groups in flight and slots: the limit of their columns
_Count32: TypeAlias = Annotated[int, Field(ge=0, lt=_MOST)]


@dataclass(frozen=True)
class Sample:
    """A job's progress at one moment. The counts include earlier attempts."""

    at: StoredTime  # by the runner's clock
    simulations_good: StoredCount  # results that have reached the runner, as the next three
    simulations_failed: StoredCount
    targets_good: StoredCount
    targets_failed: StoredCount
    durable: StoredCount  # committed simulations
    rate: StoredNumber  # simulations per second since the previous sample
    memory_bytes: StoredCount  # resident, of the runner's process tree
    runner_bytes: StoredCount  # resident, of the runner alone
    in_flight: _Count32  # groups
    slots: _Count32  # simulations that run at once
    open_bytes: StoredCount  # of results in the runner that are not committed yet, as Arrow
    verdicts: Mapping[str, StoredCount]  # of failed simulations and targets

    @property
    def simulations(self) -> int:
        """Simulations that have reached the runner, good and failed."""
        return self.simulations_good + self.simulations_failed


@dataclass(frozen=True)
class _Samples:
    samples: list[Sample]


_SAMPLES = JsonCodec[_Samples](_Samples, advisory=True)


def write_samples(files: Files, paths: JobPaths, n: int, c: int, samples: Sequence[Sample]) -> None:
    """Write samples of attempt ``n`` as its object ``c``."""
    files.put(paths.events(n, c), _SAMPLES.encode(_Samples(list(samples))))


def read_samples(files: Files, paths: JobPaths, newest: int | None = None) -> list[tuple[int, Sample]]:
    """Return (attempt, sample) for the samples of a job's runners, in order, without unusable files.

    ``newest`` is the number of files to read, the last ones. StorageUnavailable: the storage is out of reach.
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
    columns: dict[str, list[Any]] = {
        one.name: [getattr(sample, one.name) for _, sample in rows] for one in fields(Sample)
    }
    columns["attempt"] = [n for n, _ in rows]
    columns["time"] = [round(1000 * at) for at in columns.pop("at")]
    columns["verdicts"] = [list(verdicts.items()) for verdicts in columns["verdicts"]]
    return pa.table([pa.array(columns[one.name], one.type) for one in SAMPLES], schema=SAMPLES)
