"""Whatever a model's columns hold, and in whichever library's table: what is stored is what it returned."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mops.child.buffers import BufferWriter, tables_of
from mops.child.channel import Channel
from mops.child.outputs import IDENTITY, as_tables
from mops.study.column_types import families_of
from mops.study.output_schema import OutputSchema

Columns = dict[str, list[Any]]

# Nothing here depends on how fast the machine is.
calm = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))

# A lone surrogate is no text, and numpy takes a string's NUL at the end away.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = TEXT.filter(lambda name: name and name not in IDENTITY)
VALUES = (st.integers(-(2**63), 2**63 - 1), st.floats(), TEXT, st.booleans())


@st.composite
def columns(draw: st.DrawFn, *, nulls: bool = False) -> Columns:
    n_rows = draw(st.integers(1, 5))
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    kinds = [draw(st.sampled_from(VALUES)) for _ in names]
    cells = [kind | st.none() if nulls else kind for kind in kinds]
    return {
        name: draw(st.lists(cell, min_size=n_rows, max_size=n_rows)) for name, cell in zip(names, cells, strict=True)
    }


def same(table: pa.Table, wanted: Columns) -> bool:
    """Compare as written: NaN is itself, 1 is not 1.0, and 0.0 is not -0.0."""
    return repr(table.to_pydict()) == repr(wanted)


def of_series(make: Callable[[list[Any]], Any]) -> Callable[[Columns], Any]:
    return lambda found: {name: make(column) for name, column in found.items()}


KNOW_NULLS: dict[str, Callable[[Columns], Any]] = {
    "lists": dict,
    "pyarrow": pa.table,
    "pyarrow arrays": of_series(pa.array),
    "polars": lambda found: pl.DataFrame(found, infer_schema_length=None),
    "polars series": of_series(pl.Series),
    "a reader": lambda found: pa.table(found).to_reader(),
}
KNOW_NONE: dict[str, Callable[[Columns], Any]] = {
    "pandas": pd.DataFrame,
    "pandas series": of_series(pd.Series),
    "numpy": of_series(np.array),
}


@pytest.mark.parametrize("form", KNOW_NULLS | KNOW_NONE)
@calm
@given(found=columns())
def test_columns_come_out_as_they_went_in(form: str, found: Columns) -> None:
    assert same(as_tables((KNOW_NULLS | KNOW_NONE)[form](found), 1)["output"], found)


@pytest.mark.parametrize("form", KNOW_NULLS)
@calm
@given(found=columns(nulls=True))
def test_nulls_come_out_as_nulls(form: str, found: Columns) -> None:
    assert same(as_tables(KNOW_NULLS[form](found), 1)["output"], found)


@calm
@given(found=columns(nulls=True), draw=st.data())
def test_the_order_of_columns_does_not_matter(found: Columns, draw: st.DataObject) -> None:
    names = draw.draw(st.permutations(list(found)))
    reference = OutputSchema(families_of(as_tables(found, 1)))
    other = as_tables({name: found[name] for name in names}, 1)
    assert same(reference.check(other)["output"], found)


@calm
@given(results=st.lists(columns(nulls=True), min_size=1, max_size=6))
def test_results_of_any_schemas_travel_in_one_part(results: list[Columns]) -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    out = BufferWriter(ours, None, "test")
    for replicate, found in enumerate(results):
        out.finished(0, replicate, as_tables({"daily": pa.table(found)}, 1))
    out.flush()
    message, fd = theirs.receive()
    assert fd is not None
    arrived = tables_of(message["outputs"], fd)
    assert all(same(arrived[0, replicate]["daily"], found) for replicate, found in enumerate(results))
    ours.close()
    theirs.close()
