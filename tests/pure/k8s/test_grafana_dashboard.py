"""The dashboard against Grafana's types, and that each kind of mistake is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from dashboard_lab import DASHBOARD, layout_faults, schema_faults, undefined_variables

Document = dict[str, Any]


@pytest.fixture
def dashboard() -> Document:
    read: Document = json.loads(DASHBOARD.read_text())
    return read


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


def test_a_misspelled_field_and_a_value_of_another_type_are_found(dashboard: Document) -> None:
    """The tests above would pass if the search found nothing."""
    panel = next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")
    panel["descriptions"] = panel.pop("description")
    assert schema_faults(dashboard)
    panel["description"] = panel.pop("descriptions")
    panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] = 7
    assert schema_faults(dashboard)


def test_two_queries_with_one_id_and_an_undefined_variable_are_found(dashboard: Document) -> None:
    panel = next(panel for panel in dashboard["panels"] if len(panel.get("targets", ())) > 1)
    panel["targets"][1]["refId"] = panel["targets"][0]["refId"]
    assert layout_faults(dashboard) == [f"{panel['title']!r} has two queries with the same id"]
    panel["targets"][1]["expr"] = 'mops_slots{namespace=~"$namespaces"}'
    assert undefined_variables(dashboard) == {"namespaces"}
