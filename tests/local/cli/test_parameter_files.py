"""Parameter sets in CSV and Parquet files, with the real command: the values of good files, and errors for bad ones."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from job_folders import folder_of
from mops.errors import StudyError
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.study.study_file import parse_study

from .command_lab import CommandLab

EMPTY_CELL = "write one, or leave the cell empty if the parameter is absent"
SEED = "is not an integer from 0 to 2^64 - 1"
CONVERT = "a parameter is a boolean, a number or a string; convert the column before writing it"
NO_VALUE = "has no value in any column, as rows that a spreadsheet leaves, and is a set without parameters"
UTF_8 = "save it as 'CSV UTF-8'"
AS_TEXT = 'is read as text; write 0.5 and not .5, true and not True (for a text, write """True""")'


def problems_of(folder: Path, name: str) -> list[str]:
    """Return the problems of a study whose parameter sets are in this file."""
    with pytest.raises(StudyError) as refused:
        read(folder, name)
    return [f"{problem.path}: {problem.message}" for problem in refused.value.problems]


# --- invalid files ----------------------------------------------------------------------------------------------------

# The content of sets.csv, and every reported problem.
BAD_CSV: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["sets.csv: is empty; its first line must name the parameters"]),
    "no rows": ("a,b\n", ["sets.csv: has a header and no rows"]),
    "semicolons": (
        "a;b\n0,5;1\n",
        ["sets.csv, line 1: its cells are separated by ';'; save it with commas, and with decimal points"],
    ),
    "tabs": (
        "a\tb\n1\t2\n",
        ["sets.csv, line 1: its cells are separated by tabs; save it with commas, and with decimal points"],
    ),
    "pandas' index": (
        ",a\n0,1\n",
        [
            (
                "sets.csv, line 1, column 1: has no name; give it one, or remove the column "
                "(pandas writes its index there: to_csv(..., index=False); R: write.csv(..., row.names=FALSE))"
            )
        ],
    ),
    "names": (
        "a,a,, b\n1,2,3,4\n",
        [
            "sets.csv, line 1, column 2: the name 'a' appears twice; keep one",
            "sets.csv, line 1, column 3: has no name; give it one, or remove the column",
            "sets.csv, line 1, column 4: the name ' b' begins or ends with a space; write 'b'",
        ],
    ),
    "ragged rows": (
        "a,b\n1\n\n1,2,3\n1,2\n",
        ["sets.csv, line 2: has 1 cell, but the header has 2", "sets.csv, line 4: has 3 cells, but the header has 2"],
    ),
    "an open quote": ('a,b\n1,2\n"x,2\n', ["sets.csv, line 3: is not CSV: a quote is opened and not closed"]),
    "Latin-1": ("a\nGenf\nGenève\n".encode("latin-1"), [f"sets.csv, line 3: byte 4 is not UTF-8; {UTF_8}"]),
    "UTF-16": ("a\n1\n".encode("utf-16"), [f"sets.csv: is UTF-16 text; {UTF_8}"]),
    "Parquet": (b"PAR1....PAR1", ["sets.csv: is a Parquet file; name it .parquet"]),
    "not finite": (
        "a,b\nNaN,1e999\n-Infinity,inf\n",
        [
            f"sets.csv, line 2, column 'a': NaN is not a finite number; {EMPTY_CELL}",
            f"sets.csv, line 3, column 'a': -Infinity is not a finite number; {EMPTY_CELL}",
            f"sets.csv, line 2, column 'b': Infinity is not a finite number; {EMPTY_CELL}",
            f"sets.csv, line 3, column 'b': inf is not a finite number; {EMPTY_CELL}",
        ],
    ),
    "too many digits": (
        f"a\n{'1' * 5000}\n",
        ["sets.csv, line 2, column 'a': has more digits than an integer may have"],
    ),
    "half a character": (
        'a\n"""\\ud800"""\n',
        ["sets.csv, line 2, column 'a': '\\ud800' has half a character (a lone surrogate); write all of it"],
    ),
    "seeds": (
        "a,seed\n1,7\n2,7.0\n3,-1\n4,\n5,x\n6,18446744073709551616\n7,true\n",
        [
            f"sets.csv, line 3, column 'seed': '7.0' {SEED}",
            f"sets.csv, line 4, column 'seed': -1 {SEED}",
            f"sets.csv, line 6, column 'seed': 'x' {SEED}",
            f"sets.csv, line 7, column 'seed': 18446744073709551616 {SEED}",
            f"sets.csv, line 8, column 'seed': 'true' {SEED}",
        ],
    ),
    "more than are shown": (
        "a\n" + "nan\n" * 40_000,
        [
            *(f"sets.csv, line {i}, column 'a': nan is not a finite number; {EMPTY_CELL}" for i in range(2, 22)),
            "$: and 39,980 more problems",
        ],
    ),
}


def test_invalid_csv_files(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (content, problems) in BAD_CSV.items():
        with subtests.test(name):
            (tmp_path / "sets.csv").write_bytes(content.encode() if isinstance(content, str) else content)
            assert problems_of(tmp_path, "sets.csv") == problems


DAY = datetime.date(2026, 1, 1)
# A table, and every reported problem if sets.parquet contains it.
BAD_PARQUET: dict[str, tuple[pa.Table, list[str]]] = {
    "no rows": (pa.table({"a": pa.array([], pa.int64())}), ["sets.parquet: has no rows"]),
    "no columns": (pa.table({}), ["sets.parquet: has no columns"]),
    "types": (
        pa.table(
            {
                "when": [DAY],
                "at": [datetime.datetime(2026, 1, 1)],
                "list": [[1]],
                "inner": [{"x": 1}],
                "money": [decimal.Decimal("1.50")],
                "raw": [b"x"],
            }
        ),
        [
            f"sets.parquet, column 'when': is date32[day], and {CONVERT}",
            f"sets.parquet, column 'at': is timestamp[us], and {CONVERT}",
            f"sets.parquet, column 'list': is list<element: int64>, and {CONVERT}",
            f"sets.parquet, column 'inner': is struct<x: int64>, and {CONVERT}",
            f"sets.parquet, column 'money': is decimal128(3, 2), and {CONVERT}",
            f"sets.parquet, column 'raw': is binary, and {CONVERT}",
        ],
    ),
    "float seeds": (
        pa.table({"a": [1, 2], "seed": [1.0, None]}),
        [
            (
                "sets.parquet, column 'seed': is double, and seeds are integers; write it as uint64 (pandas: "
                "astype('UInt64'), which also keeps rows without a seed)"
            )
        ],
    ),
    "negative seeds": (pa.table({"a": [1, 2], "seed": [7, -7]}), [f"sets.parquet, row 2, column 'seed': -7 {SEED}"]),
    "not finite": (
        pa.table({"a": [1.0, float("nan"), None, float("-inf")]}),
        [
            f"sets.parquet, row {row}, column 'a': {value} is not a finite number; write one, or null if the "
            "parameter is absent"
            for row, value in ((2, "NaN"), (4, "-Infinity"))
        ],
    ),
    "pandas' index": (
        pa.Table.from_pandas(pd.DataFrame({"a": [1]}, index=["x"])),
        [
            (
                "sets.parquet, column 2: '__index_level_0__' is the index of a pandas frame; "
                "write the file with to_parquet(..., index=False)"
            )
        ],
    ),
    "names": (
        pa.Table.from_arrays([pa.array([1])] * 3, ["a", "a", ""]),
        [
            "sets.parquet, column 2: the name 'a' appears twice; keep one",
            "sets.parquet, column 3: has no name; give it one, or remove the column",
        ],
    ),
}


def test_invalid_parquet_files(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (table, problems) in BAD_PARQUET.items():
        with subtests.test(name):
            pq.write_table(table, tmp_path / "sets.parquet")
            assert problems_of(tmp_path, "sets.parquet") == problems


def test_files_that_are_not_whole_parquet_files(tmp_path: Path) -> None:
    said = "sets.parquet: cannot be read as Parquet: "
    path = tmp_path / "sets.parquet"
    path.write_text("a,b\n1,2\n")
    (problem,) = problems_of(tmp_path, path.name)
    assert problem.startswith(f"{said}Parquet magic bytes not found in footer")
    assert "\n" not in problem
    pq.write_table(pa.table({"a": [i / 7 for i in range(1000)]}), path)
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(4000) + content[4008:])
    (problem,) = problems_of(tmp_path, path.name)
    assert problem.startswith(said)


def test_a_name_that_is_not_a_parameter_file(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "sets.xlsx").touch()
    ending = "is neither .csv nor .parquet; save the sets as one of them, or write them as a list"
    for name, said in {
        "sets.csv": f"there is no file 'sets.csv': {tmp_path}/sets.csv",
        "folder.csv": "'folder.csv' is a folder; name a file in it",
        "sets.xlsx": f"'sets.xlsx' {ending}",
        "": f"'' {ending}",
    }.items():
        assert problems_of(tmp_path, name) == [f"$.parameter_sets: {said}"]


def test_problems_of_the_study_and_of_its_file_are_reported_together(lab: CommandLab) -> None:
    lab.write("sets.csv", "a\nnan\n")
    lab.write_study(parameter_sets="sets.csv", n_replicates=0)
    ran = lab.submit()
    assert (ran.code, ran.out, lab.stored()) == (2, "", [])
    assert ran.err == (
        "error: the study is not valid\n  $.n_replicates: 0 is not an integer of at least 1\n"
        f"  sets.csv, line 2, column 'a': nan is not a finite number; {EMPTY_CELL}\n  at: {lab.study}\n"
    )


# --- valid files ------------------------------------------------------------------------------------------------------


def read(folder: Path, name: str, **fields: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the parameters and seeds of each group, and the warnings."""
    study = {"model": "m:f", "parameter_sets": name, **fields}
    got = parse_study(study, where="study.json", folder=folder)
    return [(group.params, group.seeds) for group in got.groups.groups(range(len(got.groups)))], got.warnings


def sets_of(path: Path, text: str) -> list[dict[str, Any]]:
    path.write_text(text)
    groups, _ = read(path.parent, path.name)
    return [params for params, _ in groups]


CELLS: list[tuple[str, object]] = [
    *(("1", 1), ("1.0", 1.0), ("-0.0", -0.0), ("-0", 0), ("1e-07", 1e-07), ("1E+22", 1e22), (" 3 ", 3)),
    *(("12345678901234567890", 12345678901234567890), ("true", True), ("false", False)),
    *(("x y", "x y"), ("[1]", "[1]"), ('"""1"""', "1"), ('"a,b"', "a,b"), ("Genève", "Genève"), ("%s", "%s")),
    *(("01", "01"), ("1_000", "1_000"), ("nano", "nano"), ("no way", "no way"), ("F", "F"), ("NA", "NA")),
    *(('"""True"""', "True"), ('"""0,5"""', "0,5")),
]


def test_each_cell_is_parsed_separately_as_json(tmp_path: Path) -> None:
    for cell, value in CELLS:
        (got,) = sets_of(tmp_path / "sets.csv", f"a\n{cell}\n")
        assert (repr(got["a"]), type(got["a"])) == (repr(value), type(value))


def test_values_of_one_column_keep_their_own_types(tmp_path: Path) -> None:
    """Regression: a reader that inferred the type of a column gave 1 and 1.0 the same identity."""
    got = sets_of(tmp_path / "sets.csv", "a\n1\n1.0\ntrue\nx\n")
    assert [repr(params["a"]) for params in got] == ["1", "1.0", "True", "'x'"]


def test_an_empty_cell_and_null_leave_the_parameter_out(tmp_path: Path) -> None:
    assert sets_of(tmp_path / "sets.csv", "a,b\n1,\n,2\nnull,3\n") == [{"a": 1}, {"b": 2}, {"b": 3}]
    pq.write_table(pa.table({"a": [1, None], "b": [None, "x"], "c": pa.nulls(2)}), tmp_path / "sets.parquet")
    assert [params for params, _ in read(tmp_path, "sets.parquet")[0]] == [{"a": 1}, {"b": "x"}]


def test_text_that_looks_like_a_value_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text("a,b\nTrue,.5\n1.5,x\n", encoding="utf-8")
    _, warnings = read(tmp_path, "sets.csv")
    assert warnings == (f"sets.csv, line 2, column 'a', sets.csv, line 2, column 'b': {AS_TEXT}",)


def test_text_in_a_column_of_numbers_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text("a,b\n0.1,x\nn/a,y\n0.3,z\n")
    _, warnings = read(tmp_path, "sets.csv")
    assert warnings == ("sets.csv, line 3, column 'a': is text, but other cells of this column are not",)


def test_a_row_without_values_is_a_set_and_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text("a,b\n1,2\n,\n")
    groups, warnings = read(tmp_path, "sets.csv")
    assert [params for params, _ in groups] == [{"a": 1, "b": 2}, {}]
    assert warnings == (
        "sets.csv, line 3: " + NO_VALUE,
        "$.parameter_sets: 'a' is in 1 of 2 sets",
        "$.parameter_sets: 'b' is in 1 of 2 sets",
    )


def test_files_of_spreadsheets_are_read(tmp_path: Path) -> None:
    for text in ("\ufeffa,b\r\n1,2\r\n", 'a,"b"\n1,2', '"a","b"\n\n1,2\n\n'):
        assert sets_of(tmp_path / "sets.csv", text) == [{"a": 1, "b": 2}], text


def test_seeds_have_a_column(tmp_path: Path) -> None:
    top = 2**64 - 1
    (tmp_path / "sets.csv").write_text(f"seed,a\n{top},1\n,1\n0,2\n")
    table = pa.table({"a": [1, 1, 2], "seed": pa.array([top, None, 0], pa.uint64())})
    pq.write_table(table, tmp_path / "sets.parquet")
    derived = [replicate_seed(param_id({"a": 1}), i) for i in range(2)]
    for name in ("sets.csv", "sets.parquet"):
        groups, warnings = read(tmp_path, name, n_replicates=2)
        assert groups == [({"a": 1}, (top, *derived)), ({"a": 2}, (0,))]
        assert warnings == ()


def test_duplicate_rows_give_a_warning_with_their_positions(tmp_path: Path) -> None:
    (tmp_path / "sets.csv").write_text('a,b\n1,"x\ny"\n\n1,"x\ny"\n')
    groups, warnings = read(tmp_path, "sets.csv")
    assert len(groups) == 1
    assert warnings == (
        "sets.csv, line 6: the same parameters with the same seed are one simulation; mops runs it once",
    )


COLUMNS: list[tuple[pa.Array, object]] = [
    (pa.array([1], pa.int8()), 1),
    (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    (pa.array([0.1], pa.float32()), 0.10000000149011612),
    (pa.array([1.0], pa.float64()), 1.0),
    (pa.array([True]), True),
    (pa.array(["Genève"], pa.large_string()), "Genève"),
    (pa.array(['a "b"']).dictionary_encode(), 'a "b"'),
]


def test_in_parquet_the_type_of_the_column_counts(tmp_path: Path) -> None:
    for column, value in COLUMNS:
        pq.write_table(pa.table({"a%": column}), tmp_path / "sets.parquet")
        ((params, _),) = read(tmp_path, "sets.parquet")[0]
        assert repr(params) == repr({"a%": value})


def test_the_same_sets_as_csv_parquet_or_list_are_the_same_study(tmp_path: Path) -> None:
    """The sets are more than one read returns."""
    n = 16_404
    sets = [{"beta": i / 7, "n": i, "on": i % 2 == 0, "name": f"é{i % 5}"} for i in range(n)]
    pl.DataFrame(sets).write_parquet(tmp_path / "polars.parquet")
    pd.DataFrame(sets).to_parquet(tmp_path / "pandas.parquet", index=False)
    pl.DataFrame(sets).write_csv(tmp_path / "polars.csv")
    wanted, _ = read(tmp_path, sets, n_replicates=2)  # type: ignore[arg-type]
    assert len(wanted) == n
    for name in ("polars.parquet", "pandas.parquet", "polars.csv"):
        assert read(tmp_path, name, n_replicates=2) == (wanted, ()), name


def test_a_study_with_a_file_gives_the_rows_of_one_with_a_list(lab: CommandLab) -> None:
    lab.write("deep/sets.csv", "x,seed\n1,\n2.5,7\n")
    lab.write_study(parameter_sets="deep/sets.csv")
    ran = lab.submit("--name", "file", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["n_groups"], ran.json["n_simulations"]) == (2, 3)
    params = pq.read_table(folder_of(lab.storage, "file") / "params.parquet")
    assert params["x"].to_pylist() == [1.0, 2.5]
    assert params["params"].to_pylist() == ['{"x":1}', '{"x":2.5}']
    assert params["seeds"].to_pylist()[1] == [7]


def test_a_submit_does_not_use_the_sets_of_a_killed_submit(lab: CommandLab) -> None:
    """The text of the study is the same, but the content of its file differs."""
    lab.write("sets.csv", "x\n1\n")
    lab.write_study(parameter_sets="sets.csv")
    assert lab.submit("--name", "job").code == 0
    # The state after a submit that was killed before its last write.
    (lab.storage / "jobs" / "job" / "job.json").unlink()
    lab.write("sets.csv", "x\n2\n")
    assert lab.submit("--name", "job").code == 0
    assert pq.read_table(folder_of(lab.storage, "job") / "params.parquet")["x"].to_pylist() == [2]
