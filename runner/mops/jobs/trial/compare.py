"""Compares two runs of one simulation exactly: rows in order, types, every bit; NaN equals NaN. Pure.

The order of outputs and of columns does not matter: a job stores them in the order of its reference schema.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Tables = Mapping[str, pa.Table]
Losses = Mapping[tuple[str, str], float]
"""Losses by target and name."""

_ABSENT = "absent"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class Difference:
    """One difference.

    Parameters
    ----------
    what
        The place: ``output 'daily', column 'y', row 3``.
    first, second
        The values, as text.
    """

    what: str
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
            yield Difference(f"{what}, column {name!r}, row {row}", _text(x[row]), _text(y[row]))


def _first_row(a: pa.Array, b: pa.Array) -> int | None:
    """Return the first row in which two arrays of one type and length differ."""
    if pa.types.is_floating(a.type):
        x, y = (column.to_numpy(zero_copy_only=False) for column in (a, b))
        bits = f"u{x.itemsize}"
        bits_differ = (x.view(bits) != y.view(bits)) & ~(np.isnan(x) & np.isnan(y))
        nulls_differ = np.asarray(pc.is_null(a)) != np.asarray(pc.is_null(b))
        rows = np.flatnonzero(bits_differ | nulls_differ)
        return int(rows[0]) if len(rows) else None
    if a.equals(b):
        return None
    if pa.types.is_nested(a.type):  # a nested value may hold NaN, which Arrow calls unequal
        pairs = zip(*(_without_times(column).to_pylist() for column in (a, b)), strict=True)
        return next((row for row, (x, y) in enumerate(pairs) if not _equal(x, y)), None)
    return bisect_left(range(len(a)), True, key=lambda row: not a.slice(0, row + 1).equals(b.slice(0, row + 1)))


def _equal(x: object, y: object) -> bool:
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal(x[key], y[key]) for key in x)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_equal, x, y))
    return repr(x) == repr(y)  # exact for floats, and equal for two NaN


def _text(value: pa.Scalar) -> str:
    plain = _without_times(value).as_py()
    text = str(plain) if pa.types.is_temporal(value.type) else repr(plain)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _without_times(values: Any) -> Any:
    """Return an array or a scalar with times as text, because Python's types cannot hold nanoseconds."""
    kind = _timeless(values.type)
    return values if kind == values.type else values.cast(kind)


def _timeless(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_timeless_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_timeless_field(kind.key_field), _timeless_field(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_timeless_field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_timeless_field(kind.value_field))
    return pa.list_(_timeless_field(kind.value_field)) if pa.types.is_list(kind) else kind


def _timeless_field(field: pa.Field) -> pa.Field:
    return field.with_type(_timeless(field.type))
