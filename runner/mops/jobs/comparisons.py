"""Compares and computes values of rows as Python does, in Arrow expressions: in 64 bits, by exact values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.study.casts import converted, converted_expression

Operator: TypeAlias = Callable[[Any, Any], Any]  # a comparison or a computation of `operator`

NEVER, ALWAYS = pc.scalar(False), pc.scalar(True)
MIRRORED: dict[Operator, Operator] = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.eq: operator.eq,
}
_OF_INTEGERS = {operator.add: pc.add_checked, operator.sub: pc.subtract_checked, operator.mul: pc.multiply_checked}
_OF_FLOATS = {operator.add: pc.add, operator.sub: pc.subtract, operator.mul: pc.multiply, operator.truediv: pc.divide}
_INT64 = range(-(2**63), 2**63)
_BEYOND_ALL = 2**70
_ANY_INTEGER = pa.decimal128(20, 0)  # holds the values of int64 and of uint64


class Incomparable(Exception):
    """Two values cannot be compared or combined. The message says which."""


@dataclass(frozen=True)
class Values:
    """A value for each row: a column, or what was computed from columns."""

    name: str  # for errors
    expression: pc.Expression
    type: pa.DataType

    @classmethod
    def of_column(cls, field: pa.Field) -> Values:
        """Return the values of a column."""
        expression, kind = pc.field(field.name), field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            expression = converted_expression(expression, kind)
        return cls(f"column {field.name!r}", expression, kind)

    @property
    def is_whole(self) -> bool:
        """Whether the values are integers, or booleans, which Python counts as 0 and 1."""
        return bool(pa.types.is_integer(self.type) or pa.types.is_boolean(self.type))

    @property
    def is_float(self) -> bool:
        """Whether the values are floats."""
        return bool(pa.types.is_floating(self.type))

    @property
    def is_decimal(self) -> bool:
        """Whether the values are decimals."""
        return bool(pa.types.is_decimal(self.type))

    def as_type(self, kind: pa.DataType) -> pc.Expression:
        """Return the values with another type. A value that it does not hold exactly is an error of the scan."""
        if self.type == kind:
            return self.expression
        if pa.types.is_boolean(self.type) and pa.types.is_decimal(kind):  # Arrow has no cast from one to the other
            return converted_expression(converted_expression(self.expression, pa.int8()), kind)
        return converted_expression(self.expression, kind)


def opposite(condition: pc.Expression) -> pc.Expression:
    """Return the condition for the rows for which another one does not hold."""
    return ~pc.coalesce(condition, NEVER)


def joined(join: Operator, conditions: Sequence[pc.Expression]) -> pc.Expression:
    """Join conditions by ``and`` or ``or``, as a tree of little depth: Arrow has a stack for a few thousand levels."""
    while len(conditions) > 1:
        pairs = zip(conditions[::2], conditions[1::2], strict=False)
        conditions = [*(join(*pair) for pair in pairs), *conditions[len(conditions) // 2 * 2 :]]
    return conditions[0] if conditions else ALWAYS


def compared(
    compare: Operator,  # a comparison of `operator`
    left: Any,  # `Values` or a constant
    right: Any,  # as `left`
) -> pc.Expression:
    """Return the condition that two operands compare; raise Incomparable if their types do not fit together."""
    if compare is operator.ne:
        return opposite(compared(operator.eq, left, right))
    if isinstance(left, Values):
        return (_compared_values if isinstance(right, Values) else _compared_constant)(compare, left, right)
    if isinstance(right, Values):
        return _compared_constant(MIRRORED[compare], right, left)
    try:
        return pc.scalar(bool(compare(left, right)))
    except TypeError:
        raise Incomparable(f"{left!r} cannot be compared with {right!r}") from None


def _compared_constant(compare: Operator, values: Values, constant: Any) -> pc.Expression:
    if constant is None:
        if compare is operator.eq:
            return values.expression.is_null()
        raise Incomparable(f"{_said(values)} is not less or greater than None")
    if pa.types.is_null(values.type):  # no simulation has returned a value
        return NEVER
    if _is_number(values):
        if not _is_number(constant):
            raise _incomparable(values, constant)
        return (_compared_whole if values.is_whole else _compared_float)(compare, values, constant)
    return compare(values.expression, pc.scalar(_scalar(values, constant)))


def _compared_whole(compare: Operator, values: Values, constant: float) -> pc.Expression:
    """Compare integers with a number, by the integer that has the same integers below and above it."""
    if not isinstance(constant, float):
        whole = int(constant)
    elif math.isfinite(constant):
        if compare is operator.eq and not constant.is_integer():
            return NEVER
        whole = math.ceil(constant) if compare in (operator.lt, operator.ge) else math.floor(constant)
    elif math.isnan(constant):
        return NEVER
    else:
        whole = _BEYOND_ALL if constant > 0 else -_BEYOND_ALL
    kind = pa.int64() if pa.types.is_boolean(values.type) else values.type
    if whole not in (there := _range_of(kind)):
        return values.expression.is_valid() if compare(there[0], whole) else NEVER
    return compare(values.as_type(kind), pc.scalar(pa.scalar(whole, kind)))


def _compared_float(compare: Operator, values: Values, constant: float) -> pc.Expression:
    """Compare floats with a number. An integer may lie between two floats."""
    floats, near = values.as_type(pa.float64()), _nearest(constant)
    if isinstance(constant, float) or near == constant:
        return compare(floats, pc.scalar(near))
    if compare is operator.eq:
        return NEVER
    if compare in (operator.lt, operator.le):
        return floats < pc.scalar(near) if near > constant else floats <= pc.scalar(near)
    return floats >= pc.scalar(near) if near > constant else floats > pc.scalar(near)


def _compared_values(compare: Operator, left: Values, right: Values) -> pc.Expression:
    a, b = left.expression, right.expression
    if left.is_whole and right.is_whole:
        kind = _ANY_INTEGER if pa.uint64() in (left.type, right.type) else pa.int64()
        a, b = left.as_type(kind), right.as_type(kind)
    elif all(one.is_decimal or _is_number(one) for one in (left, right)) and not (left.is_decimal and right.is_decimal):
        a, b = left.as_type(pa.float64()), right.as_type(pa.float64())
    elif pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return a.is_null() & b.is_null() if compare is operator.eq else NEVER
    elif left.type != right.type and _time_kind(left.type) != _time_kind(right.type):
        raise Incomparable(f"{_said(left)} cannot be compared with {_said(right)}")
    return (a == b) | (a.is_null() & b.is_null()) if compare is operator.eq else compare(a, b)


def one_of(values: Values, constants: Sequence[Any]) -> pc.Expression:
    """Return the condition that values are among constants of their type. None finds missing values, NaN finds NaN."""
    expression, kind = values.expression, values.type
    wanted = [_plain(one) for one in constants if one is not None]
    if _is_number(values):
        for wrong in (one for one in wanted if not _is_number(one)):
            raise _incomparable(values, wrong)
        kind = pa.float64() if values.is_float else pa.int64() if pa.types.is_boolean(kind) else kind
        expression = values.as_type(kind)
    if pa.types.is_null(kind):
        found = pa.array([], kind)
    elif values.is_whole:
        whole, there = [int(one) for one in wanted if not isinstance(one, float) or one.is_integer()], _range_of(kind)
        found = pa.array([one for one in whole if one in there], kind)
    elif values.is_float:
        floats = [near for one in wanted if (near := _nearest(one)) == one or isinstance(one, float)]
        found = pa.array(floats + [0.0, -0.0] * (0.0 in floats), kind)  # Arrow compares bits
    else:
        found = _scalars(values, wanted)
    is_found = expression.isin(found) if len(found) else NEVER
    return is_found if len(wanted) == len(constants) else is_found | expression.is_null()


def computed(compute: Operator, left: Any, right: Any) -> Any:
    """Return the sum, difference, product or quotient of two operands, as values or a constant; raise Incomparable."""
    # A quotient is a float, and a division of values by 0 gives infinity or NaN. An integer result beyond 64 bits is an
    # error of the scan. Decimals count as floats.
    operands = (_as_number(left), _as_number(right))
    if not all(_is_number(one) or _is_decimal(one) for one in operands):
        raise Incomparable(f"{_said(left)} cannot be combined with {_said(right)}")
    if not any(isinstance(one, Values) for one in operands):
        try:
            return compute(*operands)
        except ArithmeticError as bad:
            raise Incomparable(f"{left!r} cannot be combined with {right!r}: {bad}") from bad
    if compute is operator.truediv or not all(_is_integer(one) for one in operands):
        floats = (_side(one, pa.float64()) for one in operands)
        return Values("a result", _OF_FLOATS[compute](*floats), pa.float64())
    return Values("a result", _OF_INTEGERS[compute](*(_side(one, pa.int64()) for one in operands)), pa.int64())


def _as_number(operand: Any) -> Any:
    """Return an operand, as floats if no simulation has returned a value of it."""
    if isinstance(operand, Values) and pa.types.is_null(operand.type):
        return Values(operand.name, operand.as_type(pa.float64()), pa.float64())
    return operand


def _side(operand: Any, kind: pa.DataType) -> pc.Expression:
    if isinstance(operand, Values):
        return operand.as_type(kind)
    if kind == pa.float64():
        if _nearest(operand) != operand and isinstance(operand, int):
            raise Incomparable(f"no float holds {operand} exactly")
        return pc.scalar(float(operand))
    if operand not in _INT64:
        raise Incomparable(f"{operand} does not fit into a 64-bit integer")
    return pc.scalar(pa.scalar(int(operand), kind))


def _is_integer(operand: Any) -> bool:
    return operand.is_whole if isinstance(operand, Values) else isinstance(operand, int)


def _is_number(operand: Any) -> bool:
    return operand.is_whole or operand.is_float if isinstance(operand, Values) else isinstance(operand, int | float)


def _is_decimal(operand: Any) -> bool:
    return isinstance(operand, Values) and operand.is_decimal


def _nearest(constant: float) -> float:
    try:
        return float(constant)
    except OverflowError:
        return math.inf if constant > 0 else -math.inf


def _range_of(kind: pa.DataType) -> range:
    bits = kind.bit_width
    return range(-(2 ** (bits - 1)), 2 ** (bits - 1)) if pa.types.is_signed_integer(kind) else range(2**bits)


def _plain(constant: Any) -> Any:
    """Return a number or a text of numpy as Python's. Python has no times with nanoseconds."""
    is_plain = not isinstance(constant, np.generic) or constant.dtype.kind in "mM"
    return constant if is_plain else constant.item()


def _scalars(values: Values, constants: Sequence[Any]) -> pa.Array:
    """Return the constants that values which are no integers or floats can equal, with the type of the values."""
    if not (values.is_decimal or pa.types.is_temporal(values.type)):
        try:
            return pa.array(constants, values.type)
        except (pa.ArrowException, TypeError, ValueError):
            pass  # the scalar of one of them cannot be made either
    found = []
    for scalar in (_scalar(values, one) for one in constants):
        with suppress(pa.ArrowException):  # no value of the column is equal
            found.append(converted(pa.array([scalar], scalar.type), values.type)[0])
    return pa.array(found, values.type)


def _scalar(values: Values, constant: Any) -> pa.Scalar:
    """Return a constant for a comparison with values that are no integers or floats."""
    kind = values.type
    try:
        if values.is_decimal and isinstance(constant, int | float | Decimal):
            return pa.scalar(Decimal(str(constant)))
        if not pa.types.is_temporal(kind):
            return pa.scalar(constant, kind)
        scalar = converted(pa.array([constant]), kind)[0] if isinstance(constant, str) else pa.scalar(constant)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        raise _incomparable(values, constant) from None
    if _time_kind(scalar.type) != _time_kind(kind):
        raise _incomparable(values, constant)
    return scalar


def _time_kind(kind: pa.DataType) -> str:
    """Return the kind of a type of times: values of one kind compare, whatever their units."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "zoned" if getattr(kind, "tz", None) else "date"
    return str(kind).partition("[")[0].rstrip("3264")


def _incomparable(values: Values, constant: Any) -> Incomparable:
    return Incomparable(f"{_said(values)} cannot be compared with {constant!r}")


def _said(operand: Any) -> str:
    return f"{operand.name} ({operand.type})" if isinstance(operand, Values) else repr(operand)
