"""The dashboard against Grafana's types, and that each kind of mistake is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from dashboard_lab import DASHBOARD, layout_faults, names_in, queries, schema_faults, undefined_variables

Document = dict[str, Any]
Path = tuple[str | int, ...]
UNTYPED = {("query", "query"), ("query", "refId"), ("list", 1, "query"), ("current", "text"), ("current", "value")}
"""The ends of the paths to which Grafana's types give no type: the query of a variable, and its present value."""


@pytest.fixture
def dashboard() -> Document:
    read: Document = json.loads(DASHBOARD.read_text())
    return read


@pytest.fixture
def small(dashboard: Document) -> Document:
    """One panel of each type, and one variable of each."""
    by_type = {panel["type"]: panel for panel in reversed(dashboard["panels"])}
    variables = {variable["type"]: variable for variable in dashboard["templating"]["list"]}
    return dashboard | {"panels": [*by_type.values()], "templating": {"list": [*variables.values()]}}


def test_grafana_knows_each_field_of_the_dashboard_and_its_type(dashboard: Document) -> None:
    assert schema_faults(dashboard) == []


def test_panels_have_places_and_ids_of_their_own(dashboard: Document) -> None:
    assert layout_faults(dashboard) == []
    assert undefined_variables(dashboard) == set()


def test_every_panel_has_a_title_a_unit_and_the_selected_prometheus(dashboard: Document) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    source = {"type": "prometheus", "uid": "${datasource}"}
    known = {unit for unit in vars(units).values() if isinstance(unit, str)}
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in known
        assert all(one["datasource"] == source for one in (panel, *panel["targets"]))


def fields(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each field."""
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(key, str):
            yield (*path, key)
        yield from fields(below, (*path, key))


def changed(document: Document, path: Path, change: Callable[[Any, Any], None]) -> Document:
    """Return a copy in which ``change`` was called with the holder of a field and its key."""
    copied = holder = copy.deepcopy(document)
    for key in path[:-1]:
        holder = holder[key]  # type: ignore[index]
    change(holder, path[-1])
    return copied


def misspell(holder: Any, key: Any) -> None:
    holder[f"{key}s_"] = holder.pop(key)


def give_another_type(holder: Any, key: Any) -> None:
    holder[key] = 7 if isinstance(holder[key], str) else "x"


@pytest.mark.parametrize("change", [misspell, give_another_type])
def test_a_misspelled_field_and_a_value_of_another_type_are_found(
    small: Document, change: Callable[[Any, Any], None]
) -> None:
    paths = list(fields(small))
    assert len(paths) > 100
    unseen = {path for path in paths if not schema_faults(changed(small, path, change))}
    assert {path for path in unseen if path[-2:] not in UNTYPED and path[-3:] not in UNTYPED} == set()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (("fieldConfig", "defaults", "custom", "drawStyle"), "lines"),
        (("fieldConfig", "defaults", "custom", "stacking", "mode"), "stacked"),
        (("options", "legend", "displayMode"), "row"),
        (("type",), "timeserie"),
    ],
)
def test_a_word_that_grafana_does_not_know_is_found(small: Document, path: Path, word: str) -> None:
    number = [panel["type"] for panel in small["panels"]].index("timeseries")

    def write(holder: Any, key: Any) -> None:
        holder[key] = word

    assert schema_faults(changed(small, ("panels", number, *path), write))


def test_panels_with_one_id_or_over_each_other_are_found(dashboard: Document) -> None:
    one, other = dashboard["panels"][1:3]
    id_before, place = other["id"], other["gridPos"]
    other["id"] = one["id"]
    assert layout_faults(dashboard) == [f"{one['title']!r} and {other['title']!r} have the id {one['id']}"]
    other["id"] = id_before
    other["gridPos"] = place | {"x": place["x"] - 1}
    assert layout_faults(dashboard) == [f"{one['title']!r} and {other['title']!r} overlap"]
    other["gridPos"] = place | {"x": 17, "y": 1000}
    assert layout_faults(dashboard) == [f"{other['title']!r} leaves the grid"]


def test_two_queries_with_one_id_and_an_undefined_variable_are_found(dashboard: Document) -> None:
    panel = next(panel for panel in dashboard["panels"] if len(panel.get("targets", ())) > 1)
    panel["targets"][1]["refId"] = panel["targets"][0]["refId"]
    assert layout_faults(dashboard) == [f"{panel['title']!r} has two queries with the same id"]
    panel["targets"][1]["expr"] = 'mops_slots{namespace=~"$namespaces"}'
    assert undefined_variables(dashboard) == {"namespaces"}


def test_the_metrics_and_labels_of_a_query_are_read(dashboard: Document) -> None:
    query = 'max by (a, b) (rate(m_one{c=~"x{d}", e!="by (f)"}[$__range])) / ignoring(g) m_two > 0'
    assert names_in(query) == ({"m_one", "m_two"}, {"a", "b", "c", "e", "g"})
    assert all(names_in(query)[0] or "__name__" in query for query in queries(dashboard))
