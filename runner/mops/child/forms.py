"""Reads dataclasses, pydantic models and dictionaries as rows, and remembers what is known of a type.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

Found = TypeVar("Found")

_MOST_TYPES = 128


def by_type(function: Callable[[type], Found]) -> Callable[[type], Found]:
    """Return a function of a type that computes each result once. A model may make classes without end."""
    return cast(Callable[[type], Found], functools.lru_cache(_MOST_TYPES)(function))


@by_type
def is_record(kind: type) -> bool:
    """Tell whether a type is a dataclass or a model of pydantic 2."""
    return hasattr(kind, "__dataclass_fields__") or (hasattr(kind, "model_dump") and hasattr(kind, "model_fields"))


def fields_of(record: Any) -> Mapping[str, Any]:
    """Return the fields of a record; the records inside of it stay as they are.

    Raises
    ------
    TypeError
        It is a model of pydantic with a single value, or not a record.
    """
    kind = type(record)
    if not is_record(kind):
        raise _mixed(record)
    if not hasattr(kind, "model_dump"):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    found = record.model_dump()
    if not isinstance(found, Mapping):
        raise TypeError(f"{kind.__name__}.model_dump() gives {type(found).__name__}; a row needs names and values")
    return found


def rows_of(values: Sequence[Any]) -> list[Mapping[Any, Any]]:
    """Return records, or dictionaries, as rows: names and values.

    Raises
    ------
    TypeError
        Not all values are of the form of the first one.
    """
    if is_record(type(values[0])):
        return [fields_of(value) for value in values]
    for value in values:
        if not isinstance(value, Mapping) or is_record(type(value)):
            raise _mixed(value)
    return list(values)


def columns_of(rows: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Return rows as columns.

    Raises
    ------
    TypeError
        Not all rows have the same names.
    """
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            differing = ", ".join(sorted(map(str, row.keys() ^ names)))
            raise TypeError(f"rows 0 and {number} differ in their fields: {differing}; give all rows the same fields")
    return {name: [row[name] for row in rows] for name in names}


def _mixed(value: object) -> TypeError:
    return TypeError(f"it mixes rows and {type(value).__name__}; return only rows of one type")
