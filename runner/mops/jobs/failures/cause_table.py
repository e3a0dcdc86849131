"""Reads the failures and parameters of a job, and makes the table of causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import CorruptRecord
from mops.jobs.failures.causes import COLUMNS, Cause, causes_of
from mops.jobs.failures.narrow_ranges import narrow_ranges
from mops.jobs.results import CHUNK_ROWS
from mops.storage.dataset import dataset_of
from mops.storage.files import Files
from mops.storage.params_file import load_groups
from mops.storage.paths import JobPaths
from mops.storage.sources import PartRows
from mops.study.ids_and_seeds import canonical_json
from mops.study.ranges import Ranges
from mops.task import FAILURES

CAUSES = pa.schema(
    [
        pa.field("cause", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("target", pa.string()),
        pa.field("place", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("sets", pa.int64(), nullable=False),
        pa.field("ranges", pa.list_(pa.string()), nullable=False),
        pa.field("param_id", pa.string(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("replicate", pa.int32()),
        pa.field("seed", pa.uint64()),
        pa.field("params", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
    ]
)

# The most causes with ranges: a person reads no more, and each costs time for each chunk of parameter sets.
_WITH_RANGES = 50


@dataclass(frozen=True)
class FailedJob:
    """A job, and its committed failures."""

    files: Files
    paths: JobPaths
    failures: Sequence[PartRows]
    finished: Ranges  # the groups that have run

    def causes(self) -> pa.Table:
        """Return the table of ``Job.causes``."""
        dataset = dataset_of(self.files, self.paths.job, self.failures, FAILURES, dictionaries=("traceback",))
        batches = dataset.to_batches(columns=list(COLUMNS), batch_size=CHUNK_ROWS, fragment_readahead=1)
        causes = causes_of(batches)
        ranges = narrow_ranges(self._params, [cause.groups for cause in causes[:_WITH_RANGES]], self.finished)
        ranges += [[]] * (len(causes) - len(ranges))
        rows = [_row(cause, list(map(str, narrow))) for cause, narrow in zip(causes, ranges, strict=True)]
        groups = load_groups(self.files, self.paths)
        params = [{"params": canonical_json(groups.group(row["group"]).params)} for row in rows]
        return pa.Table.from_pylist([row | its for row, its in zip(rows, params, strict=True)], schema=CAUSES)

    def _params(self) -> Iterator[pa.RecordBatch]:
        path = self.paths.params
        try:
            with self.files.reader(path) as source:
                file = pq.ParquetFile(source)
                columns = [name for name in file.schema_arrow.names if name not in ("param_id", "seeds", "params")]
                yield from file.iter_batches(CHUNK_ROWS, columns=columns)
        except (OSError, pa.ArrowException) as bad:
            what = f"the table of parameter sets cannot be read: {bad}"
            raise CorruptRecord(what, where=f"{self.files.url}/{path}") from bad


def _row(cause: Cause, ranges: list[str]) -> dict[str, Any]:
    first = cause.first
    message = first["message"].strip()
    return {
        "cause": message.partition("\n")[0],
        "verdict": first["reason"],
        "stage": "model" if first["target"] is None else "target",
        "place": cause.place,
        "n": cause.n,
        "sets": len(cause.groups),
        "ranges": ranges,
        **{name: first[name] for name in ("target", "param_id", "group", "replicate", "seed", "message", "traceback")},
    }
