"""Turns the ``where`` of a caller into an Arrow expression, and decides where the expression is computed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import UsageError
from mops.study.ids_and_seeds import SHOWN_CHARACTERS

Where: TypeAlias = pc.Expression | Mapping[str, object]
"""A condition for rows: an expression such as ``pc.field("beta") > 0.3``, or a value, or a list of values, for each
column: ``{"beta": 0.3, "name": ["peak", "total"]}``. In a mapping, None finds null, and a param_id may be shortened."""

_SHOWN = 5

_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


@dataclass(frozen=True)
class Condition:
    """A condition, in the three places where a scan can compute it.

    Parameters
    ----------
    stored
        For the columns that are stored with the rows, so Parquet files without such rows are not read.
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
    expression = where if isinstance(where, pc.Expression) else _of_mapping(where, joined, ids)
    if _refusal(expression, stored) is None:
        return Condition(stored=expression)
    if _refusal(expression, parameters) is None:
        return Condition(parameters=expression)
    if refusal := _refusal(expression, joined):
        raise UsageError(f"the condition does not fit the table: {refusal}", where="where", hint=_columns(joined))
    return Condition(joined=expression)


def _of_mapping(where: Mapping[str, object], schema: pa.Schema, ids: Callable[[], pa.Array]) -> pc.Expression:
    if not isinstance(where, Mapping):
        raise UsageError(
            f"the condition is a {type(where).__name__}",
            where="where",
            hint="use an expression like pyarrow.compute.field('beta') > 0.3, or a mapping like {'beta': 0.3}",
        )
    found = pc.scalar(True)
    for name, value in where.items():
        if name not in schema.names:
            near = difflib.get_close_matches(str(name), schema.names, 1)
            hint = f"did you mean {near[0]!r}?" if near else _columns(schema)
            raise UsageError(f"the table has no column {name!r}", where="where", hint=hint)
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
        values = list(cast("Iterable[object]", value)) if several else [value]
        if name == "param_id":
            known = ids()
            found &= pc.field(name).isin(pa.array([full_id(str(one), known) for one in values], pa.string()))
        else:
            found &= _is_one_of(pc.field(name), values)
    return found


def _is_one_of(field: pc.Expression, values: list[object]) -> pc.Expression:
    equal = pc.scalar(False)
    for value in values:
        equal |= field.is_null() if value is None else field == pc.scalar(value)
    return equal


def _refusal(expression: pc.Expression, schema: pa.Schema) -> str | None:
    """Return why an expression cannot be computed for rows of a schema; None: it can."""
    try:
        ds.dataset(schema.empty_table()).to_table(filter=expression)
    except (pa.ArrowException, TypeError) as refused:
        text = str(refused).partition("\n")[0]
        unknown = _UNKNOWN_COLUMN.match(text)
        return f"it has no column {unknown[1]!r}" if unknown else text
    return None


def _columns(schema: pa.Schema) -> str:
    return f"its columns are {', '.join(schema.names)}"


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
    listed = ", ".join(one[: max(SHOWN_CHARACTERS, len(start) + 4)] for one in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    raise UsageError(
        f"{len(found):,} parameter sets have a param_id that begins with {start!r}: {listed}{more}",
        where="param_id",
        hint="give more characters",
    )
