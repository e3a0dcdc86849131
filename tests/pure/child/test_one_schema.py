"""The tables of a group's replicates get one schema, even if Arrow's cast fails."""

from __future__ import annotations

import pyarrow as pa

from mops.child.task_run import with_one_schema


def test_a_column_of_one_type_stays_as_it_is_beside_one_whose_types_differ() -> None:
    """Arrow cannot cast a struct with a null inside to its own type, if the table begins within its buffers."""
    rows = [{"p": k, "q": None} for k in range(4)]
    stored = pa.table({"x": pa.array([0, 1, 2, 3], pa.int8()), "s": pa.array(rows)})
    new = pa.table({"s": pa.array(rows[:1]), "x": pa.array([300], pa.int16())})
    found = with_one_schema([{"output": stored.slice(2, 2)}, {"output": new}, {"other": stored}])
    assert [one["output"].schema.field("x").type for one in found[:2]] == [pa.int16(), pa.int16()]
    assert [one["output"].to_pydict() for one in found[:2]] == [
        {"x": [2, 3], "s": rows[2:]},
        {"x": [300], "s": rows[:1]},
    ]
    assert found[2] == {"other": stored}
