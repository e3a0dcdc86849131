"""Copies the results of many simulations into one block of memory, and makes one Arrow table of the block.

pyarrow takes 11 us to make a table of four arrays, but 1 us to make a slice of a table. So if a result has the columns
of a result that mops has checked, mops copies its numbers into a block, behind the rows of earlier simulations. Such a
result is a dictionary of numpy arrays, an Arrow table, or a dictionary of these, and has only numbers and booleans.
child/outputs.py reads all others. Runs in children: the standard library, numpy and pyarrow only.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from mops.study.output_schema import DEFAULT_OUTPUT

_BLOCK_BYTES = 1 << 22  # with one result more: as many as a child process holds before it hands them over

Arrays: TypeAlias = "list[np.ndarray[Any, Any]]"

Memory: TypeAlias = "list[memoryview]"  # bytes for each column of a block


class BlockRows(NamedTuple):
    """The rows of one simulation in a block."""

    block: Block
    start: int
    stop: int

    @property
    def schema(self) -> pa.Schema:
        """As of a table."""
        return self.block.layout.schema

    @property
    def num_rows(self) -> int:
        """As of a table."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """As of a table."""
        return math.ceil(self.num_rows * self.block.layout.row_bytes)


Output: TypeAlias = pa.Table | BlockRows  # of a simulation
Outputs = dict[str, Output]  # all outputs of a simulation, by name


def table_of(output: Output) -> pa.Table:
    """Return an output as a table: rows as a slice of their block's."""
    return output.block.table(output.start, output.stop) if isinstance(output, BlockRows) else output


def joined(outputs: Iterable[Output]) -> Iterator[pa.Table]:
    """Yield the rows of all outputs in turn, those of neighbours in a block as one table."""
    block, start, stop = None, 0, 0  # rows that are not yielded yet
    for output in outputs:
        is_in_block = isinstance(output, BlockRows)
        if is_in_block and output.block is block and output.start == stop:
            stop = output.stop
            continue
        if block is not None:
            yield block.table(start, stop)
        block, start, stop = output if is_in_block else (None, 0, 0)
        if block is None:
            yield output
    if block is not None:
        yield block.table(start, stop)


class _Layout:
    """The columns of a result, and of its table."""

    def __init__(self, source: pa.Schema | None, schema: pa.Schema):
        self._source = source  # None: the result is a dictionary of arrays and not an Arrow table
        self._names, self.schema = schema.names, schema
        self.dtypes = [np.dtype(kind.to_pandas_dtype()) for kind in schema.types]
        self._keys = dict.fromkeys(schema.names).keys()
        self.row_bytes: float = sum(kind.bit_width for kind in schema.types) / 8

    @classmethod
    def of(cls, value: Any, table: pa.Table) -> _Layout | None:
        """Return the layout of an output that has become this table; None: only child/outputs.py can read it."""
        if type(value) not in (dict, pa.Table):
            return None
        source = value.schema if type(value) is pa.Table else None
        names, kinds, is_ = table.column_names, table.schema.types, pa.types
        are_numbers = all(is_.is_integer(k) or is_.is_boolean(k) or k in (pa.float32(), pa.float64()) for k in kinds)
        if not are_numbers or {*names} != {*(value if source is None else source.names)}:
            return None
        # Other types of arrays become the same Arrow types: float16 becomes float32.
        if source is not None and any(source.field(name).type != kind for name, kind in zip(names, kinds, strict=True)):
            return None
        layout = cls(source, table.schema)
        return layout if layout.arrays(value) is not None else None

    def arrays(self, value: Any) -> Arrays | None:
        """Return the columns of an output; None: it has another layout."""
        if type(value) is pa.Table:
            found = self._of_arrow(value)
        else:
            is_like = type(value) is dict and self._source is None and value.keys() == self._keys
            found = [value[name] for name in self._names] if is_like else []
        shape = found[0].shape if found and type(found[0]) is np.ndarray else ()
        if len(shape) != 1:
            return None
        for array, dtype in zip(found, self.dtypes, strict=True):
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                return None
        return found

    def _of_arrow(self, table: pa.Table) -> Arrays:
        if self._source is None or not table.schema.equals(self._source, check_metadata=True):
            return []
        try:
            table.validate()
        except pa.ArrowException:  # child/outputs.py reports it by name
            return []
        columns = [table.column(name) for name in self._names]
        return [] if any(column.null_count for column in columns) else [column.to_numpy() for column in columns]


class Block:
    """The rows of some simulations, in memory that may have held others before, and that only mops can change."""

    def __init__(self, layout: _Layout, memory: Memory):
        self.layout, self.memory = layout, memory
        # A view of such an array keeps it alive. If its memory were an array, the view would keep only that (numpy).
        self._columns = [np.frombuffer(some, dtype) for some, dtype in zip(memory, layout.dtypes, strict=True)]
        # They end once this block, its tables and their views no longer exist.
        self.users = [weakref.ref(column) for column in self._columns]
        self.n_rows = 0
        self._table: pa.Table | None = None

    def append(self, arrays: Arrays) -> BlockRows | None:
        """Copy the rows of a simulation; None: they do not fit."""
        start = self.n_rows
        stop = start + len(arrays[0])
        if stop > len(self._columns[0]):
            return None
        for column, array in zip(self._columns, arrays, strict=True):
            column[start:stop] = array
        self.n_rows = stop
        return BlockRows(self, start, stop)

    def table(self, start: int, stop: int) -> pa.Table:
        """Return some rows as a table, which shares the block's memory and cannot be written through."""
        if self._table is None or self._table.num_rows < stop:
            # Rows of later simulations are in it too, but not with booleans: Arrow has bits, and copies them.
            n_rows = self.n_rows if bool in self.layout.dtypes else len(self._columns[0])
            columns = [column[:n_rows] for column in self._columns]
            for column in columns:
                column.flags.writeable = False
            self._table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=self.layout.schema)
        return self._table.slice(start, stop - start)


class Blocks:
    """Takes results with the layout of the last checked result."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}
        self._blocks: dict[str, list[Block]] = {}
        # Memory of blocks that were handed over, with those who may still use it.
        self._earlier: dict[str, list[tuple[Memory, list[weakref.ref[Any]]]]] = {}

    def learn(self, result: object, tables: Mapping[str, pa.Table]) -> None:
        """Take later results if they are like this one, which has become these tables."""
        values = _by_output(result)
        if values.keys() == tables.keys():
            found = {output: _Layout.of(values[output], table) for output, table in tables.items()}
            if None not in found.values():
                self._layouts, self._earlier = found, {}  # type: ignore[assignment]

    def take(self, result: object) -> Outputs | None:
        """Copy a result; None: its layout is not that of the checked result."""
        if not self._layouts:
            return None
        values = _by_output(result)
        if values.keys() != self._layouts.keys():
            return None
        found = {output: layout.arrays(values[output]) for output, layout in self._layouts.items()}
        if None in found.values():
            return None
        return {output: self._append(output, arrays) for output, arrays in found.items() if arrays is not None}

    def _append(self, output: str, arrays: Arrays) -> BlockRows:
        blocks = self._blocks.setdefault(output, [])
        rows = blocks[-1].append(arrays) if blocks else None
        while rows is None:
            layout = self._layouts[output]
            blocks.append(Block(layout, self._memory(output, layout, len(arrays[0]))))
            rows = blocks[-1].append(arrays)
        return rows

    def _memory(self, output: str, layout: _Layout, n_rows: int) -> Memory:
        """Return memory for a block: that of an earlier one, or new, with room for one result of so many rows more."""
        # New memory costs a page fault for each 4 KiB of results (bench/one_child.py: 7 % of the time at 0 ms).
        earlier = self._earlier.get(output, [])
        for i, (_, users) in enumerate(earlier):
            if all(user() is None for user in users):  # no table and no view of it is left
                return earlier.pop(i)[0]
        n_rows += round(_BLOCK_BYTES / layout.row_bytes)
        return [np.empty(n_rows * dtype.itemsize, np.uint8).data for dtype in layout.dtypes]

    def handed_over(self) -> None:
        """Drop the blocks so far. Targets may still have rows of the last one: those of the running group."""
        while self._blocks:
            output, blocks = self._blocks.popitem()
            block = blocks[0]
            if sum(map(len, block.memory)) < 2 * _BLOCK_BYTES:
                self._earlier[output] = [*self._earlier.get(output, [])[-1:], (block.memory, block.users)]

    def release(self) -> dict[str, list[pa.Table]]:
        """Forget the layout, and return the blocks so far as tables."""
        self._layouts = {}
        tables = {output: [block.table(0, block.n_rows) for block in blocks] for output, blocks in self._blocks.items()}
        self._blocks.clear()
        return tables


def _by_output(result: Any) -> Mapping[Any, Any]:
    """Return the outputs of a result that may have arrays; other results may have any outputs here."""
    if type(result) is pa.Table:
        return {DEFAULT_OUTPUT: result}
    if type(result) is not dict:
        return {}
    return {DEFAULT_OUTPUT: result} if type(next(iter(result.values()), None)) is np.ndarray else result
