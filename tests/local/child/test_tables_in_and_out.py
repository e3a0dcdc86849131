"""A Parquet file holds exactly what a model returned, even if the model overwrites its memory.

Each example takes a few results of one study all the way: read in the child process, sent to the worker, encoded by the
runner, read from the file. The memory of a result is overwritten before the next one.
"""

from __future__ import annotations

import decimal
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mops.child.buffers import BufferWriter, tables_of
from mops.child.channel import Channel
from mops.child.outputs import IDENTITY, as_tables
from mops.parquet.encoder import encode
from mops.parquet.output_file import OutputFile, StoredTypes
from mops.storage.backends.base import Spool
from mops.study.column_families import join_columns
from mops.study.column_types import families_in
from mops.study.output_schema import OutputSchema

EXAMPLES = max(200, settings().max_examples)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
# Polars renames a column without a name, and Arrow's C interface ends a name at NUL.
NAMES = TEXT.filter(lambda name: name and "\0" not in name and name.casefold() not in IDENTITY)


@dataclass(frozen=True)
class Kind:
    """A type of column, its values, and the encodings that libraries use for it."""

    type: pa.DataType
    cells: st.SearchStrategy[Any]
    encodings: tuple[pa.DataType, ...] = ()

    def __str__(self) -> str:
        return str(self.type)


def whole(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


MOMENTS = st.integers(-(2**31), 2**31)
NUMBERS = [
    *(Kind(kind, whole(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *(Kind(kind, whole(kind.bit_width, signed=False)) for kind in (pa.uint8(), pa.uint32(), pa.uint64())),
    Kind(pa.float64(), st.floats()),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.float32(), st.floats(width=16), (pa.float16(),)),
    Kind(pa.bool_(), st.booleans()),
]
PLAIN = [
    *NUMBERS,
    Kind(pa.string(), TEXT),
    Kind(pa.binary(), st.binary(max_size=8)),
    Kind(pa.date32(), st.integers(-10_000, 10_000)),
    *(Kind(pa.timestamp(unit), MOMENTS) for unit in ("ms", "us", "ns")),
    Kind(pa.timestamp("us", "Europe/Zurich"), MOMENTS),
    Kind(pa.duration("us"), MOMENTS),
    Kind(pa.list_(pa.int64()), st.lists(st.none() | whole(64), max_size=3)),
    Kind(pa.list_(pa.string()), st.lists(st.none() | TEXT, max_size=3)),
    Kind(
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | whole(32), "b": st.none() | TEXT}),
    ),
]
ENCODED = [
    *PLAIN,
    Kind(pa.string(), TEXT, (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))),
    Kind(pa.binary(), st.binary(max_size=8), (pa.large_binary(), pa.binary_view())),
    Kind(pa.date32(), st.integers(-10_000, 10_000), (pa.date64(),)),
    Kind(pa.timestamp("ms"), MOMENTS.map(lambda n: n * 1000), (pa.timestamp("s"),)),
    Kind(pa.time32("ms"), st.integers(0, 86_399).map(lambda n: n * 1000), (pa.time32("s"),)),
    Kind(pa.time64("ns"), st.integers(0, 86_399 * 10**9)),
    Kind(pa.duration("s"), MOMENTS),
    Kind(pa.duration("ns"), MOMENTS),
    Kind(pa.decimal128(10, 2), st.decimals(-1000, 1000, places=2).map(decimal.Decimal)),
    Kind(pa.list_(pa.int64()), st.lists(st.none() | whole(64), max_size=3), (pa.large_list(pa.int64()),)),
    Kind(pa.list_(pa.string()), st.lists(st.none() | TEXT, max_size=3), (pa.large_list(pa.string_view()),)),
    Kind(pa.list_(pa.int8()), st.lists(whole(8), min_size=2, max_size=2), (pa.list_(pa.int8(), 2),)),
    Kind(pa.list_(pa.list_(pa.float32())), st.lists(st.lists(st.floats(width=32), max_size=2), max_size=2)),
    Kind(pa.map_(pa.string(), pa.int8()), st.dictionaries(TEXT, whole(8), max_size=2).map(lambda m: list(m.items()))),
    Kind(pa.null(), st.none()),
]

Foreign = tuple[Any, Callable[[], None]]
"""A result, and a function that overwrites its memory."""


@dataclass(frozen=True)
class Form:
    """A form of tables that a model may return, and the types of column that it can hold."""

    make: Callable[[Columns], Foreign]
    kinds: list[Kind]
    nulls: bool = True


def as_stored(array: pa.Array) -> list[Any]:
    """Return values as mops stores them: a map as a list of structs."""
    values: list[Any] = array.to_pylist()
    if not pa.types.is_map(array.type):
        return values
    return [value if value is None else [{"key": k, "value": v} for k, v in value] for value in values]


@dataclass(frozen=True)
class Columns:
    """The columns of one result, and how they are sliced and chunked."""

    arrays: dict[str, pa.Array]
    encodings: dict[str, pa.DataType]
    before: int
    after: int
    chunk: int

    def wanted(self) -> dict[str, list[Any]]:
        n = len(next(iter(self.arrays.values()))) - self.before - self.after
        return {name: as_stored(array.slice(self.before, n)) for name, array in self.arrays.items()}

    def in_workspace(self) -> tuple[pa.Table, Callable[[], None]]:
        """Return the rows as a slice of a chunked Arrow table, and a function that overwrites its memory."""
        table = pa.table({name: array.cast(self.encodings[name]) for name, array in self.arrays.items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=self.chunk)
        memory = np.frombuffer(bytearray(sink.getvalue()), np.uint8)
        found = pa.ipc.open_stream(pa.py_buffer(memory)).read_all()
        return found.slice(self.before, found.num_rows - self.before - self.after), lambda: memory.fill(0x5A)


class OnlyAStream:
    """A table that can only be streamed."""

    def __init__(self, table: pa.Table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def of_arrow(make: Callable[[pa.Table], Any]) -> Callable[[Columns], Foreign]:
    def made(columns: Columns) -> Foreign:
        table, overwrite = columns.in_workspace()
        return make(table), overwrite

    return made


def series_of(table: pa.Table, make: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: make(table[name]) for name in table.column_names}


def of_numpy(wrap: Callable[[np.ndarray], Any]) -> Callable[[Columns], Foreign]:
    """Return arrays with every other value of longer arrays."""

    def made(columns: Columns) -> Foreign:
        spread = {
            name: np.repeat(np.array(values, columns.encodings[name].to_pandas_dtype()), 2)
            for name, values in columns.wanted().items()
        }

        def overwrite() -> None:
            for memory in spread.values():
                memory.fill(1)

        return wrap({name: memory[::2] for name, memory in spread.items()}), overwrite

    return made


def masked(columns: Columns) -> Foreign:
    memories = {}
    for name, values in columns.wanted().items():
        data = np.array([0 if value is None else value for value in values], columns.encodings[name].to_pandas_dtype())
        memories[name] = np.ma.array(data, mask=[value is None for value in values])

    def overwrite() -> None:
        for memory in memories.values():
            memory[:] = 1

    return memories, overwrite


def lists(columns: Columns) -> Foreign:
    memory = columns.wanted()

    def overwrite() -> None:
        for values in memory.values():
            values[:] = [None] * len(values)

    return memory, overwrite


IN_LISTS = [kind for kind in PLAIN if kind.type != pa.uint64()]  # integers in lists become int64
FORMS = {
    "a table": Form(of_arrow(lambda table: table), ENCODED),
    "a reader": Form(of_arrow(lambda table: table.to_reader()), ENCODED),
    "a stream": Form(of_arrow(OnlyAStream), ENCODED),
    "chunked arrays": Form(of_arrow(lambda table: series_of(table, lambda column: column)), ENCODED),
    "arrays": Form(of_arrow(lambda table: series_of(table, lambda column: column.combine_chunks())), ENCODED),
    "polars": Form(of_arrow(pl.from_arrow), PLAIN),
    "polars series": Form(of_arrow(lambda table: series_of(table, pl.Series)), PLAIN),
    "pandas": Form(of_numpy(lambda arrays: pd.DataFrame(arrays, copy=False)), NUMBERS, nulls=False),
    "pandas of Arrow": Form(of_arrow(lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)), PLAIN),
    "numpy": Form(of_numpy(lambda arrays: arrays), NUMBERS, nulls=False),
    "numpy of another byte order": Form(
        of_numpy(lambda arrays: {name: a.astype(a.dtype.newbyteorder(">")) for name, a in arrays.items()}),
        NUMBERS,
        nulls=False,
    ),
    "masked arrays": Form(masked, NUMBERS),
    "lists": Form(lists, IN_LISTS),
}


@st.composite
def results(draw: st.DrawFn, form: Form) -> list[Columns]:
    """Draw a few results with the same columns."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.casefold))
    kinds = {name: draw(st.sampled_from(form.kinds)) for name in names}
    encodings = {name: draw(st.sampled_from((kind.type, *kind.encodings))) for name, kind in kinds.items()}
    found = []
    for _ in range(draw(st.integers(1, 3))):
        before, rows, after = (draw(st.integers(0, most)) for most in (2, 6, 2))
        n = before + rows + after
        cells = {
            name: draw(st.lists(kind.cells | st.none() if form.nulls else kind.cells, min_size=n, max_size=n))
            for name, kind in kinds.items()
        }
        arrays = {name: pa.array(cells[name], kind.type) for name, kind in kinds.items()}
        found.append(Columns(arrays, encodings, before, after, draw(st.integers(1, 8))))
    return found


@contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


def on_disk(table: pa.Table) -> pa.Table:
    return pq.read_table(io.BytesIO(b"".join(encode(table, Spool()).content)))


def committed(arrived: list[pa.Table]) -> list[pa.Table]:
    """Return the tables as they are stored in one part, one group each."""
    known: dict[str, Any] = {}
    for table in arrived:
        known = join_columns(known, families_in(table))
    types, file = StoredTypes(lambda _: known), OutputFile(Spool)
    for group, table in enumerate(arrived):
        stored = types.stored("daily", table)
        names = pa.array([str(group)] * len(table), pa.string()).dictionary_encode()
        file.write(stored.add_column(0, "param_id", names))
    part = pq.read_table(io.BytesIO(b"".join(file.finish().content)))
    names = part["param_id"].cast(pa.string())
    return [part.filter(pc.equal(names, str(group))).drop_columns(["param_id"]) for group in range(len(arrived))]


def same(table: pa.Table, wanted: dict[str, list[Any]]) -> bool:
    """Compare as text: NaN equals NaN, 1 differs from 1.0, and 0.0 from -0.0."""
    return repr(table.to_pydict()) == repr(wanted)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=-(-EXAMPLES // len(FORMS)))
@given(draw=st.data())
def test_stored_tables_are_equal_to_returned_tables(form: str, draw: st.DataObject) -> None:
    found = draw.draw(results(FORMS[form]))
    reference = None
    with channels() as (ours, theirs):
        writer = BufferWriter(ours, None, "test")
        for replicate, columns in enumerate(found):
            result, overwrite = FORMS[form].make(columns)
            tables = as_tables({"daily": result}, 1)
            overwrite()
            reference = reference or OutputSchema({name: families_in(table) for name, table in tables.items()})
            writer.finished(0, replicate, 1, reference.check(tables))
        writer.flush()
        message, fd = theirs.receive()
        assert fd is not None
        arrived = tables_of(message["outputs"], fd)
        tables_in_turn = [arrived[0, replicate]["daily"] for replicate in range(len(found))]
    in_part = committed(tables_in_turn)
    for columns, table, stored in zip(found, tables_in_turn, in_part, strict=True):
        assert same(table, columns.wanted())
        assert same(on_disk(table), columns.wanted())
        assert same(stored, columns.wanted())
