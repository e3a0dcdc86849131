"""Reads ``mops.toml`` in the project root: data outside the project, and data to compare outputs with.

``[data]`` lists the paths of data outside the project that a model needs. Each worker reads the file in the bundle, and
checks that the data is on its machine::

    [data]
    paths = ["/data/population.parquet"]

``[[observed]]`` names a CSV file of the project for a column of an output, for figures::

    [[observed]]
    output = "daily"
    x = "day"
    y = "infected"
    file = "data/cases.csv"

The file has the columns ``x`` and ``y``. A job's bundle has both files, so a report shows the data that the job had.
"""

from __future__ import annotations

import io
import os
import posixpath
import socket
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as pt

from mops.errors import DataError, UsageError, nearest

FILE = "mops.toml"
_DATA_FORM = 'write absolute paths, like: paths = ["/data/population.parquet"]'
_OBSERVED_KEYS = ("output", "x", "y", "file")
_OBSERVED_FORM = f"write [[observed]], and below it the texts {', '.join(_OBSERVED_KEYS)}"


def read_data_paths(root: Path) -> tuple[str, ...]:
    """Return the paths that the project declares in ``mops.toml`` of the root. UsageError: the file is not valid."""
    file = root / FILE
    try:
        tables = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ()
    except OSError as bad:
        raise UsageError(f"{FILE} cannot be read: {bad.strerror}", where=str(file)) from bad
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
        raise UsageError(f"{FILE} is not TOML: {bad}", where=str(file)) from bad
    where = str(file)
    _refuse_misspelled(tables, "[data]", where)
    if "observed" not in tables:
        _refuse_misspelled(tables, "[[observed]]", where)
    data = tables.get("data", {})
    if not isinstance(data, dict):
        raise UsageError(f"'data' in {FILE} is not a table", where=where, hint="write [data], and 'paths' below it")
    if unknown := sorted(data.keys() - {"paths"}):
        raise UsageError(f"[data] in {FILE} has an unknown key {unknown[0]!r}", where=where, hint=_DATA_FORM)
    paths = data.get("paths", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) and Path(path).is_absolute() for path in paths):
        raise UsageError(f"'paths' of [data] in {FILE} is not a list of absolute paths", where=where, hint=_DATA_FORM)
    if any("\0" in path for path in paths):
        raise UsageError(f"a path of [data] in {FILE} has a null character", where=where, hint=_DATA_FORM)
    return tuple(paths)


def _refuse_misspelled(tables: Iterable[str], table: str, where: str) -> None:
    known = table.strip("[]")
    for name in tables:
        if name != known and nearest(name, [known], 0.7):
            raise UsageError(f"{FILE} has an unknown table [{name}]; did you mean {table}?", where=where)


def check_data(paths: Iterable[str]) -> None:
    """Check that this machine has data, and that this process may read it. DataError names all that is missing."""
    missing = [path for path in paths if not os.access(path, os.R_OK)]
    if missing:
        raise DataError(
            f"the data that {FILE} declares is missing or not readable on this machine",
            where=f"{socket.gethostname()}: {', '.join(missing)}",
            hint="put the data there, or correct [data] paths in mops.toml",
        )


@dataclass(frozen=True)
class Observed:
    """Data for a column of an output."""

    output: str
    x: str
    y: str
    file: str
    table: pa.Table  # the columns of the file
    divisions: pa.ChunkedArray | None = None  # of each row, if columns of the file divide the figure

    def of_division(self, division: str | None) -> Observed | None:
        """Return the data for one division of a figure; None: there are none."""
        if self.divisions is None:
            return self
        is_one = pc.is_null(self.divisions) if division is None else pc.equal(self.divisions, division)
        table = self.table.filter(is_one)
        return replace(self, table=table, divisions=None) if len(table) else None


def read_observed(bundle: bytes) -> list[Observed]:
    """Return the data that a bundle declares. UsageError: the declaration or a file is wrong."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        if FILE not in archive.namelist():
            return []
        tables = tomllib.loads(archive.read(FILE).decode("utf-8-sig"))
        entries = tables.get("observed", [])
        if not isinstance(entries, list):
            raise UsageError(f"'observed' in {FILE} is not a list of tables", where=FILE, hint=_OBSERVED_FORM)
        return [_observed(archive, entry) for entry in entries]


def _observed(archive: zipfile.ZipFile, entry: Any) -> Observed:
    is_right = isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in _OBSERVED_KEYS)
    if not is_right or entry.keys() - set(_OBSERVED_KEYS):
        found = f": {', '.join(entry)}" if isinstance(entry, dict) else ""
        raise UsageError(f"an entry [[observed]] in {FILE} has wrong keys{found}", where=FILE, hint=_OBSERVED_FORM)
    file = posixpath.normpath(entry["file"])
    try:
        table = pa_csv.read_csv(io.BytesIO(archive.read(file)))
        columns = table.column_names
    except KeyError:
        what = f"the project has no file {file!r}, which [[observed]] names"
        hint = "name a CSV file by its path from the project root, which .mopsignore does not leave out"
        raise UsageError(what, where=FILE, hint=hint) from None
    except pa.ArrowInvalid as bad:
        raise UsageError(f"the data cannot be read as CSV: {bad}", where=file) from bad
    except UnicodeDecodeError as bad:
        raise UsageError("the names of the columns are not UTF-8", where=file, hint="save the file as UTF-8") from bad
    x, y = entry["x"], entry["y"]
    for name in (x, y):
        if columns.count(name) != 1:
            n = f"{columns.count(name)} columns" if name in columns else "no column"
            raise UsageError(f"the data have {n} {name!r}", where=file, hint=f"its columns are {', '.join(columns)}")
    kinds = {name: table[name].type for name in (x, y)}
    is_number = {name: pt.is_integer(kind) or pt.is_floating(kind) or pt.is_null(kind) for name, kind in kinds.items()}
    if not is_number[y]:
        raise UsageError(f"the column {y!r} of the data has the type {kinds[y]}", where=file, hint="use numbers")
    if not (is_number[x] or pt.is_date(kinds[x]) or pt.is_timestamp(kinds[x])):
        hint = "use numbers, or dates such as 2024-01-31"
        raise UsageError(f"the column {x!r} of the data has the type {kinds[x]}", where=file, hint=hint)
    return Observed(entry["output"], x, y, file, table)
