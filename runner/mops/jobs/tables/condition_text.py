"""Reads a condition that a person writes as text: ``beta > 0.3 and name == 'peak'``. Python's own parser reads it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError, known_name
from mops.jobs.tables.comparisons import (
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
