"""Families of types: what the columns of a job's outputs may hold so that all parts read as one dataset.

A family names the kind of a column's values, and what the type that holds all of them needs. It is plain JSON data: a
string for plain values, a list for nested values.

==============================  ======================================================================================
``null``                        no value yet; fits every family
``number [facts]``              ``float``: there are floats; ``large``: integers beyond 2^53; ``huge``: integers beyond
                                2^63-1; ``negative``: negative integers
``decimal I S``                 I digits before the point and S behind it
``timestamp NEED ROOM``         NEED: the coarsest exact unit; ROOM: the finest unit that reaches all values. Also
                                ``zoned_timestamp`` and ``duration``
``boolean string binary``       and ``date``, ``time`` (of day), and ``other TYPE``, which joins only with itself
``["list", F]``                 and ``["struct", {name: F}]``, ``["map", F, F]``
``mixed``                       no type holds all values
==============================  ======================================================================================

:func:`joined` returns the least family that holds two families. Families are a lattice from ``null`` to ``mixed``, so
the order of values does not matter. Pure: :mod:`mops.study.column_types` connects families with Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Family: TypeAlias = str | list[Any]
Columns: TypeAlias = dict[str, Family]
Families: TypeAlias = dict[str, Columns]  # ``{output: {column: family}}``

NULL = "null"
NAN = "nan"  # Floats of which all are NaN. They fit numbers as floats, and any other family as missing values.
MIXED = "mixed"
UNITS = ("s", "ms", "us", "ns")
TIMED = ("timestamp", "zoned_timestamp", "duration")
DECIMAL_DIGITS = 76

_APART = ({"float", "large"}, {"negative", "huge"})
_PLAIN = re.compile(
    r"null|nan|mixed|boolean|string|binary|date|time|other( .*)?|number( (float|huge|large|negative))*|decimal \d+ \d+"
    r"|(timestamp|zoned_timestamp|duration)( (s|ms|us|ns)){2}",
    re.DOTALL,
)
_SAID = {
    NAN: "number",
    "zoned_timestamp": "timestamp with a time zone",
    "timestamp": "timestamp without a time zone",
    "time": "time of day",
}
_REFUSALS = {
    ("large", "float"): "a float in a column that also holds an integer beyond 2^53",
    ("float", "large"): "an integer beyond 2^53 in a column that also holds floats",
    ("huge", "negative"): "a negative number in a column that also holds an integer beyond 2^63-1",
    ("negative", "huge"): "an integer beyond 2^63-1 in a column that also holds negative numbers",
}


def number(facts: Iterable[str] = ()) -> str:
    """Return the family of numbers with these facts."""
    return " ".join(["number", *sorted(facts)])


_FLOAT = number(("float",))


def is_number(family: Family) -> bool:
    """Tell whether a family is one of integers and floats, with values other than NaN."""
    return isinstance(family, str) and family.partition(" ")[0] == "number"


def joined(one: Family, other: Family) -> Family:
    """Return the least family that holds the values of both; ``mixed``: no type holds them."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if NAN in (one, other):
        family = other if one == NAN else one
        return joined(family, _FLOAT) if is_number(family) else family
    if isinstance(one, str) and isinstance(other, str):
        return _joined_plain(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return _joined_nested(one, other)
    return MIXED


def _joined_plain(one: str, other: str) -> str:
    (kind, *facts), (other_kind, *other_facts) = one.split(" "), other.split(" ")
    if kind != other_kind:
        return MIXED
    if kind == "number":
        both = {*facts, *other_facts}
        return MIXED if any(apart <= both for apart in _APART) else number(both)
    if kind == "decimal":
        before, behind = (max(map(int, digits)) for digits in zip(facts, other_facts, strict=True))
        return MIXED if before + behind > DECIMAL_DIGITS else f"decimal {before} {behind}"
    if kind in TIMED:
        need = max(facts[0], other_facts[0], key=UNITS.index)
        room = min(facts[1], other_facts[1], key=UNITS.index)
        return MIXED if UNITS.index(need) > UNITS.index(room) else f"{kind} {need} {room}"
    return MIXED


def _joined_nested(one: list[Any], other: list[Any]) -> Family:
    if one[0] != other[0]:
        return MIXED
    if one[0] == "struct":
        if one[1].keys() != other[1].keys():
            return MIXED
        fields = {name: joined(family, other[1][name]) for name, family in one[1].items()}
        return MIXED if MIXED in fields.values() else ["struct", fields]
    inner = [joined(a, b) for a, b in zip(one[1:], other[1:], strict=True)]
    return MIXED if MIXED in inner else [one[0], *inner]


def join_columns(known: Mapping[str, Family], found: Mapping[str, Family]) -> Columns:
    """Join column by column, in the order of ``known``."""
    return {**known, **{name: joined(known.get(name, NULL), family) for name, family in found.items()}}


def join_families(*several: Mapping[str, Mapping[str, Family]]) -> Families:
    """Join output by output and column by column."""
    known: Families = {}
    for families in several:
        for output, columns in families.items():
            known[output] = join_columns(known.get(output, {}), columns)
    return known


def news(known: Families, found: Families) -> Families:
    """Return the columns whose family in ``found`` adds to ``known``, with the joined family."""
    more: Families = {}
    for output, columns in found.items():
        before = known.get(output, {})
        both = join_columns(before, columns)
        if changed := {name: family for name, family in both.items() if family != before.get(name)}:
            more[output] = changed
    return more


def misfits(known: Mapping[str, Family], found: Mapping[str, Family]) -> list[str]:
    """Return the columns whose values do not fit the known families."""
    return [name for name, family in found.items() if joined(known.get(name, NULL), family) == MIXED]


def said(family: Family) -> str:
    """Return a family's name for people."""
    if isinstance(family, str):
        kind, _, rest = family.partition(" ")
        return rest if kind == "other" else _SAID.get(kind, kind)
    if family[0] == "struct":
        return f"struct of {', '.join(f'{name}: {said(inner)}' for name, inner in family[1].items())}"
    return f"{family[0]} of {' to '.join(map(said, family[1:]))}"


def refusal(known: Family, found: Family, type_: object) -> str:
    """Return why values of this Arrow type do not fit the known family of their column."""
    return _value_refusal(known, found) or f"is {type_}, not a {said(known)}"


def _value_refusal(known: Family, found: Family) -> str:
    """Return what is wrong with a value; empty: the kinds of the families differ."""
    if isinstance(known, list) and isinstance(found, list) and known[0] == found[0]:
        if known[0] == "struct":
            pairs = [(known[1][name], found[1][name]) for name in known[1].keys() & found[1].keys()]
        else:
            pairs = list(zip(known[1:], found[1:], strict=True))
        return next((_value_refusal(a, b) for a, b in pairs if joined(a, b) == MIXED), "")
    if isinstance(known, list) or isinstance(found, list):
        return ""
    known, found = (_FLOAT if family == NAN else family for family in (known, found))
    (kind, *facts), (found_kind, *found_facts) = known.split(" "), found.split(" ")
    if found_kind in TIMED and found_facts and UNITS.index(found_facts[0]) > UNITS.index(found_facts[1]):
        return f"holds a {said(found_kind)} outside the range of milliseconds"
    if kind != found_kind:
        return ""
    if kind == "number":
        return next((f"holds {text}" for (a, b), text in _REFUSALS.items() if a in facts and b in found_facts), "")
    if kind in TIMED:
        return f"holds a {said(kind)} in {found_facts[0]}, and no unit holds all values of the column exactly"
    return f"needs more than {DECIMAL_DIGITS} digits with the other decimals of the column" if kind == "decimal" else ""


def is_family(value: object) -> bool:
    """Tell whether a JSON value is a family."""
    match value:
        case str():
            return _PLAIN.fullmatch(value) is not None
        case ["list", inner]:
            return is_family(inner)
        case ["map", key, inner]:
            return is_family(key) and is_family(inner)
        case ["struct", dict(fields)]:
            return all(map(is_family, fields.values()))
    return False
