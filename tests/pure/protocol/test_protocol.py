"""No interleaving of a small job breaks an invariant of the commit protocol, and each wrong rule does.

Larger spaces were searched by hand: docs/internals/storage.md has their sizes.
"""

from __future__ import annotations

import compaction_model
import deletion_model
import derived_model
import protocol_model
import pytest

GROUPS, FAULTS = 2, 1
MODELS = (protocol_model, compaction_model, deletion_model, derived_model)
SCENARIOS = {name: scenario for model in MODELS for name, scenario in model.SCENARIOS.items()}
HOLD_STATES = 20_000
"""The search is breadth first, so these are the shortest interleavings of a scenario."""
BREAK_STATES = 50_000
NO_FAULTS = {"compaction!union"}
"""Breaks without a lost answer too, after 21,000 states instead of 180,000."""


def broken(name, most_states, *, first=False):
    """Search interleavings; return the invariants that break."""
    kind, options = SCENARIOS[name]
    faults = 0 if name in NO_FAULTS else FAULTS
    _, found, _ = protocol_model.explore(kind(options, GROUPS), faults, most_states, first)
    return set(found)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "!" not in name])
def test_the_rules_hold(name):
    assert broken(name, HOLD_STATES) == set()


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "!" in name])
def test_a_wrong_rule_breaks_an_invariant(name):
    assert broken(name, BREAK_STATES, first=True)
