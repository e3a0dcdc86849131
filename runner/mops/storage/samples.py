"""Samples of a running job: its progress over time, without details, for ``mops jobs watch`` and reports.

A runner writes them about once a minute. They are advisory, and the last minute of a killed runner is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.json_records import JsonCodec
from mops.storage.paths import JobPaths, numbers_of
from mops.storage.progress_record import Progress

_MOST = 2**31  # attempts: the limit of their column

SAMPLES = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
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
        }.items()
    ]
)


@dataclass(frozen=True)
class _Samples:
    samples: list[Progress]


_SAMPLES = JsonCodec[_Samples](_Samples, advisory=True, without_defaults=True)


def write_samples(files: Files, paths: JobPaths, n: int, c: int, samples: Sequence[Progress]) -> None:
    """Write samples of attempt ``n`` as its object ``c``."""
    files.put(paths.events(n, c), _SAMPLES.encode(_Samples(list(samples))))


def read_samples(files: Files, paths: JobPaths, newest: int | None = None) -> list[tuple[int, Progress]]:
    """Return (attempt, sample) for the samples of a job's runners, in order, without unusable files.

    ``newest`` is the number of files to read, the last ones. StorageUnavailable: the storage is out of reach.
    """
    listed = [(numbers_of(entry.path), entry.path) for entry in advisory.listed(files, paths.samples)]
    ordered = sorted((*numbers, path) for numbers, path in listed if numbers and path.endswith(".json"))
    chosen = [one for one in ordered if one[0] < _MOST][-newest if newest else 0 :]
    read = advisory.read_many(files, [path for _, _, path in chosen], _SAMPLES.decode)
    found = zip(chosen, read, strict=True)
    return [(n, sample) for (n, _, _), record in found if record is not None for sample in record.samples]


def as_table(samples: Iterable[tuple[int, Progress]]) -> pa.Table:
    """Return samples as a table of :data:`SAMPLES`."""
    rows = [
        {
            **vars(one.finished),
            **vars(one),
            "attempt": n,
            "time": round(1000 * one.at),
            "durable": one.durable.simulations,
            "verdicts": list(one.finished.verdicts.items()),
        }
        for n, one in samples
    ]
    return pa.table([pa.array([row[f.name] for row in rows], f.type) for f in SAMPLES], schema=SAMPLES)
