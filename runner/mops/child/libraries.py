"""Reads tables that a library computes or converts only on request: xarray, lazy frames of polars, DuckDB.

A value of such a type exists only if the model has imported the library. So this module imports none: it knows a type
by its name and module. Runs in children: the standard library and pyarrow only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pyarrow as pa

from mops.child.columns import by_type, is_of, of_exported, of_frame, of_mapping


def _of_dataset(dataset: Any) -> pa.Table:  # tidy: a row for each combination of coordinates
    by_dimensions: dict[frozenset[Hashable], list[Hashable]] = defaultdict(list)
    for name, variable in dataset.data_vars.items():
        by_dimensions[frozenset(variable.dims)].append(name)
    if not by_dimensions:
        raise ValueError("the Dataset has no data variables")
    if len(by_dimensions) > 1:
        sets = [f"{names} of ({', '.join(sorted(map(str, dims)))})" for dims, names in by_dimensions.items()]
        outputs = [f"'name{number}': dataset[{names}]" for number, names in enumerate(by_dimensions.values(), 1)]
        raise ValueError(
            f"the Dataset has variables of different dimensions: {', '.join(sets)}; return an output for each set of "
            f"dimensions: {{{', '.join(outputs)}}}"
        )
    # Without coordinates of other dimensions, which would repeat the rows.
    dataset = dataset[list(dataset.data_vars)]
    if not dataset.sizes:
        return of_mapping({**dataset.data_vars, **dataset.coords})
    return of_frame(dataset.to_dataframe())


def of_data_array(array: Any) -> pa.Table:
    """Return a DataArray of xarray as a tidy table: a row for each combination of coordinates."""
    # xarray exports one without a name under the same name to Arrow.
    return of_frame(array.to_dataframe(name="values" if array.name is None else array.name))


def _of_relation(relation: Any) -> pa.Table:
    try:
        # Early versions export no stream. A stream needs less memory than a table.
        is_stream = hasattr(relation, "__arrow_c_stream__")
        return of_exported(relation if is_stream else relation.to_arrow_table())
    except Exception as error:
        if type(error).__name__ != "ConnectionException":
            raise
        # DuckDB 1 closes a connection with the last reference to it, and relations hold none.
        advice = "keep the connection in a global variable, or return relation.to_arrow_table()"
        raise ValueError(f"{error}; {advice}") from error


_READERS: dict[tuple[str, str], Callable[[Any], pa.Table]] = {
    ("xarray", "Dataset"): _of_dataset,
    ("xarray", "DataArray"): of_data_array,
    ("polars", "LazyFrame"): lambda frame: of_exported(frame.collect()),
    ("duckdb", "DuckDBPyRelation"): _of_relation,
}


@by_type
def reader_of(kind: type) -> Callable[[Any], pa.Table] | None:
    """Return the function that reads values of a type as a table; None: the type is none of these."""
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0].lstrip("_")
        if (reader := _READERS.get((library, base.__name__))) is not None:
            return reader
    return None


def is_tree(kind: type) -> bool:
    """Tell whether a type is a mapping of xarray that is no Dataset: a DataTree, whose columns are in its nodes."""
    return issubclass(kind, Mapping) and is_of("xarray", kind) and reader_of(kind) is None
