"""Reads parameter sets from a CSV or Parquet file, some thousands at a time.

The file has a column for each parameter, and possibly a column of seeds. parameter_cells.py reads the values, and
a GroupBuilder takes the sets.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mops.errors import path_fault
from mops.study.checks import SEED, Checks, json_text, name_fault
from mops.study.groups import Column, GroupBuilder
from mops.study.parameter_cells import (
    CsvColumn,
    Place,
    arrow_column,
    csv_seeds,
    invisible_in,
    type_fault,
    wrong_values,
)

_ROWS_AT_ONCE = 16_384
_READ_BYTES = 1 << 20
_FIELD = "$.parameter_sets"
_SAVE_AS = "save it as 'CSV UTF-8'"
_NO_VALUE = "has no value in any column, as rows that a spreadsheet leaves, and is a set without parameters"
_UNNAMED = re.compile(r"Unnamed: [0-9]+(_level_[0-9]+)?|\.\.\.[0-9]+")


def read_sets(folder: Path, name: str, check: Checks, builder: GroupBuilder) -> Callable[[int], str]:
    """Read the file that a study names; return a function that names the place of an entry."""
    # ``check`` gets every problem: at the study's field if the file is missing, else at a place in the file.
    # ``builder`` gets the sets until the first problem.
    readers = {".csv": (_read_csv, "line"), ".parquet": (_read_parquet, "row")}
    read, row = readers.get(Path(name).suffix.lower(), (None, ""))
    if read is None:
        what = f"{json_text(name)} is neither .csv nor .parquet"
        check.add(_FIELD, f"{what}; save the sets as one of them, or write them as a list")
    elif fault := _file_fault(folder / name, name):
        check.add(_FIELD, fault)
    else:
        read(folder / name, _Sets(name, row, check, builder))
    return lambda number: f"{name}, {row} {number}"


def _file_fault(path: Path, name: str) -> str | None:
    try:
        if path.is_dir():
            return f"{json_text(name)} is a folder; name a file in it"
        if not path.is_file():
            return f"there is no file {json_text(name)}: {path.absolute()}"
        return None if os.access(path, os.R_OK) else f"{json_text(name)} is not readable; check its owner and mode"
    except (OSError, ValueError) as bad:
        return f"{json_text(name)} cannot be read: {path_fault(bad)}"


class _Sets:
    """Checks the rows of one file, and gives them to the builder."""

    def __init__(self, name: str, row: str, check: Checks, builder: GroupBuilder):
        self._name, self._row, self.check, self.builder = name, row, check, builder

    def problem(self, message: str, number: int | None = None, column: object = None) -> None:
        self.check.add(self.place(number, column), message)

    def place(self, number: int | None = None, column: object = None) -> str:
        row = "" if number is None else f", {self._row} {number}"
        return f"{self._name}{row}" + ("" if column is None else f", column {column}")

    def can_be_parameters(self, names: Sequence[str], number: int | None = None) -> bool:
        """Check the names of the columns."""
        before = self.check.n_problems
        for i, fault in faults_of_names(names):
            self.problem(fault, number, i)
        return self.check.n_problems == before

    def places(self, name: str, numbers: Sequence[int]) -> Place:
        return lambda i: self.place(numbers[i], repr(name))

    def take(self, columns: Mapping[str, Column], seeds: Sequence[int | None], numbers: Sequence[int]) -> None:
        """Take rows whose cells have been read."""
        if self.check.n_problems:
            return
        texts = self.builder.add(columns, seeds, numbers)
        if columns and "{}" in texts:
            for number in (number for number, text in zip(numbers, texts, strict=True) if text == "{}"):
                self.check.note(self.place(number), _NO_VALUE)


def faults_of_names(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each column whose name cannot be a parameter's, from 1, and what is wrong with the name."""
    counts = Counter(names)
    for i, name in enumerate(names, 1):
        if fault := _column_fault(name, i):
            yield i, fault
        elif counts[name] > 1 and names.index(name) < i - 1:
            yield i, f"the name {name!r} appears twice; keep one"


def _column_fault(name: str, position: int) -> str | None:
    if not name:
        index = " (pandas writes its index there: to_csv(..., index=False); R: write.csv(..., row.names=FALSE))"
        return f"has no name; give it one, or remove the column{index if position == 1 else ''}"
    if name.startswith("__index_level_"):
        return f"{name!r} is the index of a pandas frame; write the file with to_parquet(..., index=False)"
    if _UNNAMED.fullmatch(name):
        return f"{name!r} is what pandas or R calls a column without a name, such as an index; remove it, or rename it"
    if name != name.strip():
        return f"the name {name!r} begins or ends with a space; write {name.strip()!r}"
    if character := invisible_in(name):
        return f"the name {name!r} has an invisible character ({character}); remove it"
    return name_fault(name)


def fault_of_one_column(name: str, first: Sequence[str] | None) -> str | None:
    """Return why a CSV file with one column has other separators, from its first row; None: it may have one column."""
    for separator, its_name in ((";", "';'"), ("\t", "tabs")):
        if separator in name and (first is None or any(separator in cell for cell in first)):
            return f"its cells are separated by {its_name}; save it with commas, and with decimal points"
    return None


def _note_of_one_column(name: str, first: Sequence[str] | None) -> str | None:
    """Return the note that a CSV file with one column may have several."""
    for separator in ";\t| ":
        n = name.count(separator)
        if n and (separator in ";\t" or n == (first or [""])[0].count(separator)):
            return f"the file has one column, {name!r}; if these are several columns, save it with commas"
    return None


def _read_csv(path: Path, sets: _Sets) -> None:
    with path.open("rb") as file:
        begin = file.read(4)
        if begin == b"PAR1":
            sets.problem("is a Parquet file; name it .parquet")
            return
        if begin.startswith((b"\xff\xfe", b"\xfe\xff")):
            sets.problem(f"is UTF-16 text; {_SAVE_AS}")
            return
        file.seek(0)
        reader = csv.reader(_lines(file, sets), strict=True)
        try:
            _read_rows(reader, sets)
        except csv.Error as bad:
            open_quote = "a quote is opened and not closed" if "unexpected end" in str(bad) else bad
            sets.problem(f"is not CSV: {open_quote}", reader.line_num)


def _lines(file: Iterable[bytes], sets: _Sets) -> Iterator[str]:
    """Yield the lines of a file, up to the first line that is not text, without a byte order mark."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as bad:
            sets.problem(f"byte {bad.start + 1} is not UTF-8; {_SAVE_AS}", number)
            return


def _read_rows(reader: Any, sets: _Sets) -> None:
    before = sets.check.n_problems
    header = next(reader, None)
    if header is None:
        if sets.check.n_problems == before:
            sets.problem("is empty; its first line must name the parameters")
        return
    first = next(reader, None)
    if len(header) == 1 and (fault := fault_of_one_column(header[0], first)):
        sets.problem(fault, 1)
        return
    if not sets.can_be_parameters(header, 1):
        return
    if len(header) == 1 and (note := _note_of_one_column(header[0], first)):
        sets.check.note(sets.place(1), note)
    readers = {name: CsvColumn() for name in header if name != SEED}
    for rows, numbers in _row_batches(first, reader, len(header), sets):
        _take_rows(header, rows, numbers, readers, sets)
    for column in readers.values():
        if found := column.fault():
            sets.check.add(*found)
    if not sets.builder.numbers and not sets.check.n_problems:
        sets.problem("has a header and no rows")


def _take_rows(
    header: list[str], rows: list[list[str]], numbers: list[int], readers: dict[str, CsvColumn], sets: _Sets
) -> None:
    columns: dict[str, Column] = {}
    seeds: list[int | None] = [None] * len(rows)
    for name, cells in zip(header, zip(*rows, strict=True), strict=True):
        place = sets.places(name, numbers)
        if name == SEED:
            seeds = csv_seeds(cells, place, sets.check)
        else:
            columns[name] = readers[name].read(cells, place, sets.check)
    sets.take(columns, seeds, numbers)


def _row_batches(
    first: list[str] | None, reader: Any, n_cells: int, sets: _Sets
) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield rows with their line numbers, some thousands at a time. A wrong number of cells is a problem."""
    rows: list[list[str]] = []
    numbers: list[int] = []
    for row in chain([] if first is None else [first], reader):  # `line_num` is the line of the first row until then
        if row and len(row) != n_cells:
            cells = f"{len(row)} cell{'' if len(row) == 1 else 's'}"
            sets.problem(f"has {cells}, but the header has {n_cells}", reader.line_num)
        elif row:
            rows.append(row)
            numbers.append(reader.line_num)
        if len(rows) == _ROWS_AT_ONCE:
            yield rows, numbers
            rows, numbers = [], []
            if sets.builder.full:
                return
    if rows:
        yield rows, numbers


def _read_parquet(path: Path, sets: _Sets) -> None:
    try:
        with pq.ParquetFile(path, buffer_size=_READ_BYTES) as file:
            _read_batches(file, sets)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as bad:
        sets.problem(f"cannot be read as Parquet: {str(bad).splitlines()[0].rstrip('.')}")


def _read_batches(file: pq.ParquetFile, sets: _Sets) -> None:
    schema = file.schema_arrow
    good = sets.can_be_parameters(schema.names)
    for field in schema:
        if fault := type_fault(field.name, field.type):
            sets.problem(fault, column=repr(field.name))
            good = False
    if not schema.names or not file.metadata.num_rows:
        sets.problem("has no rows" if schema.names else "has no columns")
        return
    if not good:
        return
    start = 1
    for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
        numbers = range(start, start := start + len(batch))
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            place = sets.places(name, numbers)
            for i, fault in wrong_values(name, column):
                sets.check.add(place(i), fault)
        if not sets.check.n_problems:
            sets.take(*_read_batch(batch), numbers)
        if sets.builder.full:
            return


def _read_batch(batch: pa.RecordBatch) -> tuple[dict[str, Column], list[int | None]]:
    """Return the parameters and the seeds of rows."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    seeds = columns.pop(SEED, pa.nulls(len(batch))).to_pylist()
    return {name: arrow_column(column) for name, column in columns.items()}, seeds


def is_plain(table: pa.Table) -> bool:
    """Tell whether :func:`take_table` can read a table; else its rows show what is wrong with it."""
    return len(table) > 0 and not any(
        name_fault(field.name)
        or type_fault(field.name, field.type)
        or any(next(wrong_values(field.name, chunk), None) for chunk in column.chunks)
        for field, column in zip(table.schema, table.columns, strict=True)
    )


def take_table(table: pa.Table, builder: GroupBuilder) -> None:
    """Give the rows of a plain table to a builder."""
    # A column without any value has no parameter.
    table = table.select([name for name in table.column_names if table[name].null_count < len(table) or name == SEED])
    start = 0
    for batch in table.to_batches(_ROWS_AT_ONCE):
        builder.add(*_read_batch(batch), range(start, start := start + len(batch)))
        if builder.full:
            return
