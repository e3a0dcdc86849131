"""Returned tables are copied and validated before the next simulation, and have types that Parquet can hold."""

from __future__ import annotations

import decimal
import io
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mops.child.outputs import as_tables
from mops.parquet.encoder import encode
from mops.storage.backends.base import Spool
from mops.study.output_schema import InvalidOutput

Make = Callable[[np.ndarray], Any]


class ArrowArray:
    """An array or a batch that can only be exported."""

    def __init__(self, exported: Any):
        self._exported = exported

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._exported.__arrow_c_array__(requested_schema)


class Tensor:
    """An array like those of torch and jax, which numpy can convert."""

    def __init__(self, values: np.ndarray):
        self._values = values
        self.ndim = values.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._values


def over(memory: np.ndarray) -> pa.Array:
    """Return an Arrow array in the memory of numpy."""
    array = pa.array(memory)
    assert array.buffers()[1].address == memory.__array_interface__["data"][0]
    return array


def frame_over(memory: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"x": memory}, copy=False)


SHARING: dict[str, Make] = {
    "numpy": lambda memory: {"x": memory},
    "a view of numpy": lambda memory: {"x": memory[:]},
    "read-only numpy": lambda memory: {"x": np.broadcast_to(memory, memory.shape)},
    "a memoryview": lambda memory: {"x": memoryview(memory)},
    "a tensor": lambda memory: {"x": Tensor(memory)},
    "masked": lambda memory: {"x": np.ma.array(memory, mask=False, copy=False)},
    "a table": lambda memory: pa.table({"x": memory}),
    "a slice of a table": lambda memory: pa.table({"x": over(memory)}).slice(0, 3),
    "a table of chunks": lambda memory: pa.table({"x": pa.chunked_array([over(memory[:2]), over(memory[2:])])}),
    "a record batch": lambda memory: pa.record_batch({"x": over(memory)}),
    "a reader": lambda memory: pa.table({"x": over(memory)}).to_reader(),
    "an array": lambda memory: {"x": over(memory)},
    "a chunked array": lambda memory: {"x": pa.chunked_array([over(memory)])},
    "an exported array": lambda memory: {"x": ArrowArray(over(memory))},
    "an exported batch": lambda memory: ArrowArray(pa.record_batch({"x": over(memory)})),
    "an output of an exported batch": lambda memory: {"output": ArrowArray(pa.record_batch({"x": over(memory)}))},
    "polars": lambda memory: pl.DataFrame({"x": pl.Series("x", memory)}),
    "polars of Arrow": lambda memory: pl.from_arrow(pa.table({"x": over(memory)})),
    "a polars series": lambda memory: {"x": pl.Series("x", memory)},
    "pandas": frame_over,
    "pandas of Arrow": lambda memory: pa.table({"x": over(memory)}).to_pandas(types_mapper=pd.ArrowDtype),
    "a pandas series": lambda memory: {"x": frame_over(memory)["x"]},
    "a pandas series of Arrow": lambda memory: {"x": pd.Series(pd.arrays.ArrowExtensionArray(over(memory)))},
    "duckdb": lambda memory: duckdb.connect().from_arrow(pa.table({"x": over(memory)})),
    "a list": lambda memory: {"x": list(memory)},
}


def test_a_model_may_overwrite_its_memory_after_it_returned_a_table(subtests: pytest.Subtests) -> None:
    """A model that returned tables over one array got the values of the last simulation in every row."""
    for name, make in SHARING.items():
        with subtests.test(name):
            memory = np.array([1.0, 2.0, 3.0])
            found = [as_tables(make(memory), 1)["output"] for _ in range(2)]
            memory[:] = 9
            assert [table["x"].to_pylist() for table in found] == [[1.0, 2.0, 3.0]] * 2


NESTED = {
    "lists": lambda elements: pa.ListArray.from_arrays([0, 1, 3], elements),
    "structs": lambda elements: pa.StructArray.from_arrays([elements], names=["a"]),
    "fixed-size lists": lambda elements: pa.FixedSizeListArray.from_arrays(elements, 3),
}


def test_memory_of_nested_columns_is_copied(subtests: pytest.Subtests) -> None:
    for case, make in NESTED.items():
        with subtests.test(case):
            memory = np.array([1.0, 2.0, 3.0])
            wanted = make(pa.array([1.0, 2.0, 3.0])).to_pylist()
            found = as_tables(pa.table({"x": make(over(memory))}), 1)["output"]
            memory[:] = 9
            assert found["x"].to_pylist() == wanted


def test_a_reader_may_overwrite_its_memory_for_each_batch() -> None:
    memory = np.zeros(2)

    def batches() -> Any:
        for value in range(3):
            memory[:] = value
            yield pa.record_batch({"x": over(memory)})

    schema = pa.schema([("x", pa.float64())])
    found = as_tables(pa.RecordBatchReader.from_batches(schema, batches()), 1)["output"]
    assert found["x"].to_pylist() == [0, 0, 1, 1, 2, 2]


def test_a_slice_keeps_only_the_memory_of_its_rows(subtests: pytest.Subtests) -> None:
    """A slice of three rows would keep the memory of the whole table."""
    for column in [pa.array(np.zeros(100_000)), pa.array(["text " * 10] * 10_000), pa.array([[1] * 10] * 10_000)]:
        for library in [pa.table, pl.from_arrow]:
            with subtests.test(str((column, library))):
                found = as_tables(library(pa.table({"x": column})).slice(50, 3), 1)["output"]
                assert found["x"].to_pylist() == column[50:53].to_pylist()
                assert sum(buffer.size for chunk in found["x"].chunks for buffer in chunk.buffers() if buffer) < 10_000


# --- types


def on_disk(table: pa.Table) -> pa.Table:
    return pq.read_table(io.BytesIO(b"".join(encode(table, Spool()).content)))


def deep(n: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(n):
        kind = pa.list_(kind)
    return kind


PARQUET_HOLDS_NONE_OF = {
    "an empty struct": pa.array([{}], pa.struct([])),
    "an empty struct in a list": pa.array([[{}]], pa.list_(pa.struct([]))),
    "an empty struct in a map": pa.array([[("a", {})]], pa.map_(pa.string(), pa.struct([]))),
    "a dictionary of empty structs": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{}], pa.struct([]))),
    "a union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "a union in a struct": pa.StructArray.from_arrays(
        [pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])], names=["u"]
    ),
    "an interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "bytes of no width": pa.array([b""], pa.binary(0)),
    "a decimal of negative scale": pa.array([decimal.Decimal("1e3")], pa.decimal128(5, -2)),
    "a decimal without a digit before the point": pa.array([None], pa.decimal128(3, 10)),
    "a decimal of many digits": pa.array([None], pa.decimal256(76, 0)),
    "a decimal of many digits after the point": pa.array([decimal.Decimal("1e-39")]),
    "fields of one name": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    "lists too deep for Parquet's readers": pa.nulls(1, deep(40)),
    "an extension type that is not known": pa.ExtensionArray.from_storage(
        pa.opaque(pa.binary(), "bignum", "DuckDB"), pa.array([b"a"])
    ),
    "one of which only a note is left": pa.StructArray.from_arrays(
        [pa.array([1])], fields=[pa.field("a", pa.int64(), metadata={"ARROW:extension:name": "acme.complex"})]
    ),
    "a tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), [1, 2]), pa.array([[1, 2]], pa.list_(pa.int8(), 2))
    ),
    "a period as pandas stores it": pa.table(pd.DataFrame({"x": pd.period_range("2020Q1", periods=1, freq="Q")}))["x"],
}


def test_a_type_that_parquet_cannot_hold_is_refused_with_its_column(subtests: pytest.Subtests) -> None:
    """Tables of these types passed the child process and killed the runner at the checkpoint, in every attempt."""
    for case, column in PARQUET_HOLDS_NONE_OF.items():
        for form in [pa.table, dict]:
            with subtests.test(f"{case} {form}"):
                for _ in range(2):
                    with pytest.raises(InvalidOutput, match=r"output 'daily'.*column 'odd'"):
                        as_tables({"daily": form({"odd": column})}, 1)


KEPT = {
    "categories": (pa.array(["a", "b", None]).dictionary_encode(), pa.string()),
    "categories of lists": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([[1], [2, 3]])), None),
    "lists of categories": (
        pa.ListArray.from_arrays([0, 2, 2], pa.array(["a", "b"]).dictionary_encode()),
        pa.list_(pa.string()),
    ),
    "runs": (pa.RunEndEncodedArray.from_arrays([2, 3], [1, None]), pa.int64()),
    "views of text": (pa.array(["a", None], pa.string_view()), pa.string()),
    "views of text in lists": (pa.array([["a"], None], pa.large_list(pa.string_view())), None),
    "views of bytes": (pa.array([b"a", None], pa.binary_view()), pa.binary()),
    "large bytes": (pa.array([b"a", None], pa.large_binary()), pa.binary()),
    "list views": (pa.array([[1], None, [2, 3]], pa.list_view(pa.int8())), pa.list_(pa.int8())),
    "large list views": (pa.array([[1], None, [2, 3]], pa.large_list_view(pa.int8())), pa.list_(pa.int8())),
    "large lists": (pa.array([[1], None, [2, 3]], pa.large_list(pa.int8())), pa.list_(pa.int8())),
    "lists of a fixed size": (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), pa.list_(pa.int8())),
    "lists that cannot be null": (pa.array([[1]], pa.list_(pa.field("x", pa.int8(), nullable=False))), None),
    "structs": (pa.array([{"a": ["x"]}, None, {"a": None}], pa.struct([("a", pa.large_list(pa.string_view()))])), None),
    "maps": (pa.array([[("a", 0.5)], None], pa.map_(pa.large_string(), pa.float16())), None),
    "maps to nulls": (pa.array([[("a", None)], [], [("b", None)]], pa.map_(pa.large_string(), pa.null())), None),
    "halves": (pa.array([0.5, None, np.nan], pa.float16()), pa.float32()),
    "halves in lists": (pa.array([[0.5], None], pa.list_(pa.float16())), pa.list_(pa.float32())),
    "seconds": (pa.array([1, None], pa.timestamp("s", "Europe/Zurich")), pa.timestamp("us", "Europe/Zurich")),
    "seconds of the day": (pa.array([1, None], pa.time32("s")), pa.time64("us")),
    "milliseconds of the day": (pa.array([1, None], pa.time32("ms")), pa.time64("us")),
    "days in milliseconds": (pa.array([86_400_000, None], pa.date64()), pa.date32()),
    "durations": (pa.array([1, None], pa.duration("ms")), pa.duration("us")),
    "nanoseconds": (pa.array([1, None], pa.timestamp("ns")), pa.timestamp("ns")),
    "bytes of a fixed size": (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
    "narrow decimals": (pa.array([decimal.Decimal("1.5"), None], pa.decimal32(4, 1)), pa.decimal128(4, 1)),
    "uuids": (pa.array([b"0" * 16, None], pa.uuid()), pa.binary()),
    "uuids in lists": (pa.ListArray.from_arrays([0, 1], pa.array([b"0" * 16], pa.uuid())), pa.list_(pa.binary())),
    "booleans of eight bits": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())), pa.bool_()),
    "lists that are deep": (pa.nulls(2, deep(30)), None),
    "json": (pa.array(["1", None], pa.json_()), pa.string()),
    "nulls": (pa.nulls(2), pa.null()),
    "lists of nulls": (pa.array([[None], [], None], pa.list_(pa.null())), None),
}  # fmt: skip


def test_every_other_type_keeps_its_values_on_disk(subtests: pytest.Subtests) -> None:
    for form in [pa.table, dict]:
        for case, (column, kind) in KEPT.items():
            with subtests.test(f"{case} {form}"):
                wanted = (column.storage if column.type in (pa.uuid(), pa.json_()) else column).to_pylist()
                if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.BaseExtensionType):
                    wanted = [[b"0" * 16]]
                if pa.types.is_map(column.type):
                    wanted = [
                        row if row is None else [{"key": key, "value": value} for key, value in row] for row in wanted
                    ]
                for rows in (slice(None), slice(1, None), slice(0)):
                    found = as_tables(form({"x": column[rows]}), 1)["output"]
                    assert repr(found["x"].to_pylist()) == repr(wanted[rows])
                    assert kind is None or found["x"].type == kind
                    assert found.schema.field("x").nullable
                    assert repr(on_disk(found)["x"].to_pylist()) == repr(wanted[rows])


def test_a_column_that_is_declared_not_null_may_hold_nulls() -> None:
    """The Parquet writer refused the nulls, in the runner."""
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    table = pa.Table.from_arrays([pa.array([1, None])], schema=schema)
    assert on_disk(as_tables(table, 1)["output"])["x"].to_pylist() == [1, None]


BEYOND_MICROSECONDS = {
    "times": pa.array([2**45], pa.timestamp("s")),
    "times in milliseconds": pa.array([2**54], pa.timestamp("ms", "UTC")),
    "durations": pa.array([-(2**45)], pa.duration("s")),
    "times in lists": pa.array([[2**45]], pa.list_(pa.timestamp("s"))),
    "days": pa.array([86_400_000 * 2**32], pa.date64()),
}


def test_a_time_that_microseconds_do_not_reach_is_refused_with_its_column(subtests: pytest.Subtests) -> None:
    for name, column in BEYOND_MICROSECONDS.items():
        with subtests.test(name), pytest.raises(InvalidOutput, match="column 'when'"):
            as_tables({"when": column}, 1)


# --- invalid data of native code


def with_offsets(*offsets: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abc")]
    )


def list_with_offsets(*offsets: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.list_(pa.int8()),
        len(offsets) - 1,
        [None, pa.py_buffer(np.array(offsets, np.int32))],
        children=[pa.array([1, 2, 3], pa.int8())],
    )


INVALID = {
    "offsets beyond the text": with_offsets(0, 2**30, 3),
    "offsets that go back": with_offsets(0, 3, 1),
    "negative offsets": with_offsets(0, -(2**30), 2),
    "offsets beyond the elements": list_with_offsets(0, 2**30, 3),
    "offsets in a struct": pa.StructArray.from_arrays([with_offsets(0, 2**30, 3)], names=["s"]),
    "offsets in a list": pa.ListArray.from_arrays([0, 1, 2], with_offsets(0, 2**30, 3)),
    "text that is not UTF-8": pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    ),
    "indices beyond the categories": pa.DictionaryArray.from_arrays(pa.array([0, 2**30]), ["a"], safe=False),
    "fewer nulls than it says": pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x03"), pa.py_buffer(np.zeros(2, np.int64))], null_count=1
    ),
}


def test_invalid_arrow_data_are_refused_with_their_column(subtests: pytest.Subtests) -> None:
    """Invalid data of native code killed the runner with a segmentation fault."""
    for case, column in INVALID.items():
        for form in [pa.table, dict, lambda columns: pa.table(columns).to_batches()[0]]:
            bad = pytest.raises(InvalidOutput, match=r"output 'daily'.*column 'bad'.*invalid")
            with subtests.test(f"{case} {form}"), bad:
                as_tables({"daily": form({"good": pa.nulls(len(column)), "bad": column})}, 1)
