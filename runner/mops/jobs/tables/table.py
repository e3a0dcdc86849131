"""A table of a job's results, which other libraries can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from mops.jobs.tables import conversions, preview
from mops.jobs.tables.scan import Rows

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import xarray as xr


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

        Raises
        ------
        CorruptRecord
            A part is missing, or is not a Parquet file. Only :meth:`Job.verify` finds damage inside a part.
        """
        return self.opened().batches()

    def to_arrow(self) -> pa.Table:
        """Return the rows as a ``pyarrow.Table``. Raises as :meth:`to_batches`."""
        rows = self.opened()
        return pa.Table.from_batches(rows.batches(), rows.schema)

    def head(self, n: int = preview.HEAD_ROWS) -> pa.Table:
        """Return the first rows as a ``pyarrow.Table``."""
        return _head(self.opened(), n)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a ``pandas.DataFrame``. Needs pandas.

        Integers with missing values have pandas' nullable types, such as ``Int64``.
        """
        return conversions.to_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a ``polars.DataFrame``. Needs polars."""
        return conversions.to_polars(self.to_arrow())

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a ``duckdb.DuckDBPyRelation``, which reads them in batches for each query. Needs duckdb.

        Examples
        --------
        >>> job.losses(params=True).to_duckdb().filter("loss < 100").aggregate("min(beta), max(beta)")
        """
        return conversions.to_duckdb(self)

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
        return conversions.to_xarray(self.to_arrow(), [*self._dims, *dims], of_set, where=self._title)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        rows = self.opened()
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return preview.as_text(self._title, *_counted_head(self.opened()))

    def _repr_html_(self) -> str:
        return preview.as_html(self._title, *_counted_head(self.opened()))


def _head(rows: Rows, n: int) -> pa.Table:
    taken: list[pa.RecordBatch] = []
    for batch in rows.batches() if n > 0 else ():
        taken.append(batch.slice(0, n))
        n -= taken[-1].num_rows
        if n <= 0:
            break
    return pa.Table.from_batches(taken, rows.schema)


def _counted_head(rows: Rows) -> tuple[int, pa.Table]:
    return rows.count(), _head(rows, preview.HEAD_ROWS)
