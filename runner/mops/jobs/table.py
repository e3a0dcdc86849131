"""A table of a job's results, which other libraries can read, and tables as files."""

from __future__ import annotations

import errno
import html
import importlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from mops.errors import StorageError, UsageError, path_refused
from mops.jobs.scan import Rows
from mops.project.bundle import RESULTS
from mops.study.ids_and_seeds import short_id
from mops.system.folders import written_whole
from mops.units import counted

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import xarray as xr


HEAD_ROWS = 5
_CELL_CHARACTERS = 24
_LINE_CHARACTERS = 110
_EXACT = 2**53  # floats hold all integers up to this one


def as_pandas(rows: pa.Table) -> pd.DataFrame:
    """Return a pandas frame. Columns with few different texts may be categorical."""
    # Integers with missing values get pandas' nullable type: as floats, they would lose digits beyond 2^53.
    pandas = _library("pandas")
    frame = rows.to_pandas(integer_object_nulls=True)
    for field in rows.schema:
        if pa.types.is_integer(field.type) and rows[field.name].null_count:
            dtype = str(field.type).replace("int", "Int").replace("u", "U")
            frame[field.name] = pandas.array(frame[field.name], dtype=dtype)
    return frame


def as_xarray(
    rows: pa.Table,
    dims: Sequence[str],  # the columns that become dimensions; empty: the dimension `row`
    of_set: Sequence[str],  # with one value for each parameter set; they become coordinates of the dimension `group`
    *,
    where: str,  # the table, for an error
) -> xr.Dataset:
    """Return an xarray dataset; raise UsageError if rows have the same values in ``dims``, or one does not exist."""
    _library("xarray")
    frame = as_pandas(rows)
    if not dims:
        return _without_nullable(frame).rename_axis("row").to_xarray()
    if missing := [name for name in dims if name not in frame]:
        hint = f"its columns are {', '.join(frame.columns)}"
        raise UsageError(f"the table has no column {missing[0]!r}", where=where, hint=hint)
    if frame.duplicated(list(dims)).any():
        raise UsageError(
            f"several rows have the same {' and '.join(dims)}",
            where=where,
            hint="name the columns that tell the rows apart, such as to_xarray('day')",
        )
    along = [name for name in of_set if name in frame and name not in dims] if "group" in dims else []
    n_places = math.prod(frame[name].nunique(dropna=False) for name in dims)
    frame = _without_nullable(frame, gaps_in=set(frame) - {*along, *dims} if n_places > len(frame) else set())
    found: xr.Dataset = frame.drop(columns=along).set_index(list(dims)).to_xarray()
    if not along:
        return found
    sets = frame[["group", *along]].drop_duplicates("group").set_index("group").sort_index().to_xarray()
    return found.assign_coords({name: sets[name] for name in along})


def _without_nullable(frame: pd.DataFrame, gaps_in: Collection[str] = ()) -> pd.DataFrame:
    """Return a frame with integers that are missing, or will be, as floats, or as objects if no float holds them."""
    frame = frame.copy(deep=False)
    for name, column in frame.items():
        is_nullable = column.dtype.kind in "iu" and not isinstance(column.dtype, np.dtype)
        if is_nullable or (column.dtype.kind in "iu" and name in gaps_in):
            is_exact = column.isna().all() or (column.min() >= -_EXACT and column.max() <= _EXACT)
            frame[name] = (
                column.astype("float64") if is_exact else column.astype(object).where(column.notna(), math.nan)
            )
    return frame


def _library(name: str) -> Any:
    """Import a library; raise UsageError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"{missing.name} is not installed", where=f"to_{name}", hint=f"pip install {missing.name}"
        ) from missing


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if name == "param_id":
        return short_id(text)
    text = text.partition("\n")[0]
    return text if len(text) <= _CELL_CHARACTERS else f"{text[: _CELL_CHARACTERS - 3]}..."


class Table:
    """Rows of a job's results. Each method reads the rows that are committed when you call it.

    Libraries that read Arrow streams take the table as it is: ``pyarrow.table(job.losses())``. In a notebook, the table
    shows its number of rows, its columns and its first rows.
    """

    def __init__(self, title: str, opened: Callable[[], Rows], dims: Sequence[str] = ()):
        self._title, self.opened, self._dims = title, opened, dims

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns, as a ``pyarrow.Schema``."""
        return self.opened().schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __len__(self) -> int:
        return self.opened().count()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, for results that are larger than memory.

        The parameter sets of an output come in the order in which they finished.

        Raises
        ------
        CorruptRecord
            A part is missing, or is not a Parquet file. Only :meth:`Job.verify` finds damage inside a part.
        """
        return self.opened().batches()

    def to_arrow(self) -> pa.Table:
        """Return the rows as a ``pyarrow.Table``, in the order of the study. Raises as :meth:`to_batches`."""
        return self.opened().table()

    def head(self, n: int = HEAD_ROWS) -> pa.Table:
        """Return the first rows of ``to_batches`` as a ``pyarrow.Table``."""
        return _head(self.opened(), n)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a ``pandas.DataFrame``. Needs pandas.

        Integers with missing values have pandas' nullable types, such as ``Int64``.
        """
        return as_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a ``polars.DataFrame``. Needs polars."""
        return _library("polars").from_arrow(self.to_arrow())

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a ``duckdb.DuckDBPyRelation``, which reads them in batches for each query. Needs duckdb.

        Examples
        --------
        >>> job.losses(params=True).to_duckdb().filter("loss < 100").aggregate("min(beta), max(beta)")
        """
        return _library("duckdb").from_arrow(self)

    def to_xarray(self, *dims: str) -> xr.Dataset:
        """Return the rows as an ``xarray.Dataset``. Needs xarray and pandas.

        Parameters
        ----------
        *dims
            More columns that become dimensions, such as the day of an output.

        Returns
        -------
        xarray.Dataset
            The dimensions are ``group`` and ``replicate`` for outputs; ``group``, ``target`` and ``name`` for losses;
            ``group`` for :meth:`Job.best` and :meth:`Job.params`; ``row`` for failures and samples. ``param_id`` and
            the parameters are coordinates of ``group``. Combinations without a row are NaN, so integers become floats
            there, or objects if one is beyond 2^53.

        Raises
        ------
        UsageError
            Several rows have the same values in all dimensions.

        Examples
        --------
        >>> daily = job.outputs("daily", params=True).to_xarray("day")
        >>> daily["infected"].mean("replicate")
        """
        of_set = self.opened().of_set
        return as_xarray(self.to_arrow(), [*self._dims, *dims], of_set, where=self._title)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        rows = self.opened()
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        title, head, cells, more = self._shown()
        names = head.column_names
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (names, *cells)]
        lines = ["  ".join(line) for line in padded]
        shown = [line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..." for line in lines]
        return "\n".join([title, *(line.rstrip() for line in shown), *more])

    def _repr_html_(self) -> str:
        title, head, cells, more = self._shown()
        names = "".join(
            f'<th title="{html.escape(str(field.type))}">{html.escape(field.name)}</th>' for field in head.schema
        )
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
        return (
            f"<div><p>{html.escape(title)}</p><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
            f"{''.join(f'<p>{line}</p>' for line in more)}</div>"
        )

    def _shown(self) -> tuple[str, pa.Table, list[list[str]], list[str]]:
        """Return the number of rows and columns, the first rows, their texts, and how many rows follow."""
        rows = self.opened()
        n_rows, head = rows.count(), _head(rows, HEAD_ROWS)
        title = f"{self._title}: {counted(n_rows, 'row')}, {counted(head.num_columns, 'column')}"
        cells = [[_cell(name, value) for name, value in row.items()] for row in head.to_pylist()]
        more = [f"and {n_rows - head.num_rows:,} more"] if n_rows > head.num_rows else []
        return title, head, cells, more


def _head(rows: Rows, n: int) -> pa.Table:
    taken: list[pa.RecordBatch] = []
    for batch in rows.batches() if n > 0 else ():
        taken.append(batch.slice(0, min(n, batch.num_rows)))
        n -= taken[-1].num_rows
        if n <= 0:
            break
    return pa.Table.from_batches(taken, rows.schema)


class Format(StrEnum):
    """The format of exported files."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(frozen=True)
class Exported:
    """An exported file."""

    name: str
    rows: int
    path: str


_WRITERS: dict[Format, Callable[[Path, pa.Schema], pq.ParquetWriter | csv.CSVWriter]] = {
    Format.PARQUET: lambda path, schema: pq.ParquetWriter(path, schema),
    Format.CSV: lambda path, schema: csv.CSVWriter(path, schema),
}


def export(tables: Mapping[str, Rows], folder: Path, file_format: Format, *, overwrite: bool) -> list[Exported]:
    """Write each table as one file, named by its key; raises as ``Job.export``."""
    paths = {name: folder / f"{name}.{file_format}" for name in tables}
    with _translated(folder):
        existing = [str(path) for path in paths.values() if path.exists()]
    if existing and not overwrite:
        raise UsageError("these files exist already", where=", ".join(existing), hint="add --overwrite to replace them")
    with _translated(folder):
        create_folder(folder)
    return [_write(name, table, paths[name], file_format) for name, table in tables.items()]


def create_folder(folder: Path) -> None:
    """Create a folder for results. If it has no files, bundles and Git leave it out: no study needs its results."""
    if not folder.is_dir() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text(RESULTS, encoding="utf-8")


def _write(name: str, source: Rows, path: Path, file_format: Format) -> Exported:
    rows = 0
    try:
        with _translated(path), written_whole(path) as partial, _WRITERS[file_format](partial, source.schema) as writer:
            for batch in source.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
    except pa.ArrowException as refused:
        raise UsageError(
            f"{name!r} cannot be written as {file_format}: {refused}", where=str(path), hint="use --format parquet"
        ) from refused
    return Exported(name, rows, str(path))


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(
            "a file and a folder have the same path",
            where=str(path),
            hint="choose another folder with --to",
        ) from error
    except pa.ArrowException:  # some are also ValueErrors, and none is about the path
        raise
    except ValueError as error:
        raise path_refused(path, "the folder of --to", error) from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise path_refused(path, "the folder of --to", error) from error
        raise StorageError(
            f"the file cannot be written ({error.strerror or error})",
            where=str(path),
            hint="choose another folder with --to",
        ) from error
