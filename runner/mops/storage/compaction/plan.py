"""Decides which parts of a job a compaction merges. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from mops.storage.joblog.current_parts import CurrentPart
from mops.storage.paths import table_of

SMALL_BYTES = 16 << 20
"""Parts of this size and above stay as they are."""

FULL_BYTES = 64 << 20
"""The most that a merged part holds, before its rows are encoded again. No checkpoint writes larger parts by default,
`verify` holds four of them in memory, and Azure stores one in one request."""

FEWEST_PARTS = 4
"""The fewest parts to merge. Fewer small parts fit into one of FULL_BYTES only at the end of a table."""

Merge: TypeAlias = Sequence[CurrentPart]
"""Parts of one table that follow one another, in the order of the table."""


def merges(
    parts: Iterable[CurrentPart], fewest_in_table: int = FEWEST_PARTS, most_in_merge: int | None = None
) -> list[Merge]:
    """Return what to merge, so that the rows of each table keep their order.

    Parameters
    ----------
    parts
        All parts of the job that count, in their order.
    fewest_in_table
        Leave a table alone if fewer of its parts would be merged.
    most_in_merge
        The most parts of one merge; None: any number.
    """
    tables = defaultdict[tuple[str, str | None], list[CurrentPart]](list)
    for part in parts:
        tables[table_of(part.part.path)].append(part)
    found = [[run for run in _runs(table, most_in_merge) if len(run) >= FEWEST_PARTS] for table in tables.values()]
    return [run for runs in found if sum(map(len, runs)) >= fewest_in_table for run in runs]


def _runs(table: Iterable[CurrentPart], most: int | None) -> Iterator[Merge]:
    """Yield small parts that follow one another and fit into one part."""
    run: list[CurrentPart] = []
    n_bytes = 0
    for part in table:
        is_small = part.part.bytes < SMALL_BYTES
        if not is_small or n_bytes + part.part.bytes > FULL_BYTES or len(run) == most:
            yield run
            run, n_bytes = [], 0
        if is_small:
            run.append(part)
            n_bytes += part.part.bytes
    yield run
