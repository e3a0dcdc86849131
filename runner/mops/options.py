"""Options, each declared once: a field of a dataclass, with its type, its default and an ``Option``.

The command line makes its parameters from these fields (``cli/options.py``), and pydantic checks what callers in
Python give (:func:`checked`). The options that a job keeps are fields of its record (``storage/job_options.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from mops.errors import UsageError, message_of

T = TypeVar("T")

# Panels of the command line's help.
COMMON = "Common"
SERVICE = "Cluster service"
ADVANCED = "Advanced"


@dataclass(frozen=True)
class Option:
    """How the command line shows a field; it goes into the field's annotation."""

    help: str
    metavar: str | None = None
    panel: str | None = None
    flags: str | None = None  # None: `flag_of` the field's name
    least: int | None = None  # the smallest value
    most: int | None = None  # the largest value


class OptionField(NamedTuple):
    """A field with an option, or a dataclass of such fields (``option`` is None)."""

    name: str
    kind: Any  # its type
    default: Any  # `dataclasses.MISSING`: it has none
    option: Option | None


def flag_of(field: str) -> str:
    """Return the command line's name for a field."""
    return f"--{field.removesuffix('_s').replace('_', '-')}"


def option_in(hint: Any) -> tuple[Any, Option | None]:
    """Return a type without its annotations, and the option that is one of them."""
    its, *extras = get_args(hint) if get_origin(hint) is Annotated else [hint]
    return its, next((extra for extra in extras if isinstance(extra, Option)), None)


def options_of(kind: type) -> Iterator[OptionField]:
    """Yield the fields of a dataclass that are options, or that have options; the command line has no others."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        its, option = option_in(hints[field.name])
        if option is not None or is_dataclass(its):
            yield OptionField(field.name, its, field.default, option)


def checked(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return options from the values that a caller gave; None: not given.

    Raises
    ------
    TypeError
        An option is unknown.
    UsageError
        A value is not possible.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - 0.1 s, which not every command needs

    options = {field.name: field.option for field in options_of(kind)}
    if unknown := sorted(given.keys() - options.keys()):
        raise TypeError(f"unexpected keyword argument: {', '.join(unknown)}")
    try:
        found = TypeAdapter(kind).validate_python({name: value for name, value in given.items() if value is not None})
    except ValidationError as bad:
        fault = bad.errors()[0]
        name, *path = map(str, fault["loc"])
        what = f"the value of {'.'.join(path)} in {name}" if path else name
        hint = message_of(fault).replace("Input should be", "use a value that is", 1)
        raise UsageError(f"{what} is {fault['input']!r}", where="the options", hint=hint) from None
    for name, option in options.items():
        value = getattr(found, name)
        if option and option.least is not None and value is not None and value < option.least:
            raise UsageError(f"{name} is {value}", where="the options", hint=f"use {option.least} or more")
        if option and option.most is not None and value is not None and value > option.most:
            raise UsageError(f"{name} is {value:,}", where="the options", hint=f"use at most {option.most:,}")
    return found
