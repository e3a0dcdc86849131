"""Reads dataclasses and pydantic models as rows. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mops.child.forms.by_type import by_type


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
        raise TypeError(f"it mixes rows and {kind.__name__}; return only rows of one type")
    if not hasattr(kind, "model_dump"):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    found = record.model_dump()
    if not isinstance(found, Mapping):
        raise TypeError(f"{kind.__name__}.model_dump() gives {type(found).__name__}; a row needs names and values")
    return found


def columns_of(records: Sequence[Any]) -> dict[str, list[Any]]:
    """Return rows as columns.

    Raises
    ------
    TypeError
        Not all rows are records with the same fields.
    """
    rows = [fields_of(record) for record in records]
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            differing = ", ".join(sorted(row.keys() ^ names))
            raise TypeError(f"rows 0 and {number} differ in their fields: {differing}; give all rows the same fields")
    return {name: [row[name] for row in rows] for name in names}
