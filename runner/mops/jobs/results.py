"""Summarises the tables of a job's results: their parts, the best parameter sets, the reasons of failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from mops.jobs.failures.causes import without_varying

CHUNK_ROWS = 10_000

_MOST_REASONS = 1_000

_OTHER_REASONS = "other messages"


@dataclass(frozen=True)
class FilteredPart:
    """A part without the rows of some groups: ``without`` has their intervals, from start up to stop."""

    path: str
    without: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TableSummary:
    """The committed rows of one table of a job's results.

    Parameters
    ----------
    kind, name
        ``outputs`` and the output's name, or twice ``losses`` or ``failures``.
    folder
        The folder of its parts. It may also hold parts of a killed runner, which do not count and are not in ``paths``.
    paths
        Parts in which every row counts.
    filtered
        Parts of a derived job's sources in which the rows of some groups do not count.
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
    """A reason of failures: how many simulations and targets, the verdict, the first line of the message."""

    n: int
    verdict: str
    message: str


def count_reasons(batches: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Count failures by reason (columns ``reason`` and ``message``), the most frequent first."""
    # Messages have one reason if their first lines are equal without what varies, as for causes
    # (mops.jobs.failures.causes). A cause also has a place and a target, for which mops would read all tracebacks.
    reasons: dict[tuple[str, str], Reason] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        keyed = table.append_column("kind", without_varying(table["message"]))
        keyed = keyed.append_column("row", pa.array(range(len(table)), pa.int64()))
        found = keyed.group_by(["reason", "kind"]).aggregate([([], "count_all"), ("row", "min")]).sort_by("row_min")
        columns = (found[name].to_pylist() for name in ("reason", "kind", "count_all", "row_min"))
        for verdict, text, n, row in zip(*columns, strict=True):
            kind, message = (verdict, text), table["message"][row].as_py().partition("\n")[0]
            if kind not in reasons and len(reasons) >= _MOST_REASONS:
                kind, message = (verdict, _OTHER_REASONS), _OTHER_REASONS
            known = reasons.get(kind, Reason(0, verdict, message))
            reasons[kind] = replace(known, n=known.n + n)
    return sorted(reasons.values(), key=lambda reason: -reason.n)
