"""Compares two runs of one simulation exactly: rows in order, types, every bit; NaN equals NaN. Pure.

The order of outputs and of columns does not matter: a job stores them in the order of its reference schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.jobs.compare.values import differing, without_times

Tables = Mapping[str, pa.Table]
Losses = Mapping[tuple[str, str], float]  # by target and name

_ABSENT = "absent"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Difference:
    """One difference; the values as text."""

    what: str  # the place: `output 'daily', column 'y', row 3`
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first} the first time, {self.second} the second"


def differing_tables(first: Tables, second: Tables) -> list[Difference]:
    """Return the differences of the outputs of two runs: for each column, the first row that differs."""
    return [difference for name in {**first, **second} for difference in _of_output(name, first, second)]


def differing_losses(first: Losses, second: Losses) -> list[Difference]:
    """Return the losses that differ between two runs of the targets."""
    found = []
    for target, name in {**first, **second}:
        key = target, name
        once, twice = (repr(losses[key]) if key in losses else _ABSENT for losses in (first, second))
        if once != twice:
            found.append(Difference(f"target {target!r}, loss {name!r}", once, twice))
    return found


def _of_output(output: str, first: Tables, second: Tables) -> Iterator[Difference]:
    what = f"output {output!r}"
    if output not in first or output not in second:
        yield Difference(what, *("present" if output in tables else _ABSENT for tables in (first, second)))
        return
    a, b = first[output], second[output]
    if a.num_rows != b.num_rows:
        yield Difference(f"{what}, rows", str(a.num_rows), str(b.num_rows))
    n_rows = min(a.num_rows, b.num_rows)
    for name in dict.fromkeys([*a.column_names, *b.column_names]):
        x, y = (table[name].combine_chunks() if name in table.column_names else None for table in (a, b))
        if x is None or y is None or x.type != y.type:
            types = (_ABSENT if column is None else str(column.type) for column in (x, y))
            yield Difference(f"{what}, column {name!r}", *types)
            continue
        row = _first_row(x.slice(0, n_rows), y.slice(0, n_rows))
        if row is not None:
            yield Difference(f"{what}, column {name!r}, row {row}", _text(x.slice(row, 1)), _text(y.slice(row, 1)))


def _first_row(a: pa.Array, b: pa.Array) -> int | None:
    rows = np.flatnonzero(differing(a, b))
    return int(rows[0]) if len(rows) else None


def _text(value: pa.Array) -> str:
    plain = without_times(value)[0].as_py()
    text = str(plain) if pa.types.is_temporal(value.type) else repr(plain)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
