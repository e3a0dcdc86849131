"""Converts a table for other libraries. This module alone imports them, and each only when it is asked for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mops.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import xarray as xr

_EXACT = 2**53  # floats hold all integers up to this one


def to_pandas(rows: pa.Table) -> pd.DataFrame:
    """Return a pandas frame. Columns with few different texts may be categorical."""
    # Integers with missing values get pandas' nullable type: as floats, they would lose digits beyond 2^53.
    pandas = _library("pandas")
    frame = rows.to_pandas(integer_object_nulls=True)
    for field in rows.schema:
        if pa.types.is_integer(field.type) and rows[field.name].null_count:
            dtype = str(field.type).replace("int", "Int").replace("u", "U")
            frame[field.name] = pandas.array(frame[field.name], dtype=dtype)
    return frame


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """Return a polars frame."""
    return _library("polars").from_arrow(rows)


def to_duckdb(rows: object) -> duckdb.DuckDBPyRelation:
    """Return a duckdb relation of an object with an Arrow stream, which each query reads again."""
    return _library("duckdb").from_arrow(rows)


def to_xarray(
    rows: pa.Table,
    dims: Sequence[str],  # the columns that become dimensions; empty: the dimension `row`
    of_set: Sequence[str],  # with one value for each parameter set; they become coordinates of the dimension `group`
    *,
    where: str,  # the table, for an error
) -> xr.Dataset:
    """Return an xarray dataset; raise UsageError if rows have the same values in ``dims``, or one does not exist."""
    _library("xarray")
    frame = to_pandas(rows)
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
