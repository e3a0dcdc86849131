"""Checks a dashboard against the types of Grafana's Foundation SDK, and its layout and queries, which have no types.

Grafana makes the SDK from its own schemas: of a dashboard, of each type of panel, and of the queries of a data source.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import combinations
from pathlib import Path
from types import UnionType
from typing import Any, Union

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = Path(__file__).parents[1] / "helm" / "mops" / "dashboards" / "mops.json"
COLUMNS = 24
"""The width of Grafana's grid."""
OPERATORS = {"and", "or", "unless", "offset"}
PROVIDED = {"__rate_interval", "__range", "__all"}
"""The variables that Grafana defines."""
ANYTHING = (Any, object)


def schema_faults(document: Mapping[str, Any]) -> list[str]:
    """Return the fields that Grafana does not know, and the values that have another type or are no such word."""
    register_default_plugins()
    return list(_faults(document, Dashboard, "dashboard"))


def _faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Yield the faults of a value: read by the SDK or as it is in the file."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, UnknownDataquery):
        yield f"{path}: not a query of a known data source"
    elif hasattr(value, "to_json"):
        for name, hint in _hints(type(value)).items():
            yield from _faults(getattr(value, name), hint, f"{path}.{name}")
    elif origin in (Union, UnionType):
        tried = [list(_faults(value, one, path)) for one in inner if one is not type(None) or value is None]
        if all(tried):
            yield from min(tried, key=len)
    elif isinstance(kind, type) and hasattr(kind, "from_json"):
        yield from _read_faults(value, kind, path)
    elif origin in (list, dict) and isinstance(value, origin):
        for key, one in value.items() if origin is dict else enumerate(value):
            yield from _faults(one, inner[-1], f"{path}.{key}")
    elif not _is_of(value, kind):
        yield f"{path}: {value!r} is not of {kind}"


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _read_faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    try:
        read = kind.from_json(value)
        written = json.loads(JSONEncoder().encode(read))
    except (TypeError, AttributeError, KeyError, ValueError) as refused:
        yield f"{path}: {value!r} is not of {kind.__name__}: {refused}"
        return
    yield from _unknown(value, written, path)
    yield from _faults(read, kind, path)


def _unknown(given: Any, written: Any, path: str) -> Iterator[str]:
    """Yield what the SDK has not kept: it leaves out the fields that it does not know."""
    if isinstance(given, dict) and isinstance(written, dict):
        for name, value in given.items():
            if name not in written:
                yield f"{path}.{name}: no such field"
            else:
                yield from _unknown(value, written[name], f"{path}.{name}")
    elif isinstance(given, list) and isinstance(written, list):
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from _unknown(one, other, f"{path}.{number}")
    elif given != written:
        yield f"{path}: {given!r} is read as {written!r}"


def _is_of(value: Any, kind: Any) -> bool:
    if kind in ANYTHING:
        return not isinstance(value, dict)  # as for a panel of an unknown type, whose options are not read
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in {one.value for one in kind}
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


# What no type describes


def layout_faults(document: Mapping[str, Any]) -> list[str]:
    """Return panels with the same id, panels that overlap or leave the grid, and queries with the same id."""
    return list(_layout_faults(document["panels"]))


def _layout_faults(panels: list[dict[str, Any]]) -> Iterator[str]:
    for one, other in combinations(panels, 2):
        pair = f"{one['title']!r} and {other['title']!r}"
        if one["id"] == other["id"]:
            yield f"{pair} have the id {one['id']}"
        if _overlap(one["gridPos"], other["gridPos"]):
            yield f"{pair} overlap"
    for panel in panels:
        place, ids = panel["gridPos"], [target["refId"] for target in panel.get("targets", ())]
        if place["x"] + place["w"] > COLUMNS:
            yield f"{panel['title']!r} leaves the grid"
        if len(ids) != len(set(ids)):
            yield f"{panel['title']!r} has two queries with the same id"


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def queries(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield every query: of the panels, and the selectors of the variables."""
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield selector(variable)[1]


def selector(variable: Mapping[str, Any]) -> tuple[str, str]:
    """Return the label and the selector of a variable: ``label_values(SELECTOR, LABEL)``."""
    read = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert read is not None, variable["query"]
    return read[2], read[1]


def undefined_variables(document: Mapping[str, Any]) -> set[str]:
    """Return the variables that texts of the dashboard use and that neither it nor Grafana defines."""
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document)))
    return used - PROVIDED - {variable["name"] for variable in document["templating"]["list"]}


def names_in(query: str) -> tuple[set[str], set[str]]:
    """Return the metrics and the labels of a query in PromQL. It knows the grammar of our dashboard and rules."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)
    lists = re.findall(r"(?:by|without|on|ignoring)\s*\(([^)]*)\)", bare)
    labels = {name.strip() for one in lists for name in one.split(",")}
    labels |= {name for part in re.findall(r"\{([^}]*)\}", bare) for name in re.findall(r"\w+", part)}
    rest = re.sub(r"(?:by|without|on|ignoring)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]", " ", bare)
    metrics = set(re.findall(r"\b[a-z]\w*\b(?!\s*\()", rest))
    return metrics - OPERATORS, labels - {"", "__name__"}
