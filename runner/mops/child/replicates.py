"""Gives a target the tables that the annotation of its replicates names: pandas, polars or Arrow.

An annotation that is not text holds the class itself, so the target's module has imported the library. Runs in
children: the standard library and pyarrow only.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa

from mops.child.buffers import Tables
from mops.child.columns import is_of
from mops.study.output_schema import InvalidOutput

# The classes that an annotation may name, and how each is made.
_FRAMES: dict[tuple[str, str], Callable[[pa.Table], Any]] = {
    ("pandas", "DataFrame"): lambda table: table.to_pandas(),
    ("polars", "DataFrame"): lambda table: sys.modules["polars"].from_arrow(table),
    ("pyarrow", "Table"): lambda table: table,
}
# An annotation that names another class of these is a mistake.
_LIBRARIES = (
    *("pandas", "polars", "pyarrow", "numpy", "geopandas", "xarray", "duckdb", "_duckdb", "dask", "torch", "jax"),
)
_LISTS = (list, Sequence, MutableSequence, Collection, Iterable)
_MAPPINGS = (dict, Mapping, MutableMapping)


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
