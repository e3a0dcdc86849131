"""Reads committed rows batch by batch, with the parameters of their sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from mops.errors import CorruptRecord, UsageError
from mops.jobs.conditions import Where, condition, explained
from mops.storage.files import Files
from mops.storage.params_file import GROUP_FIELDS, free_names
from mops.storage.paths import JobPaths

CHUNK_ROWS = 10_000
_OF_GROUP = {field.name for field in GROUP_FIELDS}


class Parameters:
    """The parameters of a job's sets; the file is opened once, and only the columns are read that are needed."""

    # Row i of params.parquet is group i.

    def __init__(self, files: Files, paths: JobPaths):
        self._filesystem, self._path = files.arrow(paths.params)
        self._read: dict[str, pa.ChunkedArray] = {}

    @functools.cached_property
    def _file(self) -> pq.ParquetFile:
        with self._readable():
            return pq.ParquetFile(self._path, filesystem=self._filesystem)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as bad:
            # What Arrow says of damaged pages has no number.
            if isinstance(bad, OSError) and bad.errno is not None and not isinstance(bad, FileNotFoundError):
                raise
            raise CorruptRecord(f"the table of parameter sets cannot be read: {bad}", where=self._path) from bad

    def fields(self, taken: Collection[str]) -> dict[str, pa.Field]:
        """Return the column of each parameter in a table with other columns, by its name in ``params.parquet``."""
        stored = [field for field in self._file.schema_arrow if field.name not in _OF_GROUP]
        names = free_names([field.name for field in stored], taken)
        return {field.name: field.with_name(names[field.name]) for field in stored}

    def ids(self) -> pa.Array:
        """Return the param_id of each group."""
        return self.columns(["param_id"])["param_id"].combine_chunks()

    def whole(self) -> pa.Table:
        """Return all of ``params.parquet``."""
        return self.columns(self._file.schema_arrow.names)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return columns of ``params.parquet``."""
        if missing := [name for name in names if name not in self._read]:
            with self._readable():
                table = self._file.read(columns=missing)
            self._read |= {name: table[name] for name in missing}
        schema = pa.schema([self._file.schema_arrow.field(name) for name in names])
        return pa.table([self._read[name] for name in names], schema=schema)

    def next_to(self, taken: Collection[str]) -> pa.Table:
        """Return the columns of the parameters, with the names that they have next to other columns."""
        fields = self.fields(taken)
        return self.columns(list(fields)).rename_columns([field.name for field in fields.values()])

    def joined(self, table: pa.Table) -> pa.Table:
        """Return a table with a column for each parameter of the set of its ``group``."""
        theirs = self.next_to(table.column_names)
        for name in theirs.column_names:
            table = table.append_column(theirs.schema.field(name), theirs[name].take(table["group"]))
        return table

    def texts(self, groups: Sequence[int]) -> list[str]:
        """Return the parameters of some sets as canonical JSON; it reads only the pieces of the file with these."""
        with self._readable():
            metadata = self._file.metadata
            bounds = [0, *accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
            piece_of = {group: int(np.searchsorted(bounds, group, "right")) - 1 for group in groups}
            pieces = {i: self._file.read_row_group(i, columns=["params"])["params"] for i in set(piece_of.values())}
        return [pieces[piece_of[group]][group - bounds[piece_of[group]]].as_py() for group in groups]


_FIRST, _LAST = ("group", "replicate"), ("seed", "param_id")


def in_order(own: Sequence[str], parameters: Sequence[str] = ()) -> list[str]:
    """Return the columns in the order of a table: keys, parameters, values, and last the long numbers of identity."""
    first, last = [name for name in _FIRST if name in own], [name for name in _LAST if name in own]
    return [*first, *parameters, *(name for name in own if name not in (*first, *last)), *last]


class Rows(Protocol):
    """Rows that are read when they are needed."""

    schema: pa.Schema
    of_set: Sequence[str]  # the columns with one value for each parameter set

    def count(self) -> int:
        """Return the number of rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, which may be more than memory holds."""

    def table(self) -> pa.Table:
        """Return the rows in the order of the study."""


@dataclass(frozen=True)
class Selection:
    """The rows and columns that a caller wants of a table."""

    params: bool = False  # whether the table has a column for each parameter
    where: Where | None = None  # None: all rows
    columns: Sequence[str] | None = None  # in this order; None: all, in the order of `in_order`

    def names(self, own: Sequence[str], parameters: Sequence[str]) -> list[str]:
        """Return the names of the columns; raise UsageError if one does not exist."""
        if self.columns is None:
            return in_order(own, parameters if self.params else ())
        known = [*own, *parameters]
        if unknown := [name for name in self.columns if name not in known]:
            raise UsageError(
                f"the table has no column {unknown[0]!r}", where="columns", hint=f"its columns are {', '.join(known)}"
            )
        return list(self.columns)


class Scan:
    """The selected rows of a dataset that has a column ``group``."""

    def __init__(
        self,
        dataset: ds.Dataset,
        parameters: Parameters,
        selection: Selection,
        order: Sequence[str],  # the columns that sort the rows of the table; rows with equal values stay as stored
        *,
        sorts_batches: bool = True,  # False: batches come as they are stored, so that memory bounds no read
    ):
        stored = dataset.schema
        others = set(selection.columns or ()) - set(stored.names)
        # A parameter may be in the result or in the condition.
        fields = parameters.fields(stored.names) if selection.params or selection.where is not None or others else {}
        shown = [field.name for field in fields.values()]
        whole = pa.schema([*stored, *fields.values()])
        where = condition(selection.where, stored, pa.schema([stored.field("group"), *fields.values()]), parameters.ids)
        names = selection.names(stored.names, shown)
        needed = set(whole.names) if where.joined is not None else {*names, "group"}
        joined = {old: field.name for old, field in fields.items() if field.name in needed}
        self._dataset, self._order, self._sorts_batches = dataset, order, sorts_batches
        self._sets = parameters.columns(list(joined)).rename_columns(list(joined.values())) if joined else None
        self._read = pa.schema([field for field in whole if field.name in needed])
        self._read_in_order = pa.schema([field for field in whole if field.name in needed or field.name in order])
        self._filter, self._after = where.stored, where.joined
        if where.parameters is not None:
            self._filter = pc.field("group").isin(_groups(parameters, fields, where.parameters))
        self.schema = pa.schema([whole.field(name) for name in names])
        self.of_set: Sequence[str] = [name for name in names if name in ("param_id", *shown)]

    def count(self) -> int:
        """Return the number of rows."""
        if self._after is None:
            with explained():
                return int(self._dataset.count_rows(filter=self._filter))
        return sum(table.num_rows for table in self._unsorted(self._read))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, sorted if the table is small by nature."""
        if self._sorts_batches:
            yield from self.table().to_batches()
            return
        for table in self._unsorted(self._read):
            yield from table.select(self.schema.names).to_batches()

    def table(self) -> pa.Table:
        """Return the rows in the order of the study."""
        schema = self._read_in_order
        whole = pa.concat_tables([schema.empty_table(), *self._unsorted(schema)]).unify_dictionaries()
        shown = whole.select(self.schema.names)
        if _are_sorted(whole.select(self._order)):  # as of most jobs: `take` needs the memory of all rows again
            return shown
        return shown.take(pc.sort_indices(whole, [(name, "ascending") for name in self._order]))  # stable

    def _unsorted(self, schema: pa.Schema) -> Iterator[pa.Table]:
        own = [name for name in schema.names if name in self._dataset.schema.names]
        with explained():
            for batch in self._dataset.to_batches(columns=own, filter=self._filter):
                sets = self._sets.take(batch["group"]).columns if self._sets is not None else ()
                table = pa.Table.from_arrays([*batch.columns, *sets], schema=schema)
                yield table if self._after is None else filtered(table, self._after)


def filtered(table: pa.Table, where: pc.Expression) -> pa.Table:
    """Return the rows that meet a condition, in their order, which ``Table.filter`` does not promise."""
    with explained():
        return ds.dataset(table).to_table(filter=where)


def _are_sorted(keys: pa.Table) -> bool:
    """Tell whether rows are sorted by their columns; False if a key is null."""
    is_tied: npt.NDArray[np.bool_] = np.ones(max(len(keys) - 1, 0), bool)
    for column in keys.columns:
        if column.null_count:
            return False
        values = column.to_numpy()
        if (is_tied & (values[1:] < values[:-1])).any():
            return False
        is_tied &= values[1:] == values[:-1]
    return True


def _groups(parameters: Parameters, fields: dict[str, pa.Field], where: pc.Expression) -> pa.Array:
    sets = parameters.columns(["group", *fields])
    names = ["group", *(field.name for field in fields.values())]
    return filtered(sets.rename_columns(names), where)["group"].combine_chunks()


class Computed:
    """Selected rows of a table in memory."""

    def __init__(
        self,
        table: pa.Table,
        selection: Selection,
        # Returns the param_id of each parameter set of the job.
        ids: Callable[[], pa.Array] = lambda: pa.array([], pa.string()),
        of_set: Sequence[str] = (),
        first: int | None = None,  # the most rows; None: all
        each: str | None = None,  # the column of which each value may have `first` rows; None: the whole table
    ):
        where = condition(selection.where, table.schema, pa.schema([]), ids).stored
        kept = table if where is None else filtered(table, where)
        if first is not None:
            first = min(first, kept.num_rows)
        if first is not None and each is not None:
            kept = pa.concat_tables(
                [kept.filter(pc.equal(kept[each], value)).slice(0, first) for value in table[each].unique()]
            )
            first = None
        names = table.column_names if selection.columns is None else selection.names(table.column_names, ())
        self._table = kept.select(names).slice(0, first)
        self.schema: pa.Schema = self._table.schema
        self.of_set = of_set

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield from self._table.to_batches()

    def table(self) -> pa.Table:
        """Return the rows."""
        return self._table
