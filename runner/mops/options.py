"""Options, each declared once: a field of a dataclass, with its type, its default and an ``Option``.

The command line makes its parameters from these fields (``cli/start_options.py``), and pydantic checks what callers in
Python give (:func:`checked`). The options that a job keeps are fields of its record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mops.errors import UsageError, message_of

T = TypeVar("T")

# Panels of the command line's help.
COMMON = "Common"
SERVICE = "Cluster service"
ADVANCED = "Advanced"
STUDY = "Study file (.json)"


@dataclass(frozen=True)
class Option:
    """How the command line shows a field; it goes into the field's annotation."""

    help: str
    metavar: str | None = None
    panel: str | None = None
    flags: str | None = None  # None: `flag_of` the field's name


def flag_of(field: str) -> str:
    """Return the command line's name for a field."""
    return f"--{field.removesuffix('_s').replace('_', '-')}"


def checked(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return options from the values that a caller gave; None: not given.

    Raises
    ------
    TypeError
        An option is unknown.
    UsageError
        A value is not possible.
    """
    if unknown := sorted(given.keys() - {field.name for field in fields(kind)}):  # type: ignore[arg-type]
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    try:
        return TypeAdapter(kind).validate_python({name: value for name, value in given.items() if value is not None})
    except ValidationError as bad:
        fault = bad.errors()[0]
        name, *path = map(str, fault["loc"])
        what = f"the value of {'.'.join(path)} in {name}" if path else name
        hint = message_of(fault).replace("Input should be", "use a value that is", 1)
        raise UsageError(f"{what} is {fault['input']!r}", where="the options", hint=hint) from None
