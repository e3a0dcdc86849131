"""Output files whose columns get wider types from table to table."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from mops.parquet.output_file import MOST_NARROWER, OutputFile, StoredTypes
from mops.storage.backends.base import Spool
from mops.study.column_types import families_in
from processes import descriptors

N_COLUMNS = 60
NAMES = ["param_id", "x", *(f"c{i}" for i in range(12))]


def table(number: int) -> pa.Table:
    """Return one row with a value in one column."""
    columns = {f"c{i}": pa.array([1.5 if i == number else None], pa.float64()) for i in range(N_COLUMNS)}
    return pa.table({"param_id": pa.array([str(number)]).dictionary_encode(), **columns})


def test_columns_that_get_their_types_one_by_one_hold_few_files() -> None:
    """Regression: each change of type kept a file open until the checkpoint, so many columns failed with EMFILE."""
    types, file, before, most = StoredTypes(), OutputFile(Spool), descriptors(), 0
    for number in range(N_COLUMNS):
        file.write(types.stored("out", table(number)))
        if number % 6 == 0:  # a look collects garbage, which takes long with all modules of the tests
            most = max(most, len(descriptors() - before))
    part = pq.read_table(io.BytesIO(b"".join(file.finish().content)))
    rows = {row.pop("param_id"): row for row in part.to_pylist()}
    assert {int(name): [c for c, value in row.items() if value == 1.5] for name, row in rows.items()} == {
        number: [f"c{number}"] for number in range(N_COLUMNS)
    }
    assert part.num_rows == N_COLUMNS
    assert most <= 2 * (MOST_NARROWER + 2)


def test_wider_types_do_not_change_the_order_of_rows() -> None:
    """Rows that came after the last change of types were first in the part."""
    types, file = StoredTypes(), OutputFile(Spool)
    values = [1, 2, 2.5, 3, 4.5, *range(5, 40)]
    for at, value in enumerate(values):
        columns = {"param_id": pa.array([str(at)]).dictionary_encode(), "x": [value], f"c{at % 12}": [value]}
        file.write(types.stored("out", pa.table({**dict.fromkeys(NAMES, pa.nulls(1)), **columns})))
    part = pq.read_table(io.BytesIO(b"".join(file.finish().content)))
    assert part["param_id"].to_pylist() == list(map(str, range(len(values))))
    assert part["x"].to_pylist() == values


def test_a_column_without_values_is_stored_with_the_type_of_its_family() -> None:
    """Regression: a resumed attempt changed the type of each column again."""
    whole = pa.table({"f": [1.5], "b": [True], "s": ["x"], "i": [1]})
    empty = pa.table({name: pa.nulls(1) for name in whole.column_names})
    types = StoredTypes(lambda _: families_in(whole))
    first = types.stored("out", empty)
    assert first.schema.types == [pa.float64(), pa.bool_(), pa.string(), pa.null()], "any integer"
    assert types.stored("out", whole).schema.types == [pa.float64(), pa.bool_(), pa.string(), pa.int64()]
