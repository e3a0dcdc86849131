"""Reads what a model returns as Arrow tables. study/output_schema.py checks them against the job's reference schema.

Children import this: the standard library, numpy and pyarrow only. See docs/reference/models.md.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.child.columns import is_pandas, is_scalar, of_exported, of_frame, of_mapping
from mops.study.output_schema import InvalidOutput

DEFAULT_OUTPUT = "output"
IDENTITY = ("param_id", "group", "replicate", "seed")

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and lone surrogates


# The last schema of each output whose names are good. bench/tricks.py, one child, arrow: -11 % of its CPU time.
_good_schemas: dict[str, pa.Schema] = {}

_Layout = tuple[tuple[str, np.dtype[Any]], ...]

# For each output, the names and types of the numpy arrays of its last table of arrays, and the schema of that table.
# bench/tricks.py, one child: -7 % of its CPU time.
_arrays_known: dict[str, tuple[_Layout, pa.Schema]] = {}


def as_tables(result: object, seed: int) -> dict[str, pa.Table]:
    """Return a model's result as one table for each output.

    Parameters
    ----------
    result
        A mapping of output name to table, one table, a mapping of columns, or a mapping of name to number or
        string. A table is anything that exports Arrow, or a pandas frame. The returned tables share no memory with it.
    seed
        The simulation's seed. A column ``seed`` that holds only this value is dropped, because mops stores it anyway.

    Raises
    ------
    InvalidOutput
        The result has another form, a column has a reserved name, or a column cannot be stored without loss.
    """
    return {name: _as_table(name, value, seed) for name, value in _outputs(result).items()}


def _as_table(output: str, value: Any, seed: int) -> pa.Table:
    layout = _layout(value)
    known, schema = _arrays_known.get(output, (None, None))
    if layout is not None and layout == known:
        # Arrays with a wrong length or dimension raise here. The code below reports them by name.
        with contextlib.suppress(pa.ArrowException, ValueError):
            return pa.Table.from_arrays([pa.array(column.copy()) for column in value.values()], schema=schema)
    table = _table(output, value)
    named = _named(output, table, seed)
    if layout is not None and named is table:
        # pyarrow keeps the types of numbers, so it makes this schema of all arrays of this layout.
        are_numbers = all(dtype.kind in "biuf" and dtype.isnative for _, dtype in layout)
        if are_numbers and table.schema.types == [pa.from_numpy_dtype(dtype) for _, dtype in layout]:
            _arrays_known[output] = layout, table.schema
    return named


def _layout(value: Any) -> _Layout | None:
    """Return the names and types of the columns of a mapping of numpy arrays; None: it is something else."""
    if type(value) is not dict:
        return None
    columns = [(n, c.dtype) for n, c in value.items() if type(n) is str and type(c) is np.ndarray]
    return tuple(columns) if len(columns) == len(value) else None


def _outputs(result: object) -> Mapping[str, object]:
    form = _form(result)
    if form == "frame":
        return {DEFAULT_OUTPUT: result}
    if result is None:
        raise InvalidOutput("the model returned None; add a return statement with a table or a mapping of columns")
    if not isinstance(result, Mapping):
        raise InvalidOutput(
            f"the model returned {_called(result)}; return a table, or a mapping of tables, of columns, or of numbers "
            "and strings"
        )
    if not result:
        raise InvalidOutput("the model returned an empty mapping; it must hold at least one output or column")
    forms = {_form(value) for value in result.values()}
    if forms <= {"frame", "mapping"}:
        return {_name(key): value for key, value in result.items()}
    if forms == {"scalar"}:
        return {DEFAULT_OUTPUT: {key: [value] for key, value in result.items()}}
    if forms == {"column"}:
        return {DEFAULT_OUTPUT: result}
    kinds = ", ".join(f"{key!r}: {_called(value)}" for key, value in list(result.items())[:8])
    raise InvalidOutput(
        f"the model returned a mapping of {kinds}; return only tables, only columns, or only numbers and strings"
    )


def _name(key: object) -> str:
    if not isinstance(key, str) or not is_writable(key) or "/" in key or key.startswith("."):
        raise InvalidOutput(
            f"{key!r} cannot name an output: a name is a non-empty string without '/' and control characters"
        )
    return key


def is_writable(name: str) -> bool:
    """Tell whether a name can be stored: it is not empty, and is Unicode without control characters."""
    return bool(name) and not _UNWRITABLE.search(name)


# bench/tricks.py, one child: -6 % of its CPU time.
_forms: dict[type, str] = {}


def _form(value: object) -> str:
    """Tell whether a value is a frame, a mapping, a scalar or a column; for most types that is decided once."""
    kind = type(value)
    if kind not in _forms:
        _forms[kind] = _form_of(kind)
    form = _forms[kind]
    if form == "column" and getattr(value, "ndim", 1) == 0:
        return "scalar"
    if form == "arrow":
        return "frame" if pa.types.is_struct(pa.array(value).type) else "column"
    return form


def _form_of(kind: type) -> str:
    if is_pandas(kind) and hasattr(kind, "columns"):
        return "frame"
    if is_scalar(kind):
        return "scalar"
    if issubclass(kind, Mapping):
        return "mapping"
    # A series streams too, as one column; unlike a frame, it has to_frame.
    is_series = kind is pa.ChunkedArray or (hasattr(kind, "to_frame") and not hasattr(kind, "columns"))
    if hasattr(kind, "__arrow_c_stream__") and not is_series:
        return "frame"
    is_column = is_series or issubclass(kind, Sequence | np.ndarray | pa.Array)
    if not is_column and hasattr(kind, "__arrow_c_array__"):
        return "arrow"  # a column, or a batch of them
    if not is_column and hasattr(kind, "to_dataframe"):
        return "other"  # xarray: a column would lose its coordinates
    is_column = is_column or hasattr(kind, "__array__") or hasattr(kind, "__arrow_array__")
    return "column" if is_column and not issubclass(kind, bytes) else "other"


def _called(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | tuple) else kind


def _table(output: str, value: Any) -> pa.Table:
    """Return a value as a table of plain types, in memory that no other code can change."""
    try:
        if isinstance(value, Mapping):
            return of_mapping(value)
        if is_pandas(type(value)):
            return of_frame(value)
        return of_exported(value)
    except MemoryError:
        raise
    except Exception as refused:  # raised by code of any library whose tables a model returns
        raise InvalidOutput(f"output {output!r} cannot be read as a table: {refused}") from refused


def _named(output: str, table: pa.Table, seed: int) -> pa.Table:
    """Check the names of a table's columns, and drop the seed, which mops stores itself."""
    if output in _good_schemas and _good_schemas[output].equals(table.schema, check_metadata=True):
        return table
    names = table.column_names
    if not names:
        raise InvalidOutput(f"output {output!r} has no columns")
    if len(set(names)) < len(names):
        raise InvalidOutput(f"output {output!r} has columns of the same name: {', '.join(names)}")
    if any(name in IDENTITY for name in names):
        table = _without_seed(output, table, seed)
    if table.column_names == names:  # not if the seed was dropped
        _good_schemas[output] = table.schema
    return table


def _without_seed(output: str, table: pa.Table, seed: int) -> pa.Table:
    taken = [name for name in table.column_names if name in IDENTITY and name != "seed"]
    # Compared as Python numbers: exact for seeds above 2**53, whatever the column's width.
    kind, is_ = table["seed"].type if not taken else pa.null(), pa.types
    is_number = is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind)
    if is_number and set(pc.unique(table["seed"]).to_pylist()) <= {seed}:
        if table.num_columns > 1:
            return table.drop_columns(["seed"])
        raise InvalidOutput(f"output {output!r} has no column but 'seed', which mops adds; return another column")
    if taken:
        raise InvalidOutput(f"output {output!r} has a column {taken[0]!r}, which mops adds; rename the model's column")
    raise InvalidOutput(f"output {output!r} has a column 'seed' that is not the simulation's seed, {seed}; rename it")
