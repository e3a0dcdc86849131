"""Names of outputs and columns that tools cannot tell apart, or that no file can have, are refused."""

from __future__ import annotations

import pytest

from mops.child.outputs import as_tables
from mops.study.output_schema import InvalidOutput


def test_names_that_differ_only_in_case_are_a_clash(subtests: pytest.Subtests) -> None:
    """Case 02: DuckDB read the column 'R' for the parameter 'r'."""
    for result, what in [
        ({"day": [0], "S": [1], "s": [2]}, "has columns 'S' and 's', which differ only in upper and lower case"),
        ({"day": [0], "Group": ["a"]}, "has a column 'Group', which mops adds; rename the model's column"),
        ({"day": [0], "Seed": [8]}, "has a column 'Seed' that is not the simulation's seed, 7"),
        ({"daily": {"n": [1]}, "Daily": {"n": [1]}}, "the outputs 'daily' and 'Daily' differ only in upper and lower"),
    ]:
        with subtests.test(str((result, what))), pytest.raises(InvalidOutput, match=what):
            as_tables(result, 7)


def test_a_seed_is_left_out_whatever_its_case() -> None:
    assert as_tables({"Seed": [7], "n": [1]}, 7)["output"].column_names == ["n"]


def test_an_output_has_a_name_that_fits_a_file(subtests: pytest.Subtests) -> None:
    """Case 22: a name of 37 Japanese characters passed the check, and no commit could write its folder."""
    for letter, most in [("a", 223), ("é", 37), ("あ", 24), ("😀", 18)]:
        with subtests.test(str((letter, most))):
            assert as_tables({letter * most: {"n": [1]}}, 7)
            with pytest.raises(InvalidOutput, match=r"characters as a file name, and can have 223; shorten it"):
                as_tables({letter * (most + 1): {"n": [1]}}, 7)
