"""Tables for other libraries keep every integer."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mops.jobs.table import as_pandas, as_xarray

KINDS = (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())


@st.composite
def columns(draw: st.DrawFn) -> pa.Table:
    n = draw(st.integers(0, 4))
    made = {}
    for kind in KINDS:
        least = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        values = st.none() | st.integers(least, least + 2**kind.bit_width - 1)
        made[str(kind)] = pa.array(draw(st.lists(values, min_size=n, max_size=n)), kind)
    return pa.table({**made, "lists": pa.array([[2**60 + 1, None]] * n, pa.list_(pa.int64()))})


@given(columns())
def test_pandas_gets_every_integer(table: pa.Table) -> None:
    """Regression: the seeds of failures lost digits beyond 2^53, because failed targets have no seed."""
    frame = as_pandas(table)
    for name in table.column_names[:-1]:
        values = [None if is_missing else int(v) for v, is_missing in zip(frame[name], frame[name].isna(), strict=True)]
        assert values == table[name].to_pylist()
        assert frame[name].dtype.kind in "iu"
    assert [list(value) for value in frame["lists"]] == table["lists"].to_pylist()


def test_xarray_gets_every_integer_where_rows_or_values_are_missing() -> None:
    rows = {"group": [0, 0, 1], "replicate": [0, 1, 0], "seed": [2**60 + 1, 3, 2**60 + 3], "x": [1, None, 3]}
    table = pa.table({**rows, "n": [7, 7, None], "f": [0.5, 1.5, 2.5]})
    found = as_xarray(table, ["group", "replicate"], ["n"], where="t")
    assert found["seed"].values[0].tolist() == [2**60 + 1, 3]
    assert found["seed"].values[1][0] == 2**60 + 3
    assert math.isnan(found["seed"].values[1][1])
    assert found["x"].dtype == np.float64
    np.testing.assert_array_equal(found["x"].values, [[1, math.nan], [3, math.nan]])
    np.testing.assert_array_equal(found["n"].values, [7, math.nan])
    whole = as_xarray(table.slice(0, 2), ["group", "replicate"], [], where="t")
    assert whole["seed"].dtype == np.int64
    assert as_xarray(table, [], [], where="t")["x"].dtype == np.float64
