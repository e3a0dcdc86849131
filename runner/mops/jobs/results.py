"""What a job gave, as Arrow tables that are read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

READERS = 16

CHUNK_ROWS = 10_000

MOST_REASONS = 1_000

OTHER_REASONS = "others, each with a message of its own"


@dataclass(frozen=True)
class FilteredPart:
    """A part whose rows count, but those of the groups ``without``: intervals, each from its start up to its stop."""

    path: str
    without: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Table:
    """One table of a job's results: what is committed of it.

    Parameters
    ----------
    kind, name
        ``outputs`` and the model's name for it, or twice ``losses`` or ``failures``.
    folder
        Where its parts lie. Parts that a killed runner left there too do not count: ``paths`` has those that do.
    paths
        Parts of which every row counts.
    filtered
        Of a derived job: parts of an ancestor in which the rows of some groups do not count.
    """

    kind: str
    name: str
    rows: int
    bytes: int
    folder: str
    paths: tuple[str, ...]
    filtered: tuple[FilteredPart, ...] = ()


@dataclass(frozen=True)
class Reason:
    """Why simulations or targets failed: how many, the verdict, the first line of its message."""

    n: int
    verdict: str
    message: str


def reasons_in(failures: pa.RecordBatch) -> Iterator[tuple[str, str, int]]:
    """Yield (verdict, first line of the message, how many) of failures, in the order in which they came."""
    table = pa.Table.from_batches([failures])
    found = table.group_by(["reason", "message"], use_threads=False).aggregate([([], "count_all")])
    columns = (found[name].to_pylist() for name in ("reason", "message", "count_all"))
    for verdict, message, n in zip(*columns, strict=True):
        yield verdict, message.partition("\n")[0], n
