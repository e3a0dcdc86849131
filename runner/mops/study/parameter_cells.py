"""Reads cells of CSV and columns of Parquet as parameters, by the rules of docs/reference/study.md.

The functions here return columns of JSON (:class:`mops.study.groups.Column`), from which the param_id follows.
Spreadsheets, R and pandas write ``TRUE``, ``0,5`` or ``1 000``. mops reads a cell as JSON, so these would be text:
:func:`look_of` recognises them, and a column of them is a problem.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.study.casts import converted, nearest_floats
from mops.study.checks import SEED, SEED_LIMIT, SEED_RIGHT, WHOLE_KINDS, Checks, json_text, kind_of, value_fault
from mops.study.groups import Column, json_column

Place = Callable[[int], str]  # returns the place of the cell in row ``i`` of a column, for problems

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_ABSENT = "leave the cell empty if the parameter is absent"
_READ_AS_TEXT = 'is read as text; write 0.5 and not .5, true and not True (for a text, write """True""")'
_INVISIBLE = "has an invisible character ({}), and is text with it; remove it if you do not want it"
_TEXT_AMONG_OTHERS = "is text, but other cells of this column are not"
_RIGHT_TYPES = "a parameter is a boolean, a number or a string; convert the column before writing it"


# What a text looks like. ``letter``: a boolean, if the column has both letters of a pair. ``code``: a number with zeros
# in front or with underscores, such as a postcode.
Look = Literal["bool", "letter", "number", "code", "missing", "text"]

_WORDS = frozenset(
    (
        *("true", "false", "yes", "no", "on", "off"),
        *("wahr", "falsch", "vrai", "faux", "verdadero", "falso", "vero", "verdadeiro"),  # of spreadsheets
    )
)
_LETTER_PAIRS = ({"t", "f"}, {"y", "n"})
_MISSING_WORDS = frozenset(("na", "n/a", "#n/a", "<na>", "none", "nil", "."))
_SPACES = "\u0020\u00a0\u2009\u202f"
_INVISIBLE_CHARACTER = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2012\u2013\u2014\ufe63\uff0d", "-"))
_FOREIGN_NUMBER = re.compile(
    r"[-+]?"
    rf"(?:[0-9]{{1,3}}(?:[,.'\u2019{_SPACES}][0-9]{{3}})+(?:[.,][0-9]*)?|[0-9]+[.,]?[0-9]*|[.,][0-9]+)"
    rf"(?:[eE][-+]?[0-9]+)?[{_SPACES}]?%?"
)
_CODE = re.compile(r"0\d+")


class Cell(NamedTuple):
    """A cell of CSV: the value's JSON and kind, what is wrong with it, and what a text looks like."""

    text: str | None = None
    kind: str | None = None
    fault: str | None = None
    look: Look | None = None


def invisible_in(text: str) -> str | None:
    """Return the first invisible character, as ``U+200B``; None: there is none."""
    found = _INVISIBLE_CHARACTER.search(text)
    return None if found is None else f"U+{ord(found[0]):04X}"


def look_of(cell: str) -> Look:
    """Tell what a text that is not JSON looks like."""
    text = _INVISIBLE_CHARACTER.sub("", cell).strip(_SPACES + "\t\r\n").translate(_MINUS)
    word = text.lower()
    if word in _WORDS:
        return "bool"
    if any(word in pair for pair in _LETTER_PAIRS):
        return "letter"
    if word in _MISSING_WORDS or not word:
        return "missing"
    if _CODE.fullmatch(text):
        return "code"
    return "number" if _FOREIGN_NUMBER.fullmatch(text) else "text"


# For columns of few texts: bench/tricks.py, check of a grid in CSV. 65,536 cells took 30 MiB.
@lru_cache(maxsize=1 << 10)
def read_cell(cell: str) -> Cell:
    """Read one cell as JSON. A cell that is not JSON is a string."""
    bare = cell.strip(" \t\r\n")
    if bare in ("", "null"):
        return Cell()
    if bare in ("true", "false"):
        return Cell(bare, "bool")
    if number := _NUMBER.fullmatch(bare):
        try:
            value = float(bare) if number.lastindex else int(bare)
        except ValueError:
            return Cell(fault="has more digits than an integer may have")
        fault = value_fault(value)
        return Cell(fault=f"{fault}, or {_ABSENT}") if fault else Cell(repr(value), kind_of(value))
    if bare.startswith('"'):
        try:
            text = json.loads(bare)
        except ValueError:
            return Cell(encode_basestring(bare), "str")
        fault = value_fault(text)
        return Cell(fault=fault) if fault else Cell(encode_basestring(text), "str")
    return _unquoted(cell)


def _unquoted(cell: str) -> Cell:
    text, look = Cell(encode_basestring(cell), "str"), look_of(cell)
    try:
        is_finite = math.isfinite(float(cell))
    except ValueError:
        return text._replace(look=look)
    if not is_finite:
        return Cell(fault=f"{cell.strip()} is not a finite number; write one, or {_ABSENT}")
    return text._replace(look="code" if look == "code" or "_" in cell else "number")


_FLOATS = r"^-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"
_EXACT_INTEGERS = r"^(0|-?[1-9][0-9]{0,14})$"


def plain_numbers(cells: Sequence[str]) -> Column | None:
    """Read cells as :func:`read_cell` does, if all are floats or short integers."""
    # bench/tricks.py, check of CSV: -23 % of the time; of a million sets, -50 %.
    column = pa.array(cells, pa.string())
    are_whole = pc.match_substring_regex(column, _EXACT_INTEGERS)
    if are_whole.true_count == len(cells):
        return Column(column, {"int"})
    if not pc.all(pc.or_(are_whole, pc.match_substring_regex(column, _FLOATS))).as_py():
        return None
    floats = nearest_floats(column)
    if not np.isfinite(floats).all():
        return None
    if are_whole.true_count == 0:
        return json_column(floats.tolist())
    both = zip(cells, are_whole.to_pylist(), strict=True)
    return json_column([int(cell) if whole else float(cell) for cell, whole in both])


@dataclass
class CsvColumn:
    """What the cells of a column of CSV are, over all batches."""

    looks: set[str] = field(default_factory=set)  # the kinds of JSON values, and the Look of texts
    letters: set[str] = field(default_factory=set)  # the single letters that may be booleans
    first: tuple[str, str] | None = None  # the place and the text of the first boolean or number that is not JSON

    def read(self, cells: Sequence[str], place: Place, check: Checks) -> Column:
        """Read cells."""
        if (numbers := plain_numbers(cells)) is not None:
            self.looks |= numbers.kinds
            return numbers
        read = [read_cell(cell) for cell in cells]
        kinds = {cell.kind for cell in read if cell.kind}
        is_mixed = "str" in kinds and len(kinds) > 1
        for i, cell in enumerate(read):
            if cell.fault:
                check.add(place(i), cell.fault)
            elif cell.look is not None:
                if cell.look == "letter":
                    self.letters.add(cells[i].strip().lower())
                if self.first is None and cell.look in ("bool", "letter", "number"):
                    self.first = place(i), cells[i]
                if note := _note_of(cells[i], cell.look):
                    check.note(place(i), note)
                    continue
            if is_mixed and cell.kind == "str":
                check.note(place(i), _TEXT_AMONG_OTHERS)
        self.looks |= {cell.look or cell.kind or "missing" for cell in read}
        return Column(pa.array([cell.text for cell in read], pa.string()), kinds)

    def fault(self) -> tuple[str, str] | None:
        """Return the place of a cell, and why the column cannot be what its user meant; None: it can."""
        # A column of booleans or of numbers that are text would make the model calculate with texts.
        looks = self.looks - {"missing"}
        if self.first is None or not looks & {"bool", "letter", "number"}:
            return None
        place, cell = self.first
        # Letters are booleans if the column has both of a pair.
        are_booleans = self.letters in _LETTER_PAIRS or ("bool" in looks and not self.letters)
        if looks <= {"bool", "letter"} and are_booleans:
            kind, right = "booleans", "true and false"
        elif looks <= {"number", "float", *WHOLE_KINDS}:
            kind, right = "numbers", "numbers with a decimal point, an ASCII minus and no other characters"
        else:
            return None
        quoted = '"' + encode_basestring(cell).replace('"', '""') + '"'
        what = f"the column has only {kind}, and {cell!r} is text in JSON"
        return place, f"{what}; write {right} (for texts, write {quoted})"


def _note_of(cell: str, look: Look) -> str | None:
    """Return what the user of a text may not have meant."""
    if character := invisible_in(cell):
        return _INVISIBLE.format(character)
    is_word = cell.strip().lower() in ("true", "false")
    return _READ_AS_TEXT if is_word or look in ("number", "code") else None


def csv_seeds(cells: Sequence[str], place: Place, check: Checks) -> list[int | None]:
    """Read the column ``seed`` of CSV."""
    seeds: list[int | None] = []
    for i, cell in enumerate(cells):
        read = read_cell(cell)
        seed = int(read.text) if read.text and read.kind in WHOLE_KINDS else None
        if (read == Cell()) or (seed is not None and 0 <= seed < SEED_LIMIT):
            seeds.append(seed)
        else:
            check.add(place(i), f"{json_text(cell) if seed is None else seed} is not {SEED_RIGHT}")
    return seeds


def type_fault(name: str, kind: pa.DataType) -> str | None:
    """Return why a column of this type cannot be a parameter, or the seed; None: it can."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_null(kind) or pa.types.is_integer(kind):
        return None
    if name == SEED:
        return (
            f"is {kind}, and seeds are integers; write it as uint64 (pandas: astype('UInt64'), "
            "which also keeps rows without a seed)"
        )
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return None
    return f"is {kind}, and {_RIGHT_TYPES}"


def wrong_values(name: str, column: pa.Array) -> Iterator[tuple[int, str]]:
    """Yield the rows of a column, whose type :func:`type_fault` accepts, with a wrong value, and what is wrong."""
    column = decoded(column)
    if name == SEED:
        wrong = ((i, seed) for i, seed in enumerate(column.to_pylist()) if seed is not None and seed < 0)
        yield from ((i, f"{seed} is not {SEED_RIGHT}") for i, seed in wrong)
    elif pa.types.is_floating(column.type):
        values = nearest_floats(column.fill_null(0.0))
        for i in np.flatnonzero(~np.isfinite(values)).tolist():
            fault = f"{json_text(float(values[i]))} is not a finite number"
            yield i, f"{fault}; write one, or null if the parameter is absent"


def decoded(column: pa.Array) -> pa.Array:
    """Return a column without a dictionary, which pandas and polars use for categories."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    # Of polars; pyarrow cannot take from an array of views.
    return converted(column, pa.string() if pa.types.is_string_view(kind) else kind)


def arrow_column(column: pa.Array) -> Column:
    """Read a column of an Arrow table whose type :func:`type_fault` accepts, without wrong values."""
    column = decoded(column)
    if column.null_count == len(column):
        return Column(pa.nulls(len(column), pa.string()), set())
    if not pa.types.is_floating(column.type):
        return json_column(column.to_pylist())
    absent = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return json_column(nearest_floats(column).tolist(), absent)
