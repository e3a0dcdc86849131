"""Maps, which pyarrow's kernels for lists do not take: their families, and the types that store them."""

from __future__ import annotations

import pyarrow as pa

from mops.study.column_types import family_of, used_type


def test_a_column_of_maps_has_the_families_of_its_keys_and_values() -> None:
    """Each result with such a column failed."""
    maps = pa.array([[("a", 2**60)], [("b", 1)], None, [], [("c", None)]], pa.map_(pa.string(), pa.int64()))
    assert family_of(maps) == ["map", "string", "number large"]
    assert family_of(maps[1:4]) == ["map", "string", "number"]
    assert used_type(maps[4:]) == pa.map_(pa.string(), pa.null())
