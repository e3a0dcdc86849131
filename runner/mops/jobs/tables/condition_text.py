"""Reads a condition that a person writes as text: ``beta > 0.3 and name == 'peak'``. Python's own parser reads it."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError

FORM = "where=\"beta > 0.3 and name == 'peak'\""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: _as_float(left) / right,
}


def parsed(text: str, full_id: Callable[[str], str]) -> pc.Expression:
    """Return the expression of a condition in Python's notation.

    It may have names of columns, numbers and strings, comparisons, ``and``, ``or``, ``not``, ``in``, ``is None``, and
    arithmetic.

    Parameters
    ----------
    full_id
        Returns the param_id that begins with some characters.

    Raises
    ------
    UsageError
        The text is not such a condition.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as bad:
        raise UsageError(
            f"the condition {text!r} cannot be read",
            where="where",
            hint=f"compare with ==, and write and, or, not: {FORM}",
        ) from bad
    try:
        return _Reader(full_id).condition(tree)
    except (pa.ArrowException, TypeError, OverflowError) as bad:
        raise UsageError(f"the condition {text!r} is not possible: {bad}", where="where", hint=f"write {FORM}") from bad


class _Reader:
    """Turns nodes of a syntax tree into expressions."""

    def __init__(self, full_id: Callable[[str], str]):
        self._full_id = full_id

    def condition(self, node: ast.expr) -> pc.Expression:
        found = self._read(node)
        if not isinstance(found, pc.Expression):
            _refuse(node, "is not a condition")
        return found

    def _read(self, node: ast.expr) -> Any:
        """Return what a node stands for: an expression, or a value."""
        match node:
            case ast.BoolOp(op, values):
                return functools.reduce(
                    operator.and_ if isinstance(op, ast.And) else operator.or_, map(self.condition, values)
                )
            case ast.UnaryOp(ast.Not(), operand):
                return ~self.condition(operand)
            case ast.UnaryOp(ast.USub(), operand):
                value = self._read(operand)
                return pc.negate(value) if isinstance(value, pc.Expression) else -value
            case ast.Compare(left, operators, comparators):
                pairs = zip(operators, [left, *comparators], comparators, strict=False)
                return functools.reduce(operator.and_, (self._comparison(node, *pair) for pair in pairs))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._read(left), self._read(right))
            case ast.Name() | ast.Attribute():
                return pc.field(_name(node))
            case ast.Constant(bool() | int() | float() | str() as value):
                return value
        return _refuse(node, "is not possible in a condition")

    def _comparison(self, node: ast.expr, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        column = self._read(left)
        if _is_none(right) and isinstance(op, ast.Is | ast.Eq):
            return column.is_null()
        if _is_none(right) and isinstance(op, ast.IsNot | ast.NotEq):
            return ~column.is_null()
        is_id = isinstance(left, ast.Name) and left.id == "param_id"
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            found = column.isin([self._value(one, is_id=is_id) for one in right.elts])
            return found if isinstance(op, ast.In) else ~found
        if type(op) not in _COMPARISONS:
            _refuse(node, "is not possible in a condition")
        return _COMPARISONS[type(op)](column, self._value(right, is_id=is_id and isinstance(op, ast.Eq | ast.NotEq)))

    def _value(self, node: ast.expr, *, is_id: bool) -> Any:
        value = self._read(node)
        return self._full_id(value) if is_id and isinstance(value, str) else value


def _as_float(value: Any) -> Any:
    """Return a value as a float, so that a quotient has a fraction; Arrow divides integers as C does."""
    return value.cast(pa.float64()) if isinstance(value, pc.Expression) else float(value)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _name(node: ast.expr) -> str:
    """Return the name of a column; that of a parameter may have a dot: ``param.day``."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Attribute):
        _refuse(node, "is not the name of a column")
    return f"{_name(node.value)}.{node.attr}"


def _refuse(node: ast.expr, why: str) -> NoReturn:
    raise UsageError(
        f"{ast.unparse(node)} {why}",
        where="where",
        hint=f"compare columns with values, like {FORM}, or pass an expression of pyarrow.compute",
    )
