"""Families of column types: which values a column may hold so that all parts of a job read as one dataset.

A *family* names the kind of a column's values, with the facts that decide whether one type holds all of them exactly.
It is plain JSON data:

=====================================  ===============================================================================
``null``                               no value yet; fits every family
``nan``                                floats of which all are NaN: missing values, except among numbers
``number [facts]``                     ``float``: there are floats; ``large``: integers beyond 2^53; ``huge``: integers
                                       beyond 2^63-1; ``negative``: negative integers
``timestamp [facts]``                  ``fine``: there are nanoseconds; ``far``: times that nanoseconds do not reach.
                                       Also ``zoned_timestamp`` and ``duration``
``boolean string binary date time``    and ``decimal``: one type holds all values
``["list", F] ["struct", {name: F}]``  of a family, of families
``mixed``                              no type holds all values
=====================================  ===============================================================================

:func:`joined` returns the least family that holds two families: the kind, and the facts of both. So the order of values
does not matter. Pure: column_types.py finds the families of columns, and parquet/schemas.py says how they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Family: TypeAlias = str | list[Any]
Columns: TypeAlias = dict[str, Family]
Families: TypeAlias = dict[str, Columns]  # ``{output: {column: family}}``

NULL = "null"
NAN = "nan"
MIXED = "mixed"

FLOAT = "number float"

_TIMES = {"timestamp": "timestamp without a time zone", "zoned_timestamp": "timestamp with a time zone"}
_NAMES = {**_TIMES, NAN: "number", "time": "time of day"}
_FACTS = {
    **dict.fromkeys((NULL, NAN, MIXED, "boolean", "string", "binary", "date", "time", "decimal"), frozenset[str]()),
    **dict.fromkeys((*_TIMES, "duration"), frozenset({"fine", "far"})),
    "number": frozenset({"float", "large", "huge", "negative"}),
}
_APART = {  # facts that no type holds, and what is wrong with a value of the second
    ("large", "float"): "a float in a column that also holds an integer beyond 2^53",
    ("float", "large"): "an integer beyond 2^53 in a column that also holds floats",
    ("huge", "negative"): "a negative number in a column that also holds an integer beyond 2^63-1",
    ("negative", "huge"): "an integer beyond 2^63-1 in a column that also holds negative numbers",
    ("fine", "far"): "a time that nanoseconds do not reach, in a column that also holds nanoseconds",
    ("far", "fine"): "nanoseconds in a column that also holds a time that nanoseconds do not reach",
}


def joined(one: Family, other: Family) -> Family:
    """Return the least family that holds the values of both; ``mixed``: no type holds them."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if NAN in (one, other):
        family = other if one == NAN else one
        return joined(family, FLOAT) if is_number(family) else family
    if isinstance(one, str) and isinstance(other, str):
        (kind, *facts), (other_kind, *other_facts) = one.split(" "), other.split(" ")
        both = {*facts, *other_facts}
        fits = kind == other_kind and not any(apart <= both for apart in map(set, _APART))
        return " ".join([kind, *sorted(both)]) if fits else MIXED
    if isinstance(one, str) or isinstance(other, str) or one[0] != other[0]:
        return MIXED
    if one[0] == "list":
        inner = joined(one[1], other[1])
        return MIXED if inner == MIXED else ["list", inner]
    if one[1].keys() != other[1].keys():
        return MIXED
    fields = {name: joined(family, other[1][name]) for name, family in one[1].items()}
    return MIXED if MIXED in fields.values() else ["struct", fields]


def is_number(family: Family) -> bool:
    """Tell whether a family is one of integers and floats, with values other than NaN."""
    return isinstance(family, str) and family.split(" ")[0] == "number"


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
        kind = family.split(" ")[0]
        return _NAMES.get(kind, kind)
    if family[0] == "struct":
        return f"struct of {', '.join(f'{name}: {said(inner)}' for name, inner in family[1].items())}"
    return f"list of {said(family[1])}"


def refusal(known: Family, found: Family, type_: object) -> str:
    """Return why values of this Arrow type do not fit the known family of their column."""
    pairs = [(known, found)]
    for one, other in pairs:  # which become more
        if isinstance(one, str) and isinstance(other, str):
            (kind, *facts), (other_kind, *other_facts) = (
                (FLOAT if family == NAN else family).split(" ") for family in (one, other)
            )
            for (fact, other_fact), text in _APART.items():
                if kind == other_kind and fact in facts and other_fact in other_facts:
                    return f"holds {text}"
        elif isinstance(one, list) and isinstance(other, list) and one[0] == other[0]:
            fields = [dict(nested[1] if nested[0] == "struct" else {"": nested[1]}) for nested in (one, other)]
            pairs += [(fields[0][name], fields[1][name]) for name in fields[0].keys() & fields[1].keys()]
    return f"is {type_}, not a {said(known)}"


def is_family(value: object) -> bool:
    """Tell whether a JSON value is a family."""
    match value:
        case str():
            kind, *facts = value.split(" ")
            return kind in _FACTS and _FACTS[kind].issuperset(facts)
        case ["list", inner]:
            return is_family(inner)
        case ["struct", dict(fields)]:
            return all(map(is_family, fields.values()))
    return False
