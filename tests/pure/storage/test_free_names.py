"""Columns of parameters beside other columns: no two names that a tool could take for one."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mops.storage.params_file import free_names

NAMES = st.lists(st.sampled_from(["r", "R", "param.r", "Param.R", "beta", "Beta", "É", "é"]), unique=True)


@given(NAMES, NAMES)
def test_names_differ_in_more_than_case(names: list[str], taken: list[str]) -> None:
    found = free_names(names, taken)
    assert list(found) == names
    assert all(free.endswith(name) for name, free in found.items())
    assert len({free.casefold() for free in found.values()} - {name.casefold() for name in taken}) == len(names)


def test_duckdb_reads_each_column_by_its_name() -> None:
    """Case 02: it read the column 'R' of the output for the parameter 'r'."""
    names = free_names(["r"], ["S", "I", "R"])
    table = pa.table({"S": [90.0], "I": [10.0], "R": [20.0], names["r"]: [1.5]})
    relation = duckdb.connect().from_arrow(table)
    assert {name: relation.aggregate(f'max("{name}")').fetchall()[0][0] for name in table.column_names} == {
        "S": 90.0,
        "I": 10.0,
        "R": 20.0,
        "param.r": 1.5,
    }
