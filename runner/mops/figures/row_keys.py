"""Finds what tells the rows of a simulation apart, and divides the rows of a figure by it.

A figure over simulations has one value of each simulation at each place. If an output has several rows for it, such as
one for each region, the figure is divided by the columns that tell these rows apart. It never pools them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from mops.errors import UsageError
from mops.figures.choices import IDENTITY, INDEX_NAMES, MOST_DIVISIONS
from mops.figures.columns import Flags, Integers, is_number, numbers
from mops.study.casts import converted

MOST_KEYS = 3
_MOST_CANDIDATES = 12
_OF_SIMULATION = ("group", "replicate")


@dataclass(frozen=True)
class FigureRows:
    """The rows of an output for a figure."""

    rows: pa.Table  # the columns ``group``, ``replicate`` and the ``ys``, and ``x`` of a fan chart
    output: str
    ys: Sequence[str]
    n_sets: int  # that have run
    n_sets_read: int  # those whose rows these are
    by: str | None = None  # what divides the figure; None: nothing
    divisions: pa.ChunkedArray | None = None  # of each row


def has_one_row(rows: pa.Table, at: Sequence[str] = ()) -> bool:
    """Tell whether no simulation has several rows with the same values of the columns ``at``."""
    return _n_places(rows, at) == len(rows)


def n_different(columns: Sequence[pa.ChunkedArray]) -> int:
    """Return the number of different rows of some columns."""
    names = [str(i) for i in range(len(columns))]  # pyarrow parses names such as '.5'
    return int(pa.table(list(columns), names).group_by(names).aggregate([]).num_rows)


def _n_places(rows: pa.Table, at: Sequence[str]) -> int:
    return n_different([rows[name] for name in (*_OF_SIMULATION, *at)])


def candidates(schema: pa.Schema, without: Sequence[str | None]) -> list[str]:
    """Return the columns that may tell rows apart: texts and booleans, then integers and dates."""
    known = [field for field in schema if field.name not in {*IDENTITY, *without}]
    texts = [field.name for field in known if _is_text(field.type)]
    return texts + [field.name for field in known if pt.is_integer(field.type) or pt.is_date(field.type)]


def keys_of_rows(rows: pa.Table, at: Sequence[str], names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the fewest columns that tell the rows of each simulation apart; None: no choice of 1 to 3 columns does."""
    # ``at``: the columns that give the place of a row; empty: each simulation should have one row
    # ``names``: the columns that may tell rows apart, the most telling first
    # A number or a date, unless it is called ``age`` or the like, tells rows apart only if each place of each
    # simulation has all combinations of the values of the columns. Otherwise a count, which differs from row to row by
    # chance, would divide the figure.
    probe = _with_most_rows(rows, at)
    varying = [name for name in names if len(probe[name].unique()) > 1][:_MOST_CANDIDATES]
    for n in range(1, MOST_KEYS + 1):
        for keys in combinations(varying, n):
            if _are_keys(probe, at, keys) and _are_keys(rows, at, keys):
                return keys
    return None


def _with_most_rows(rows: pa.Table, at: Sequence[str]) -> pa.Table:
    """Return the rows of the simulation that has the most rows for one place."""
    names = [str(i) for i in range(len(at) + 2)]
    places = pa.table([rows[name] for name in (*_OF_SIMULATION, *at)], names)
    counts = places.group_by(names).aggregate([([], "count_all")])
    fullest = counts.slice(int(np.argmax(counts["count_all"].to_numpy())), 1)
    mine = [pc.equal(places[name], fullest[name][0]) for name in names[:2]]
    return rows.filter(pc.and_(*mine))


def _are_keys(rows: pa.Table, at: Sequence[str], keys: Sequence[str]) -> bool:
    if not has_one_row(rows, [*at, *keys]):
        return False
    if all(_is_text(rows.schema.field(name).type) or name.lower() in INDEX_NAMES for name in keys):
        return True
    n_at_place = math.prod(len(rows[name].unique()) for name in keys)
    return _n_places(rows, at) * n_at_place == len(rows)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_boolean(kind))


def placed(rows: pa.Table, at: Sequence[str]) -> Flags:
    """Tell which rows have a place: no value of the columns ``at`` is missing, NaN or infinite."""
    found = np.ones(len(rows), bool)
    for name in at:
        column = rows[name]
        found &= pc.is_valid(column).to_numpy()
        if is_number(column.type):
            found &= np.isfinite(numbers(column))
    return found


def check_one_row(
    rows: pa.Table, at: Sequence[str], output: str, by: str | None = None, divisions: pa.ChunkedArray | None = None
) -> None:
    """Raise UsageError if a simulation has several rows for a place and a division."""
    columns = [rows[name] for name in (*_OF_SIMULATION, *at)]
    if n_different(columns if divisions is None else [*columns, divisions]) < len(rows):
        raise several_rows(output, at, by=by)


def several_rows(output: str, at: Sequence[str], keys: pa.Table | None = None, by: str | None = None) -> UsageError:
    """Return the error of an output that has several rows of a simulation for a place."""
    # ``keys``: The columns that tell the rows apart, if they have too many values to divide a figure; None: none does.
    # ``by``: What divides the figure and does not tell the rows apart.
    what = f"simulations have several rows of {output!r}{f' for one {at[0]!r}' if at else ''}"
    if by is not None:
        hint = "name all columns that tell the rows apart, such as by=['region', 'sex'], or choose rows with where=..."
        return UsageError(f"{what} and one {by!r}", where="by", hint=hint)
    if keys is None:
        hint = "return one row for each place, or a text column such as 'region' that tells the rows apart"
        return UsageError(f"{what}, and no column tells these rows apart", hint=hint)
    names, n = " and ".join(map(repr, keys.column_names)), n_different(keys.columns)
    chosen = {name: keys[name].drop_null()[0].as_py() for name in keys.column_names}
    hint = f"choose some of them, such as job.plot.fan({output!r}, where={chosen!r})"
    return UsageError(f"{what}, one for each of the {n:,} values of {names}", hint=hint)


def check_divisions(names: str, n: int) -> None:
    """Raise UsageError if a figure would have more divisions than it can show."""
    if n > MOST_DIVISIONS:
        hint = f"a figure shows at most {MOST_DIVISIONS} values: choose rows with where=..., or name another column"
        raise UsageError(f"{names} has {n:,} values", where="by", hint=hint)


def division_texts(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return what the division of each row is called; null if there is one column and the row has no value of it."""
    texts = [_texts(column) for column in columns]
    if len(texts) == 1:
        return texts[0]
    return pc.binary_join_element_wise(*texts, ", ", null_handling="replace", null_replacement="none")


def division_text(by: str | None, division: str | None) -> str:
    """Return what a division is called in texts: ``region = north``, or ``without region``; empty: nothing divides."""
    if by is None:
        return ""
    return f"without {by}" if division is None else f"{by} = {division}"


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values as texts, booleans as study.json writes them."""
    if pt.is_boolean(column.type):
        return pc.if_else(column, "true", "false")
    if pt.is_floating(column.type):  # as Python writes them
        return pa.chunked_array([[None if value is None else str(value) for value in column.to_pylist()]], pa.string())
    return converted(column, pa.string())


def places_of_divisions(divisions: pa.ChunkedArray | None, n_rows: int) -> tuple[list[str | None], Integers]:
    """Return the names of the divisions, numbers by their value and null last, and the place of each row among them."""
    if divisions is None:
        return [None], np.zeros(n_rows, np.int64)
    encoded = divisions.combine_chunks().dictionary_encode()
    found: list[str] = encoded.dictionary.to_pylist()
    names: list[str | None] = [*sorted(found, key=_sort_key(found)), None]
    place = np.array([names.index(name) for name in found] + [len(found)], np.int64)
    codes = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return names, place[codes]


def _sort_key(names: Sequence[str]) -> type[float] | type[str]:
    try:
        return float if list(map(float, names)) else str
    except ValueError:
        return str


def of_each_division(rows: pa.Table, divisions: pa.ChunkedArray | None) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield each division that has rows, with its rows."""
    names, place = places_of_divisions(divisions, len(rows))
    for i in np.unique(place).tolist():
        yield names[i], rows.filter(pa.array(place == i))
