"""The columns that tell the rows of a simulation apart, against all subsets of columns."""

from __future__ import annotations

from itertools import combinations, product

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mops.figures.row_keys import candidates, division_texts, keys_of_rows, places_of_divisions

REGIONS, SEXES, AGES, DAYS = ("north", "south"), ("f", "m"), (0, 5, 10), (0, 1)


def table(keys: tuple[str, ...]) -> pa.Table:
    """Return rows of two simulations, one for each day and each combination of these keys, and a count."""
    values = {"region": REGIONS, "sex": SEXES, "age_group": AGES}
    rows = []
    for group, day, *of in product((0, 1), DAYS, *(values[key] for key in keys)):
        n = len(rows)
        row = {"group": group, "replicate": 0, "day": day, "label": "same", "count": n * 7 % 5, "y": float(n)}
        rows.append(row | dict(zip(keys, of, strict=True)))
    return pa.Table.from_pylist(rows)


def test_the_fewest_columns_that_tell_rows_apart_are_found() -> None:
    names = ("region", "sex", "age_group")
    for keys in (some for n in (1, 2, 3) for some in combinations(names, n)):
        rows = table(keys)
        assert keys_of_rows(rows, ["day"], candidates(rows.schema, ["day"])) == keys


def test_a_count_does_not_tell_rows_apart() -> None:
    """It may differ from row to row by chance."""
    rows = table(("region",)).drop_columns(["region"])
    assert keys_of_rows(rows, ["day"], candidates(rows.schema, ["day"])) is None


def test_the_known_name_of_a_number_tells_rows_apart_where_some_are_missing() -> None:
    rows = table(("age_group",)).slice(1)
    assert keys_of_rows(rows, ["day"], ["age_group"]) is None
    rows = rows.rename_columns(["age" if name == "age_group" else name for name in rows.column_names])
    assert keys_of_rows(rows, ["day"], ["age"]) == ("age",)


@given(st.lists(st.one_of(st.none(), st.sampled_from(["10", "9", "a", "b"])), max_size=20))
def test_divisions_are_sorted_and_null_is_last(texts: list[str | None]) -> None:
    names, place = places_of_divisions(pa.chunked_array([texts], pa.string()), len(texts))
    assert [names[i] for i in place.tolist()] == texts
    assert names[-1] is None
    known = {text for text in texts if text is not None}
    is_number = known <= {"9", "10"}
    assert names[:-1] == sorted(known, key=float if is_number else str)


def test_a_division_by_several_columns_names_their_values() -> None:
    columns = (pa.chunked_array([["north", None]]), pa.chunked_array([[True, False]]), pa.chunked_array([[1.0, 2.5]]))
    assert division_texts(columns).to_pylist() == ["north, true, 1.0", "none, false, 2.5"]
    assert division_texts(columns[:1]).to_pylist() == ["north", None]
