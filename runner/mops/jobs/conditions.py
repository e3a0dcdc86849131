"""Conditions for rows, from a text or a mapping, divided into what the storage, the parameters and rows can check."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from mops.errors import UsageError, known_name
from mops.jobs.comparisons import (
    ALWAYS,
    NEVER,
    Incomparable,
    Operator,
    Values,
    compared,
    computed,
    joined,
    one_of,
    opposite,
)
from mops.study.ids_and_seeds import told_apart

FORM = "where=\"beta > 0.3 and name == 'peak'\""

_COMPARISONS: dict[type[ast.cmpop], Operator] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_TEXT_OR_NAME = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]+)`""", re.DOTALL)


def parsed(
    text: str,
    schema: pa.Schema,
    full_ids: Callable[[Sequence[str]], list[str]],  # returns the param_ids that begin with some characters
) -> pc.Expression:
    """Return the expression of a condition in Python's notation; raise UsageError if it is none for these columns."""
    # It may have names of columns, numbers and strings, comparisons, `and`, `or`, `not`, `in`, `is None`, and
    # arithmetic. A name that Python does not accept stands in backticks.
    quoted: dict[str, str] = {}

    def placeholder(found: re.Match[str]) -> str:
        if found[2] is None:
            return found[1]
        name = f"column{len(quoted)}"
        while name in text:
            name += "_"
        quoted[name] = found[2]
        return name

    plain = _TEXT_OR_NAME.sub(placeholder, " ".join(text.strip().splitlines()))
    try:
        return _Reader(plain, quoted, schema, full_ids).condition(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as bad:
        raise UsageError(
            f"the condition {_short(text)} cannot be read",
            where="where",
            hint=f"compare with ==, write and, or, not, and a name with spaces as `peak day`: {FORM}",
        ) from bad
    except Incomparable as bad:
        raise UsageError(
            f"the condition {_short(text)} does not fit the table: {bad}", where="where", hint=columns_said(schema)
        ) from bad


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


class _Reader:
    def __init__(
        self,
        text: str,
        quoted: dict[str, str],  # the names that the text has in backticks, by the names that stand for them
        schema: pa.Schema,
        full_ids: Callable[[Sequence[str]], list[str]],
    ):
        self._text, self._quoted, self._schema, self._full_ids = text.encode(), quoted, schema, full_ids

    def condition(self, node: ast.expr) -> pc.Expression:
        match node:
            case ast.BoolOp(op, nodes):
                join = operator.and_ if isinstance(op, ast.And) else operator.or_
                return joined(join, list(map(self.condition, nodes)))
            case ast.UnaryOp(ast.Not(), operand):
                return opposite(self.condition(operand))
            case ast.Compare(left, operators, rights):
                pairs = zip(operators, [left, *rights], rights, strict=False)
                return joined(operator.and_, [self._comparison(node, *pair) for pair in pairs])
        found = self._operand(node)
        if isinstance(found, bool):
            return ALWAYS if found else NEVER
        if not isinstance(found, Values) or not pa.types.is_boolean(found.type):
            self._refuse(node, "is not a condition")
        return found.expression

    def _operand(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(None | bool() | int() | float() | str() as value):
                return value
            case ast.Name() | ast.Attribute():
                return self._column(node)
            case ast.UnaryOp(ast.USub(), operand):
                return computed(operator.mul, -1, self._operand(operand))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return computed(_ARITHMETIC[type(op)], self._operand(left), self._operand(right))
            case ast.BoolOp() | ast.UnaryOp(ast.Not()) | ast.Compare():
                return Values("a condition", pc.coalesce(self.condition(node), NEVER), pa.bool_())
        return self._refuse(node, "is not possible in a condition")

    def _comparison(self, node: ast.expr, op: ast.cmpop, left: ast.expr, right: ast.expr) -> pc.Expression:
        values = self._operand(left)
        is_id = isinstance(left, ast.Name) and self._name(left) == "param_id"
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            constants = self._ids([self._operand(one) for one in right.elts], is_id=is_id)
            found = self._one_of(values, constants)
            return found if isinstance(op, ast.In) else opposite(found)
        is_none = isinstance(right, ast.Constant) and right.value is None
        if type(op) not in _COMPARISONS or (isinstance(op, ast.Is | ast.IsNot) and not is_none):
            self._refuse(node, "is not possible in a condition")
        (operand,) = self._ids([self._operand(right)], is_id=is_id and isinstance(op, ast.Eq | ast.NotEq))
        return compared(_COMPARISONS[type(op)], values, operand)

    @staticmethod
    def _one_of(values: Any, several: list[Any]) -> pc.Expression:
        if isinstance(values, Values) and not any(isinstance(one, Values) for one in several):
            return one_of(values, several)
        return joined(operator.or_, [NEVER, *(compared(operator.eq, values, one) for one in several)])

    def _ids(self, operands: list[Any], *, is_id: bool) -> list[Any]:
        return self._full_ids(operands) if is_id and all(isinstance(one, str) for one in operands) else operands

    def _column(self, node: ast.expr) -> Values:
        name = self._name(node)
        if name not in self._schema.names:
            raise unknown_column(name, self._schema)
        return Values.of_column(self._schema.field(name))

    def _name(self, node: ast.expr) -> str:
        """Return the name of a column as the text has it; that of a parameter may have a dot: ``param.day``."""
        # Python's parser changes some characters of names (NFKC).
        if not isinstance(node, ast.Name | ast.Attribute):
            self._refuse(node, "is not the name of a column")
        names = self._source(node).split(".")
        return ".".join(self._quoted.get(name.strip(), name.strip()) for name in names)

    def _source(self, node: ast.expr) -> str:
        return self._text[node.col_offset : node.end_col_offset].decode()

    def _refuse(self, node: ast.expr, why: str) -> NoReturn:
        raise UsageError(
            f"{_short(self._source(node))} {why}",
            where="where",
            hint=f"compare columns with values, like {FORM}, or pass an expression of pyarrow.compute",
        )


def unknown_column(name: str, schema: pa.Schema) -> UsageError:
    """Return the error for a condition that names no column."""
    hint = known_name(name, schema.names, columns_said(schema))
    return UsageError(f"the table has no column {name!r}", where="where", hint=hint)


def columns_said(schema: pa.Schema) -> str:
    """Return the columns with their types, for a hint."""
    return f"its columns are {', '.join(f'{field.name} ({field.type})' for field in schema)}"


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
        return parsed(where, schema, lambda starts: full_ids(starts, ids()))
    if isinstance(where, Mapping):
        return joined(operator.and_, [_of_column(str(name), value, schema, ids) for name, value in where.items()])
    kind = type(where)
    frame = kind.__module__.partition(".")[0] in ("pandas", "polars")
    what = f"an object of {kind.__module__.partition('.')[0]}" if frame else f"of type {kind.__name__}"
    raise UsageError(
        f"the condition is {what}",
        where="where",
        hint=f"write {FORM}, where={{'beta': [0.3, 0.4]}} or where=pyarrow.compute.field('beta') > 0.3",
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
    *,
    where: str = "param_id",
    hint: str = "use a param_id of the results, or of job.params()",  # if no parameter set has such a param_id
) -> list[str]:
    """Return the param_ids that begin with some characters; raise UsageError unless each begins exactly one."""
    ids, found = ids.unique(), []
    for length, some in itertools.groupby(sorted(set(starts), key=len), len):
        wanted, short = list(some), pc.utf8_slice_codeunits(ids, 0, length)
        unknown = pc.index_in(pa.array(wanted, pa.string()), short).is_null()
        if not length or pc.any(unknown).as_py():
            start = wanted[unknown.index(True).as_py()] if length else ""
            what = f"no parameter set has a param_id that begins with {start!r}"
            raise UsageError(what, where=where, hint=hint)
        chosen = ids.filter(pc.is_in(short, pa.array(wanted, pa.string())))
        if len(chosen) > len(wanted):
            raise _ambiguous_id(wanted, chosen, where)
        found += chosen.to_pylist()
    return found


def _ambiguous_id(starts: Sequence[str], chosen: pa.Array, where: str) -> UsageError:
    for start in starts:
        several = chosen.filter(pc.starts_with(chosen, start)).to_pylist()
        if len(several) > 1:
            break
    return UsageError(
        f"{len(several):,} parameter sets have a param_id that begins with {start!r}: {told_apart(start, several)}",
        where=where,
        hint="give more characters",
    )
