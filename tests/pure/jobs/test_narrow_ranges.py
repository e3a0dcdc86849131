"""A parameter is named if its range in the failed sets is so narrow that chance seldom explains it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mops.jobs.causes import _chance_of_range, narrow_ranges


def ranges(columns: dict[str, list[Any]], *some: list[int], finished: int | None = None) -> list[list[str]]:
    n = len(next(iter(columns.values())))
    selections = [np.array(groups, np.int32) for groups in some]
    found = narrow_ranges(pa.table(columns), selections, np.arange(n) < (n if finished is None else finished))
    return [[str(narrow) for narrow in each] for each in found]


BETA = [round(0.01 * i, 2) for i in range(1, 51)]
OTHER = random.Random(1).sample(range(1000), 50)


def test_a_narrow_range_is_shown_with_the_range_of_all_sets() -> None:
    assert ranges({"beta": BETA, "other": OTHER}, [40, 43, 44, 49]) == [["beta: 0.41 to 0.5 (all sets: 0.01 to 0.5)"]]


def test_one_set_or_all_sets_have_no_narrow_range() -> None:
    assert ranges({"beta": BETA}, [44], list(range(50))) == [[], []]


def test_each_selection_has_its_ranges_the_narrowest_first() -> None:
    columns = {"wide": [i % 10 for i in range(50)], "beta": BETA}
    narrow, none = ranges(columns, [i for i in range(20) if i % 10 < 6], [0, 5, 17, 29, 41, 49])
    assert narrow == ["beta: 0.01 to 0.16 (all sets: 0.01 to 0.5)", "wide: 0 to 5 (all sets: 0 to 9)"]
    assert none == []


def test_texts_and_booleans_show_their_values() -> None:
    columns = {"kind": [f"k{i % 6}" for i in range(60)], "on": [i % 2 == 0 for i in range(60)], "same": ["a"] * 60}
    assert ranges(columns, list(range(0, 60, 6))) == [
        ["kind: k0 (all sets: k0, k1, k2, k3 and 2 more); every such set fails", "on: True (all sets: False, True)"]
    ]


def test_only_sets_that_have_run_are_all_sets() -> None:
    """Otherwise a running job, which has run the first sets, would name each parameter that grows in the study."""
    failed = list(range(0, 10, 2))
    assert ranges({"beta": BETA}, failed) == [["beta: 0.01 to 0.09 (all sets: 0.01 to 0.5)"]]
    assert ranges({"beta": BETA}, failed, finished=10) == [[]]


def test_a_parameter_that_some_sets_lack_counts_where_it_is() -> None:
    columns = {"x": [None if i % 2 else i for i in range(60)], "none": pa.nulls(60, pa.float64())}
    assert ranges(columns, [1, 3, 40, 44, 50, 56, 58]) == [["x: 40 to 58 (all sets: 0 to 58)"]]


def test_names_are_no_settings() -> None:
    assert ranges({"name": [f"set {i}" for i in range(3000)]}, list(range(100))) == [[]]


def test_a_value_with_which_every_set_fails_is_named_however_few_sets_there_are() -> None:
    """All sets with 9 doctors hang: with 6 sets, chance explains such a range in 20 % of the cases."""
    doctors = [3, 9, 3, 9, 3, 9]
    assert ranges({"doctors": doctors}, [1, 3, 5]) == [["doctors: 9 (all sets: 3 to 9); every such set fails"]]
    assert ranges({"doctors": [3, 9, 3, 9, 9, 9]}, [1, 3, 5]) == [[]], "one set with 9 is good"
    assert ranges({"kind": ["a", "b", "a"]}, [1]) == [[]], "one set always has values of its own"


def test_the_chance_is_the_share_of_selections_in_so_narrow_a_range(subtests: pytest.Subtests) -> None:
    for n_all, n, m in [(8, 2, 2), (8, 3, 4), (9, 4, 6), (6, 6, 6), (7, 1, 1)]:
        with subtests.test(str((n_all, n, m))):
            every = list(itertools.combinations(range(n_all), n))
            inside = [chosen for chosen in every if max(chosen) - min(chosen) < m]
            assert _chance_of_range(n_all, n, m) == pytest.approx(len(inside) / len(every))
