"""Reads results of xarray, polars and DuckDB as tables, and gives a target the tables that its annotation names.

A value of such a type exists only if the model has imported the library. So this module imports none: it knows a type
by its name and module. Runs in children: the standard library and pyarrow only.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import abc, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa

from mops.child.buffers import Tables
from mops.child.columns import by_type, is_of, of_exported, of_frame, of_mapping
from mops.study.output_schema import InvalidOutput


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


# The classes that an annotation may name, and how each is made. An annotation that is not text holds the class itself,
# so the module of the target has imported the library.
_FRAMES: dict[tuple[str, str], Callable[[pa.Table], Any]] = {
    ("pandas", "DataFrame"): lambda table: table.to_pandas(),
    ("polars", "DataFrame"): lambda table: sys.modules["polars"].from_arrow(table),
    ("pyarrow", "Table"): lambda table: table,
}
# An annotation that names another class of these is a mistake.
_TABLES = ("pandas", "polars", "pyarrow", "geopandas", "xarray", "duckdb", "_duckdb")
_LIBRARIES = (*_TABLES, "numpy", "dask", "torch", "jax")
_LISTS = (list, Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_MAPPINGS = (dict, Mapping, abc.MutableMapping)


class UnsupportedForm(Exception):
    """An annotation names a form that mops does not make; the message says which forms there are."""


class Unresolved(Exception):
    """An annotation cannot be evaluated."""


Form = Callable[[Sequence[Tables]], list[Any]]  # converts the replicates


def form_of(annotation: object, function: Any) -> Form | None:
    """Return what gives a target the tables that its annotation names; None: it names no class of their libraries."""
    resolved = _resolved(annotation, function)
    if not any(is_of(library, kind) for kind in _classes(resolved) for library in _LIBRARIES):
        return None
    element = _argument(resolved, _LISTS, 0)
    named = _argument(element, _MAPPINGS, 1)
    frame = element if named is None else named
    convert = _FRAMES.get((frame.__module__.partition(".")[0], frame.__qualname__)) if inspect.isclass(frame) else None
    if convert is None:
        raise UnsupportedForm(
            f"{_text(annotation)}; write list[dict[str, FRAME]], or list[FRAME] for a model with one output; FRAME is "
            "pandas.DataFrame, polars.DataFrame or pyarrow.Table"
        )

    def with_names(replicates: Sequence[Tables]) -> list[dict[str, Any]]:
        return [{output: convert(table) for output, table in one.items()} for one in replicates]

    def of_one_output(replicates: Sequence[Tables]) -> list[Any]:
        for outputs in replicates:
            if len(outputs) > 1:
                raise InvalidOutput(
                    f"the target takes one table for each replicate, and the model has the outputs "
                    f"{', '.join(outputs)}; annotate the replicates as list[dict[str, ...]]"
                )
        return [convert(next(iter(outputs.values()))) for outputs in replicates]

    return of_one_output if named is None else with_names


def _resolved(annotation: object, function: Any) -> Any:
    """Return an annotation without texts; names that only a type checker imports do not exist."""

    def holder() -> None: ...

    holder.__annotations__ = {"replicates": annotation}
    try:
        resolved = get_type_hints(holder, globalns=_namespace(function))["replicates"]
    except Exception as error:  # code of the user, in an annotation
        raise Unresolved(f"the annotation {_text(annotation)} ({error})") from error
    while hasattr(resolved, "__value__"):  # a name that the statement `type` defines
        resolved = resolved.__value__
    return resolved


def _namespace(function: Any) -> dict[str, Any]:
    """Return the globals of a function, and those of the functions that it wraps."""
    found: dict[str, Any] = {}
    while function is not None:
        if isinstance(function, functools.partial):
            function = function.func
            continue
        call = function if hasattr(function, "__globals__") else inspect.getattr_static(type(function), "__call__")
        found = {**getattr(call, "__globals__", {}), **found}
        function = getattr(function, "__wrapped__", None)
    return found


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    origin = get_origin(annotation)
    if isinstance(origin, type):
        yield origin
    for inner in get_args(annotation):
        yield from _classes(inner)


def _argument(annotation: Any, origins: Sequence[type], position: int) -> Any:
    """Return an argument of a generic type such as ``list[X]``; None: it is another type."""
    arguments = get_args(annotation)
    return arguments[position] if get_origin(annotation) in origins and len(arguments) > position else None


def _text(annotation: object) -> str:
    return repr(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
