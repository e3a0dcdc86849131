"""Turns the ``where`` of a caller into an Arrow expression, and decides where the expression is computed."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import UsageError
from mops.jobs.tables import condition_text
from mops.jobs.tables.comparisons import Incomparable, Values, joined, one_of
from mops.jobs.tables.condition_text import columns_said, unknown_column
from mops.study.ids_and_seeds import told_apart

# A condition for rows: a text such as `"beta > 0.3 and name == 'peak'"`, an expression such as `pc.field("beta") >
# 0.3`, or a value, or a list of values, for each column: `{"beta": 0.3, "name": ["peak", "total"]}`. In a text, missing
# values are None, and names that Python does not accept stand in backticks. In a mapping, None finds missing values,
# and NaN finds NaN. A param_id may be shortened.
Where: TypeAlias = str | pc.Expression | Mapping[str, object]


_TYPES = re.compile(r"no kernel matching input types \((.*?)\)$")
_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")
_NOT_IN_RANGE = re.compile(r"Integer value (-?\d+) not in range: (-?\d+)")
_LEAST_EXACT = (-(2**53), -(2**24))


@dataclass(frozen=True)
class Condition:
    """A condition, in the three places where a scan can compute it."""

    # For the columns that are stored with the rows, so Parquet files without any of these rows are not read.
    stored: pc.Expression | None = None
    parameters: pc.Expression | None = None  # for the parameters, before the rows are read
    joined: pc.Expression | None = None  # for rows that have their parameters


def condition(
    where: Where | None,
    stored: pa.Schema,  # the columns of the rows
    parameters: pa.Schema,  # the columns of the parameters, which the rows do not have, and `group`
    ids: Callable[[], pa.Array],  # returns the param_id of each parameter set of the job
) -> Condition:
    """Return a condition for rows with these columns; raise UsageError if it does not fit them."""
    if where is None:
        return Condition()
    whole = pa.schema([*stored, *(field for field in parameters if field.name not in stored.names)])
    expression = _expression(where, whole, ids)
    if _refusal(expression, stored) is None:
        return Condition(stored=expression)
    if _refusal(expression, parameters) is None:
        return Condition(parameters=expression)
    if refusal := _refusal(expression, whole):
        raise UsageError(f"the condition does not fit the table: {refusal}", where="where", hint=columns_said(whole))
    return Condition(joined=expression)


def _expression(where: Where, schema: pa.Schema, ids: Callable[[], pa.Array]) -> pc.Expression:
    if isinstance(where, pc.Expression):
        return where
    if isinstance(where, str):
        return condition_text.parsed(where, schema, lambda starts: full_ids(starts, ids()))
    if isinstance(where, Mapping):
        return joined(operator.and_, [_of_column(str(name), value, schema, ids) for name, value in where.items()])
    kind = type(where)
    frame = kind.__module__.partition(".")[0] in ("pandas", "polars")
    what = f"an object of {kind.__module__.partition('.')[0]}" if frame else f"of type {kind.__name__}"
    raise UsageError(
        f"the condition is {what}",
        where="where",
        hint=f"write {condition_text.FORM}, where={{'beta': [0.3, 0.4]}} or where=pyarrow.compute.field('beta') > 0.3",
    )


def _of_column(name: str, value: object, schema: pa.Schema, ids: Callable[[], pa.Array]) -> pc.Expression:
    if name not in schema.names:
        raise unknown_column(name, schema)
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    values = list(cast("Iterable[object]", value)) if several else [value]
    if name == "param_id":
        values = list(full_ids([str(one) for one in values], ids()))
    column = schema.field(name)
    try:
        return one_of(Values.of_column(column), values)
    except Incomparable as bad:
        raise UsageError(str(bad), where="where", hint=f"give values of the type {column.type}") from bad


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors of a scan that computes a condition, such as an overflow, into UsageErrors of the condition."""
    try:
        yield
    except pa.ArrowInvalid as bad:
        if str(bad) == "overflow":
            why, hint = "a result does not fit into a 64-bit integer", "compute with floats, such as 1.0 * column"
        elif found := _NOT_IN_RANGE.match(str(bad)):
            holder = "float" if int(found[2]) in _LEAST_EXACT else "64-bit integer"
            why, hint = f"no {holder} holds {found[1]} exactly", "compare the column itself with a constant"
        else:
            raise
        raise UsageError(f"the condition cannot be computed: {why}", where="where", hint=hint) from bad


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


def full_ids(
    starts: Sequence[str],
    ids: pa.Array,  # the param_id of each parameter set of the job
) -> list[str]:
    """Return the param_ids that begin with some characters; raise UsageError unless each begins exactly one."""
    ids, found = ids.unique(), []
    for length, some in itertools.groupby(sorted(set(starts), key=len), len):
        wanted, short = list(some), pc.utf8_slice_codeunits(ids, 0, length)
        unknown = pc.index_in(pa.array(wanted, pa.string()), short).is_null()
        if not length or pc.any(unknown).as_py():
            raise _unknown_id(wanted[unknown.index(True).as_py()] if length else "")
        chosen = ids.filter(pc.is_in(short, pa.array(wanted, pa.string())))
        if len(chosen) > len(wanted):
            raise _ambiguous_id(wanted, chosen)
        found += chosen.to_pylist()
    return found


def _unknown_id(start: str) -> UsageError:
    return UsageError(
        f"no parameter set of the job has a param_id that begins with {start!r}",
        where="param_id",
        hint="job.params() lists the parameter sets",
    )


def _ambiguous_id(starts: Sequence[str], chosen: pa.Array) -> UsageError:
    for start in starts:
        several = chosen.filter(pc.starts_with(chosen, start)).to_pylist()
        if len(several) > 1:
            break
    return UsageError(
        f"{len(several):,} parameter sets have a param_id that begins with {start!r}: {told_apart(start, several)}",
        where="param_id",
        hint="give more characters",
    )
