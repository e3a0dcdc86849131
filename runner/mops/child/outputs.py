"""Reads what a model returns as Arrow tables. study/output_schema.py checks them against the job's reference schema.

The type of a table tells its form, and each form has a reader. A value of xarray, polars or DuckDB exists only if the
model has imported the library, so mops imports none: it knows their types by name and module. Runs in children: the
standard library, numpy and pyarrow only. See docs/reference/result-forms.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.child.blocks import Blocks, Outputs
from mops.child.columns import (
    by_type,
    fields_of,
    is_of,
    is_pandas,
    is_record,
    is_scalar,
    of_exported,
    of_frame,
    of_mapping,
)
from mops.child.copies import one_process
from mops.study.column_families import Columns, Families
from mops.study.column_types import families_in
from mops.study.output_schema import DEFAULT_OUTPUT, InvalidOutput, OutputSchema

IDENTITY = ("param_id", "group", "replicate", "seed")

_MOST_NAME = 255 - len(".01234567.partial") - len("output-.parquet")  # an exported file has this name, too
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and lone surrogates


class Results:
    """Reads the results of one task, and checks them against the job's reference schema.

    If that schema always fits, mops only copies results that are like the one before (child/blocks.py).
    """

    def __init__(self, reference: Families | None):  # of the job's outputs; None: the first result says them
        self._schema = OutputSchema(reference) if reference else None
        self._blocks = Blocks()
        self.first: Families | None = None  # those of the first result, if it has become the reference

    def read(self, result: object, seed: int) -> Outputs:
        """Return what a simulation returned; raise InvalidOutput if mops cannot store it, or it has another schema."""
        copied = self._blocks.take(result)
        return copied if copied is not None else self._checked(result, seed)

    def _checked(self, result: object, seed: int) -> Outputs:
        with one_process():  # a lazy table runs code of the model
            tables = as_tables(result, seed, self._schema.families if self._schema else None)
        if self._schema is None:
            self.first = {output: families_in(table) for output, table in tables.items()}
            self._schema = OutputSchema(self.first)
        # The schema has not seen the values that were only copied, which this result must fit.
        for output, earlier in self._blocks.release().items():
            for table in earlier:
                self._schema.learn({output: families_in(table)})
        tables = self._schema.check(tables)
        if self._schema.always_fits(tables):
            self._blocks.learn(result, tables)
        return tables

    def families_of(self, output: str) -> Columns:
        """Return the families of an output's columns, as far as this process knows them."""
        return self._schema.families.get(output, {}) if self._schema is not None else {}

    def handed_over(self, families: Families) -> None:
        """Add the families of all results so far, which the child process has handed over."""
        self._blocks.handed_over()
        if self._schema is not None:
            self._schema.handed_over(families)


def as_tables(
    result: object,  # in a form of docs/reference/result-forms.md
    seed: int,
    known: Families | None = None,  # what columns an empty list of rows has; None: this is the first result
) -> dict[str, pa.Table]:
    """Return a model's result as one table for each output, which shares no memory with the result."""
    tables = {name: _named(name, _table(name, value), seed) for name, value in _outputs(result, known or {}).items()}
    if alike := _alike(tables):
        raise InvalidOutput(f"the outputs {alike} differ only in upper and lower case; rename all but one")
    return tables


def _outputs(result: object, known: Families) -> Mapping[str, object]:
    form = _form(result)
    if form in _READERS and form != "mapping":
        return {DEFAULT_OUTPUT: result}
    if result is None:
        raise InvalidOutput("the model returned None; add a return statement with a table or a mapping of columns")
    if form == "empty":
        return {DEFAULT_OUTPUT: _no_rows(DEFAULT_OUTPUT, known)}
    if form == "other" or not isinstance(result, Mapping):
        advice = "return a table, a list of rows, or a mapping of tables, of columns, or of numbers and strings"
        raise InvalidOutput(f"the model returned {_called(result)}; {advice}")
    if not result:
        raise InvalidOutput("the model returned an empty mapping; it must hold at least one output or column")
    forms = {_form(value) for value in result.values()}
    if forms - {"empty"} and forms <= _READERS.keys() | {"empty"}:
        return {_name(key): _no_rows(key, known) if _form(value) == "empty" else value for key, value in result.items()}
    if forms == {"scalar"}:
        return {DEFAULT_OUTPUT: {key: [value] for key, value in result.items()}}
    if forms == {"empty"} and result.keys() == known.keys() and result.keys() != known.get(DEFAULT_OUTPUT, {}).keys():
        return {key: _no_rows(key, known) for key in known}
    if forms <= {"column", "rows", "empty"}:  # next to a column, dictionaries are the values of a column
        return {DEFAULT_OUTPUT: result}
    kinds = ", ".join(f"{key!r}: {_called(value)}" for key, value in list(result.items())[:8])
    raise InvalidOutput(
        f"the model returned a mapping of {kinds}; return only tables, only columns, or only numbers and strings"
    )


def _no_rows(output: str, known: Families) -> pa.Table:
    if output not in known:
        raise InvalidOutput(
            f"output {output!r} is an empty list, and mops does not know its columns yet; return a table without rows "
            "that has the columns"
        )
    return pa.table({name: pa.nulls(0) for name in known[output]})


def _alike(names: Iterable[str]) -> str:
    """List the first names that differ only in upper and lower case; empty: all names differ."""
    # DuckDB and other SQL engines read one column for the other, and some file systems have one folder for both.
    of: dict[str, list[str]] = {}
    for name in names:
        of.setdefault(name.casefold(), []).append(name)
    return next((" and ".join(map(repr, alike)) for alike in of.values() if len(alike) > 1), "")


def _name(key: object) -> str:
    if not isinstance(key, str) or not is_writable(key) or "/" in key or key.startswith("."):
        raise InvalidOutput(
            f"{key!r} cannot name an output: a name is a non-empty string without '/' and control characters"
        )
    if (n := len(quote(key, safe=""))) > _MOST_NAME:
        raise InvalidOutput(
            f"the name of output {key[:20] + '...'!r} needs {n} characters as a file name, and can have {_MOST_NAME}; "
            "shorten it (a letter that is not ASCII takes 6 to 12)"
        )
    return key


def is_writable(name: str) -> bool:
    """Tell whether a name can be stored: it is not empty, and is Unicode without control characters."""
    return bool(name) and not _UNWRITABLE.search(name)


def _form(value: Any) -> str:
    """Tell the form of a value: one of those of a type, a list of records or of dictionaries, or an empty list."""
    form = _form_of(type(value))
    if form in ("column", "data array") and getattr(value, "ndim", 1) == 0:
        return "scalar"
    if form == "column" and isinstance(value, list | tuple):
        first = _form_of(type(value[0])) if value else "empty"
        return {"record": "records", "mapping": "rows", "empty": "empty"}.get(first, "column")
    if form == "column or batch":
        return "export" if pa.types.is_struct(pa.array(value).type) else "column"
    return form


_FORMS = {
    ("xarray", "Dataset"): "dataset",
    ("xarray", "DataArray"): "data array",
    ("polars", "LazyFrame"): "query of polars",
}


@by_type
def _form_of(kind: type) -> str:
    """Tell the form of a type's values: a key of _READERS, or column, scalar, other."""
    if is_pandas(kind) and hasattr(kind, "columns"):
        return "pandas frame"
    if is_scalar(kind):
        return "scalar"
    # Before mappings, arrays and streams: some of these are that too, and would lose their coordinates.
    for base in kind.__mro__:
        if (form := _FORMS.get((base.__module__.partition(".")[0].lstrip("_"), base.__name__))) is not None:
            return form
    if issubclass(kind, Mapping):
        return "other" if is_of("xarray", kind) else "mapping"  # the columns of a DataTree are in its nodes
    # A series streams too, as one column; unlike a frame, it has to_frame.
    is_series = kind is pa.ChunkedArray or (hasattr(kind, "to_frame") and not hasattr(kind, "columns"))
    if hasattr(kind, "__arrow_c_stream__") and not is_series:
        return "export"
    if is_series or issubclass(kind, Sequence | np.ndarray | pa.Array):
        return "other" if issubclass(kind, bytes) else "column"
    if hasattr(kind, "__arrow_c_array__"):
        return "column or batch"
    has_labels = hasattr(kind, "to_dataframe")  # which a column would lose
    if not has_labels and (hasattr(kind, "__array__") or hasattr(kind, "__arrow_array__")):
        return "column"
    return "record" if is_record(kind) else "other"


def _called(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | tuple) else kind


def _table(output: str, value: Any) -> pa.Table:
    """Return a value as a table of plain types, in memory that no other code can change."""
    try:
        return _READERS[_form(value)](value)
    except MemoryError:
        raise
    except Exception as refused:  # raised by code of any library whose tables a model returns
        raise InvalidOutput(f"output {output!r} cannot be read as a table: {refused}") from refused


def _named(output: str, table: pa.Table, seed: int) -> pa.Table:
    """Check the names of a table's columns, and drop the seed, which mops stores itself."""
    names = table.column_names
    if not names:
        raise InvalidOutput(f"output {output!r} has no columns")
    if len(set(names)) < len(names):
        raise InvalidOutput(f"output {output!r} has columns of the same name: {', '.join(names)}")
    if alike := _alike(names):
        raise InvalidOutput(
            f"output {output!r} has columns {alike}, which differ only in upper and lower case; SQL engines "
            "read one for the other, so rename all but one"
        )
    taken = [name for name in names if name.casefold() in IDENTITY]
    if not taken:
        return table
    if others := [name for name in taken if name.casefold() != "seed"]:
        raise InvalidOutput(f"output {output!r} has a column {others[0]!r}, which mops adds; rename the model's column")
    (own,) = taken
    # Compared as Python numbers: exact for seeds above 2**53, whatever the column's width.
    kind, is_ = table[own].type, pa.types
    is_number = is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind)
    if not is_number or not set(pc.unique(table[own]).to_pylist()) <= {seed}:
        raise InvalidOutput(
            f"output {output!r} has a column {own!r} that is not the simulation's seed, {seed}; rename it"
        )
    if table.num_columns == 1:
        raise InvalidOutput(f"output {output!r} has no column but {own!r}, which mops adds; return another column")
    return table.drop_columns([own])


def _of_rows(values: Sequence[Any]) -> pa.Table:
    are_records = is_record(type(values[0]))
    for value in values:
        if not isinstance(value, Mapping) and not (are_records and is_record(type(value))):
            raise TypeError(f"it mixes rows and {type(value).__name__}; return only rows of one type")
    rows: Sequence[Mapping[Any, Any]] = [fields_of(value) for value in values] if are_records else values
    names = rows[0].keys()
    if tables := [name for name in names if _form_of(type(rows[0][name])) in _READERS.keys() - {"mapping", "record"}]:
        raise TypeError(f"field {tables[0]!r} of a row holds a table; return a dictionary of tables instead")
    for number, row in enumerate(rows):
        if row.keys() != names:
            differing = ", ".join(sorted(map(str, row.keys() ^ names)))
            raise TypeError(f"rows 0 and {number} differ in their fields: {differing}; give all rows the same fields")
    return of_mapping({name: [row[name] for row in rows] for name in names})


def _of_dataset(dataset: Any) -> pa.Table:  # tidy: a row for each combination of coordinates
    by_dimensions: dict[frozenset[Hashable], list[Hashable]] = defaultdict(list)
    for name, variable in dataset.data_vars.items():
        by_dimensions[frozenset(variable.dims)].append(name)
    if not by_dimensions:
        raise ValueError("the Dataset has no data variables")
    if len(by_dimensions) > 1:
        sets = [f"{names} of ({', '.join(sorted(map(str, dims)))})" for dims, names in by_dimensions.items()]
        raise ValueError(
            f"the Dataset has variables of different dimensions: {', '.join(sets)}; return an output for each set of "
            "dimensions"
        )
    # Without coordinates of other dimensions, which would repeat the rows.
    dataset = dataset[list(dataset.data_vars)]
    if not dataset.sizes:
        return of_mapping({**dataset.data_vars, **dataset.coords})
    return of_frame(dataset.to_dataframe())


_READERS: dict[str, Callable[[Any], pa.Table]] = {  # by form
    "mapping": of_mapping,
    "pandas frame": of_frame,
    "export": of_exported,
    "record": lambda record: _of_rows([record]),
    "records": _of_rows,
    "rows": _of_rows,
    "dataset": _of_dataset,
    # xarray exports an array without a name under the name "values" to Arrow too.
    "data array": lambda array: of_frame(array.to_dataframe(name="values" if array.name is None else array.name)),
    "query of polars": lambda frame: of_exported(frame.collect()),
}
