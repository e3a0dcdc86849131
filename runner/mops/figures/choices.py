"""Chooses what a figure shows if the user does not say: the output, its columns, and the parameter that divides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from mops.errors import UsageError, known_name
from mops.figures.columns import is_number

TIME_NAMES = (
    *("t", "time", "times", "day", "days", "date", "week", "month", "quarter", "year", "hour", "minute", "second"),
    *("step", "tick", "iteration", "generation", "timestep", "time_step", "timevec"),
)
# Columns along which an output has a course, the most telling first, in upper or lower case.
INDEX_NAMES = (*TIME_NAMES, "age", "distance", "depth", "x")

IDENTITY = ("param_id", "group", "replicate", "seed")
MOST_COURSES = 3
MOST_DIVISIONS = 6


@dataclass(frozen=True)
class Course:
    """The columns of an output that a fan chart shows: ``ys`` along ``x``."""

    output: str
    x: str
    ys: tuple[str, ...]
    keys: tuple[str, ...] = ()  # the columns that tell the rows of a simulation for one ``x`` apart, such as a region


def index_column(schema: pa.Schema) -> str | None:
    """Return the column along which an output has a course: a number, a date or a time with a known name; or None."""
    known = {field.name.lower(): field.name for field in reversed(list(schema)) if _may_be_x(field)}
    return next((known[name] for name in INDEX_NAMES if name in known), None)


def is_time(name: str) -> bool:
    """Tell whether an index column is a time, by its name."""
    return name.lower() in TIME_NAMES


def number_columns(schema: pa.Schema, without: Iterable[str | None] = ()) -> list[str]:
    """Return the columns of numbers that the model returned, in their order."""
    left_out = {*IDENTITY, *without}
    return [field.name for field in schema if is_number(field.type) and field.name not in left_out]


def choose_course(
    schemas: Mapping[str, pa.Schema],  # of each output, in the order of the outputs
    # Without it: the first output that has the named columns, or an index column and other numbers.
    output: str | None = None,
    x: str | None = None,  # without it: that of the first data of the output, or the index column
    # Without them: the columns that have data, then the first other columns of numbers, until there are 3.
    ys: Sequence[str] = (),
    data: Sequence[tuple[str, str, str]] = (),  # the output, x and y of each table of data that the project declares
) -> Course | None:
    """Return what a fan chart shows; None if no output has an index column and the user names none."""
    if output is not None and output not in schemas:
        raise _unknown("output", output, list(schemas))
    named = [name for name in (x, *ys) if name is not None]
    candidates = [output] if output is not None else [o for o in schemas if set(named) <= set(schemas[o].names)]
    for name in candidates:
        found = _course(name, schemas[name], x, ys, [(at, of) for out, at, of in data if out == name])
        if found is not None:
            return found
    if output is not None or named:
        where = output if output is not None else ", ".join(schemas)
        hint = "name the column of the horizontal axis: x='NAME'"
        raise UsageError(f"no output has the columns of a fan chart: {_wanted(named)}", where=where, hint=hint)
    return None


def _course(
    output: str, schema: pa.Schema, x: str | None, ys: Sequence[str], data: Sequence[tuple[str, str]]
) -> Course | None:
    for name in (*([x] if x is not None else []), *ys):
        if name not in schema.names:
            raise _unknown("column", name, number_columns(schema), where=f"output {output!r}")
    if x is not None and not _may_be_x(schema.field(x)):
        what = f"column {x!r} has the type {schema.field(x).type}, and the horizontal axis needs numbers or times"
        raise UsageError(what, where=f"output {output!r}", hint=f"the numbers are {', '.join(number_columns(schema))}")
    for name in ys:
        if not is_number(schema.field(name).type):
            what = f"column {name!r} has the type {schema.field(name).type}, and a fan chart needs numbers"
            hint = f"the numbers are {', '.join(number_columns(schema))}"
            raise UsageError(what, where=f"output {output!r}", hint=hint)
    along = x if x is not None else _index_of(schema, data)
    shown = tuple(ys) or _columns_along(along, schema, data)
    return Course(output, along, shown) if along is not None and shown else None


def _index_of(schema: pa.Schema, data: Sequence[tuple[str, str]]) -> str | None:
    """Return the x of the first data that fit the output; without data: the index column."""
    fitting = (x for x, y in data if {x, y} <= set(schema.names) and _may_be_x(schema.field(x)))
    return next(fitting, None) or index_column(schema)


def _columns_along(along: str | None, schema: pa.Schema, data: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the columns to show: all that have data along this column, then others until there are 3."""
    known = number_columns(schema, [along])
    with_data = [name for name in known if (along, name) in data]
    others = [name for name in known if name not in with_data]
    return (*with_data, *others[: max(MOST_COURSES - len(with_data), 0)])


def choose_division(parameters: pa.Table) -> str | None:
    """Return the parameter that divides figures; None: none does.

    It is the first text or boolean with 2 to 6 values. Without one, it is the only parameter that varies, if it has 2
    to 6 values.
    """
    columns = dict(zip(parameters.column_names, parameters.columns, strict=True))
    values = {name: len(column.drop_null().unique()) for name, column in columns.items()}
    words = [name for name, n in values.items() if n > 1 and _is_word(columns[name].type)]
    # A set without a parameter differs from one that has it.
    differing = [name for name, n in values.items() if n > 1 or 0 < columns[name].null_count < len(columns[name])]
    alone = differing if len(differing) == 1 else []  # a study over one number, such as 3, 4 or 5 doctors
    return next((name for name in words or alone if 1 < values[name] <= MOST_DIVISIONS), None)


def _is_word(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_boolean(kind))


def _may_be_x(field: pa.Field) -> bool:
    return field.name not in IDENTITY and (
        is_number(field.type) or pt.is_date(field.type) or pt.is_timestamp(field.type)
    )


def _wanted(named: Sequence[str]) -> str:
    return ", ".join(map(repr, named)) if named else "an index column such as 'day', and a number"


def _unknown(what: str, name: str, known: Sequence[str], where: str | None = None) -> UsageError:
    hint = known_name(name, known, f"the names are {', '.join(known) or 'none'}")
    return UsageError(f"there is no {what} {name!r}", where=where, hint=hint)
