"""Identities and seeds. All tools and all versions must agree on them, so the tests pin values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.study.ids_and_seeds import canonical_json, param_id, replicate_seed, target_seed

# Parameters as JSON text, param_id, seeds of replicates 0, 1, 2.
VECTORS = [
    (
        '{"beta": 0.3, "gamma": 0.1}',
        "761edf35ca1634d79a760bfa7030cf07e72a3559b3cdb0c56d20557de35b1e07",
        (751131435, 2264224431, 472503505),
    ),
    (
        '{"gamma": 0.1, "beta": 0.3}',
        "761edf35ca1634d79a760bfa7030cf07e72a3559b3cdb0c56d20557de35b1e07",
        (751131435, 2264224431, 472503505),
    ),
    (
        '{"beta": 1}',
        "8111c6c08a33e693385c0008fa7c242910089d449f4dac37da064e53969561a8",
        (995422569, 2188776536, 264584746),
    ),
    (
        '{"beta": 1.0}',
        "e0fe674fb8729251489e796de36f433c843213bc9cd5f3cf1fbd1d9ef969754f",
        (145896660, 2825294816, 4054716397),
    ),
    (
        '{"x": -0.0}',
        "e69ec3a1fe2a767af4e8d1b8b24b1819d6cb92ff03342e7dde723566f80ea36f",
        (2976079305, 3216147059, 2735989715),
    ),
    (
        '{"name": "Genève", "on": true, "n": 12345678901234567890}',
        "ece92b07d3d52158b31435753361d32d72f640d8c26f130e2b9d1d98f05b9121",
        (3409464325, 1375699246, 2515751700),
    ),
    (
        '{"x": 1e-07, "y": 1e+22}',
        "53928c6fc55a588704a52901b77d1a304f8e3cd7831d1b19dfb2f8d5f8ae862b",
        (2465383118, 2800305520, 3534399467),
    ),
]

values = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
params = st.dictionaries(st.text(min_size=1), values, max_size=5)


def test_known_parameters_have_known_identities_and_seeds(subtests: pytest.Subtests) -> None:
    for text, identity, seeds in VECTORS:
        with subtests.test(str((text, identity, seeds))):
            assert param_id(json.loads(text)) == identity
            assert tuple(replicate_seed(identity, i) for i in range(3)) == seeds


def test_the_seed_of_a_target_depends_on_parameter_set_and_name() -> None:
    identity = VECTORS[0][1]
    assert target_seed(identity, "model:final_size") == 1416796502
    assert target_seed(identity, "model:peak") == 4062598133


def test_canonical_json_is_sorted_compact_and_not_escaped() -> None:
    assert canonical_json({"b": "Genève", "a": 1e-07, "A": True}) == '{"A":true,"a":1e-07,"b":"Genève"}'


def test_values_that_are_equal_in_python_may_have_different_identities() -> None:
    equal: list[dict[str, object]] = [{"x": 1}, {"x": 1.0}, {"x": True}]
    assert len({param_id(one) for one in equal}) == len(equal)
    assert param_id({"x": 0.0}) != param_id({"x": -0.0})


@given(params)
def test_neither_order_nor_a_round_trip_through_json_changes_an_identity(given: dict[str, object]) -> None:
    backwards = dict(reversed(given.items()))
    assert param_id(backwards) == param_id(given)
    assert param_id(json.loads(canonical_json(given))) == param_id(given)


@given(params, st.integers(0, 10**9))
def test_seeds_are_32_bit(given: dict[str, object], replicate: int) -> None:
    assert 0 <= replicate_seed(param_id(given), replicate) < 2**32
