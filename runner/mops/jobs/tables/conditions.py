"""Turns the ``where`` of a caller into an Arrow expression, and decides where the expression is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import UsageError, known_name
from mops.jobs.tables import condition_text
from mops.study.ids_and_seeds import told_apart

Where: TypeAlias = str | pc.Expression | Mapping[str, object]
"""A condition for rows: a text such as ``"beta > 0.3 and name == 'peak'"``, an expression such as
``pc.field("beta") > 0.3``, or a value, or a list of values, for each column: ``{"beta": 0.3, "name": ["peak",
"total"]}``. In a mapping, None finds null, and a param_id may be shortened."""


_TYPES = re.compile(r"no kernel matching input types \((.*?)\)$")
_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


@dataclass(frozen=True)
class Condition:
    """A condition, in the three places where a scan can compute it.

    Parameters
    ----------
    stored
        For the columns that are stored with the rows, so Parquet files without any of these rows are not read.
    parameters
        For the parameters, before the rows are read.
    joined
        For rows that have their parameters.
    """

    stored: pc.Expression | None = None
    parameters: pc.Expression | None = None
    joined: pc.Expression | None = None


def condition(where: Where | None, stored: pa.Schema, parameters: pa.Schema, ids: Callable[[], pa.Array]) -> Condition:
    """Return a condition for rows with these columns.

    Parameters
    ----------
    stored
        The columns of the rows.
    parameters
        The columns of the parameters, which the rows do not have, and ``group``.
    ids
        Returns the param_id of each parameter set of the job.

    Raises
    ------
    UsageError
        The condition names an unknown column, compares a column with a value of another type, or has the beginning of
        no param_id or of several.
    """
    if where is None:
        return Condition()
    joined = pa.schema([*stored, *(field for field in parameters if field.name not in stored.names)])
    expression = _expression(where, joined, ids)
    if _refusal(expression, stored) is None:
        return Condition(stored=expression)
    if _refusal(expression, parameters) is None:
        return Condition(parameters=expression)
    if refusal := _refusal(expression, joined):
        raise UsageError(f"the condition does not fit the table: {refusal}", where="where", hint=_columns(joined))
    return Condition(joined=expression)


def _expression(where: Where, schema: pa.Schema, ids: Callable[[], pa.Array]) -> pc.Expression:
    if isinstance(where, pc.Expression):
        return where
    if isinstance(where, str):
        return condition_text.parsed(where, lambda start: full_id(start, ids()))
    if isinstance(where, Mapping):
        return _of_mapping(where, schema, ids)
    kind = type(where)
    frame = kind.__module__.partition(".")[0] in ("pandas", "polars")
    what = f"an object of {kind.__module__.partition('.')[0]}" if frame else f"of type {kind.__name__}"
    raise UsageError(
        f"the condition is {what}",
        where="where",
        hint=f"write {condition_text.FORM}, where={{'beta': [0.3, 0.4]}} or where=pyarrow.compute.field('beta') > 0.3",
    )


def _of_mapping(where: Mapping[str, object], schema: pa.Schema, ids: Callable[[], pa.Array]) -> pc.Expression:
    found = pc.scalar(True)
    for name, value in where.items():
        if name not in schema.names:
            hint = known_name(str(name), schema.names, _columns(schema))
            raise UsageError(f"the table has no column {name!r}", where="where", hint=hint)
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
        values = list(cast("Iterable[object]", value)) if several else [value]
        if name == "param_id":
            known = ids()
            found &= pc.field(name).isin(pa.array([full_id(str(one), known) for one in values], pa.string()))
        else:
            found &= _is_one_of(schema.field(name), values)
    return found


def _is_one_of(field: pa.Field, values: list[object]) -> pc.Expression:
    equal, column = pc.scalar(False), pc.field(field.name)
    for value in values:
        try:
            one = column.is_null() if value is None else column == pc.scalar(value)
        except pa.ArrowException:  # Arrow does not have this value
            one = None
        if one is None or _refusal(one, pa.schema([field])) is not None:
            raise UsageError(
                f"column {field.name!r} ({field.type}) cannot be compared with {value!r}",
                where="where",
                hint=f"give values of the type {field.type}",
            )
        equal |= one
    return equal


def _refusal(expression: pc.Expression, schema: pa.Schema) -> str | None:
    """Return why an expression cannot be computed for rows of a schema; None: it can."""
    try:
        ds.dataset(schema.empty_table()).to_table(filter=expression)
    except (pa.ArrowException, TypeError) as refused:
        text = str(refused).partition("\n")[0]
        if unknown := _UNKNOWN_COLUMN.match(text):
            return f"it has no column {unknown[1]!r}"
        if types := _TYPES.search(text):
            return f"it compares or combines {' with '.join(types[1].split(', '))}"
        return text
    return None


def _columns(schema: pa.Schema) -> str:
    return f"its columns are {', '.join(f'{field.name} ({field.type})' for field in schema)}"


def full_id(start: str, ids: pa.Array) -> str:
    """Return the param_id that begins with some characters.

    Parameters
    ----------
    ids
        The param_id of each parameter set of the job.

    Raises
    ------
    UsageError
        No param_id begins with them, or several do.
    """
    found = ids.filter(pc.starts_with(ids, start)).unique().to_pylist() if start else []
    if len(found) == 1:
        return str(found[0])
    if not found:
        raise UsageError(
            f"no parameter set of the job has a param_id that begins with {start!r}",
            where="param_id",
            hint="job.params() lists the parameter sets",
        )
    raise UsageError(
        f"{len(found):,} parameter sets have a param_id that begins with {start!r}: {told_apart(start, found)}",
        where="param_id",
        hint="give more characters",
    )
