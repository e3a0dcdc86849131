"""Files of parameter sets as pandas, polars, R and spreadsheets write them: read as they were meant, or refused."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cases import case_folder
from mops.errors import StudyError
from mops.study.sampling.draw import Method
from mops.study.sampling.write import sample
from mops.study.study_file import parse_study

Frame = dict[str, list[Any]]


def read(folder: Path, name: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the parameters of each set, in the order of their first row, and the warnings."""
    study = parse_study({"model": "m:f", "parameter_sets": name}, where="study.json", folder=folder)
    return [group.params for group in study.groups.groups(range(len(study.groups)))], study.warnings


def text_of(folder: Path, text: str, name: str = "sets.csv") -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    (folder / name).write_text(text, encoding="utf-8")
    return read(folder, name)


def problem(folder: Path, text: str) -> str:
    with pytest.raises(StudyError) as raised:
        text_of(folder, text)
    (found,) = raised.value.problems
    return f"{found.path}: {found.message}"


# --- files that other programs write ----------------------------------------------------------------------------------


def of_pandas(frame: Frame) -> str:
    return str(pd.DataFrame(frame).to_csv(index=False))


def of_polars(frame: Frame) -> str:
    return pl.DataFrame(frame).write_csv()


def of_r(frame: Frame) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else f"{value:.15g}"

    rows = [",".join(map(cell, row)) for row in (tuple(frame), *zip(*frame.values(), strict=True))]
    return "\n".join(rows) + "\n"


def of_spreadsheet(
    frame: Frame, separator: str = ",", decimal: str = ".", words: tuple[str, str] = ("FALSE", "TRUE")
) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return words[value]
        return value if isinstance(value, str) else f"{value:.15g}".replace(".", decimal)

    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\r\n")
    writer.writerow(frame)
    writer.writerows([cell(value) for value in row] for row in zip(*frame.values(), strict=True))
    return "\ufeff" + out.getvalue()


def of_a_german_spreadsheet(frame: Frame) -> str:
    return of_spreadsheet(frame, ";", ",", ("FALSCH", "WAHR"))


def of_a_german_spreadsheet_with_commas(frame: Frame) -> str:
    return of_spreadsheet(frame, ",", ",", ("FALSCH", "WAHR"))


WRITERS = [of_pandas, of_polars, of_r, of_spreadsheet, of_a_german_spreadsheet, of_a_german_spreadsheet_with_commas]
COLUMNS = st.sampled_from(
    [
        st.booleans(),
        st.integers(-(10**6), 10**6),
        st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: float(f"{value:.12g}")),
        st.sampled_from(["ring", "random", "x;y", "a,b", "Genève", 'a "b"', "no mask"]),
    ]
)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    n = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(["beta", "n days", "on", "a;b", "é"]), min_size=1, max_size=4, unique=True))
    frame: Frame = {"row": [f"set {i}" for i in range(n)]} if draw(st.booleans()) else {}
    return frame | {name: draw(st.lists(draw(COLUMNS), min_size=n, max_size=n)) for name in names}


def is_same(found: Any, meant: Any) -> bool:
    if isinstance(meant, bool | str):
        return type(found) is type(meant) and found == meant
    return type(found) in (int, float) and bool(found == meant)  # R and spreadsheets write 1 for 1.0


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(frames(), st.sampled_from(WRITERS))
def test_a_foreign_file_is_read_as_it_was_meant_or_refused(frame: Frame, write: Callable[[Frame], str]) -> None:
    """Case 01: booleans and numbers of other programs became texts, and every text is true."""
    meant = [dict(zip(frame, row, strict=True)) for row in zip(*frame.values(), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, _ = text_of(Path(folder), write(frame))
        except StudyError as refused:
            problems = [f"{one.path}: {one.message}" for one in refused.problems]
            said = ("has only", "separated by", "cells, but", "is not CSV")
            assert all(any(text in one for text in said) for one in problems)
            return
    for row in found:
        assert any(row.keys() == one.keys() and all(is_same(row[key], one[key]) for key in one) for one in meant), row


def test_a_column_of_booleans_that_are_not_json_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for words in [("True", "False"), ("TRUE", "FALSE"), ("T", "F"), ("yes", "no"), ("VRAI", "FAUX")]:
        with case_folder(subtests, tmp_path, words) as folder:
            said = problem(folder, f"beta,on\n0.1,{words[0]}\n0.2,NA\n0.3,{words[1]}\n")
            what = f"the column has only booleans, and {words[0]!r} is text in JSON; write true and false"
            assert said == f'sets.csv, line 2, column \'on\': {what} (for texts, write """{words[0]}""")'


def test_a_column_is_judged_over_all_its_rows(tmp_path: Path) -> None:
    """The reader takes 16,384 rows at once."""
    rows = "".join(f"{i},True\n" for i in range(20_000))
    assert "has only booleans" in problem(tmp_path, f"n,on\n{rows}")
    found, warnings = text_of(tmp_path, f"n,on\n{rows}20000,auto\n")
    assert (found[0]["on"], found[-1]["on"]) == ("True", "auto")
    assert "is read as text" in warnings[0]


def test_a_column_of_numbers_that_are_not_json_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for cell in ["0,5", "1,000.5", "1.000,5", "1 000", "1\u202f000", "\u22120.5", ".5", "1.", "+1", "5%", "0.5\u200b"]:
        with case_folder(subtests, tmp_path, cell) as folder:
            said = problem(folder, f'beta,n\n1.5,1\n"{cell}",2\n')
            assert said.startswith(
                f"sets.csv, line 3, column 'beta': the column has only numbers, and {cell!r} is text in JSON"
            )
            found, _ = text_of(folder, f'beta,n\n1.5,1\n"""{cell}""",2\n')
            assert found[1]["beta"] == cell, "as the error says"


def test_integers_beyond_floats_are_numbers_of_their_column_too(tmp_path: Path) -> None:
    """The model got the text '0,5' if the column also had an integer between 2^53 and 2^63."""
    assert "has only numbers" in problem(tmp_path, f'beta,n\n{2**53 + 1},1\n"0,5",2\n')


def test_texts_stay_texts(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for cells in [
        ["F", "M"],
        ["f"],
        ["01", "02"],
        ["low", "no"],
        ["yes", "maybe"],
        ["2024_01"],
        ["a", "1,5"],
        ["N", "S"],
    ]:
        with case_folder(subtests, tmp_path, cells) as folder:
            rows = "".join(f'"{cell}",{i}\n' for i, cell in enumerate(cells))
            assert [row["a"] for row in text_of(folder, f"a,n\n{rows}")[0]] == cells


def test_names_that_no_one_meant_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for header, what in [
        ("Unnamed: 0,a", "column 1: 'Unnamed: 0' is what pandas or R calls a column without a name"),
        ("...1,a", "column 1: '...1' is what pandas or R calls a column without a name"),
        ("be\u200bta,a", "column 1: the name 'be\\u200bta' has an invisible character (U+200B); remove it"),
        ("\u00a0beta,a", "column 1: the name '\\xa0beta' begins or ends with a space; write 'beta'"),
    ]:
        with case_folder(subtests, tmp_path, (header, what)) as folder:
            assert problem(folder, f"{header}\n1,2\n").startswith(f"sets.csv, line 1, {what}")


def test_a_file_of_one_column_may_have_several(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, cell, is_noted in [("a|b", "1|2", True), ("a b", "1 2", True), ("a b", "1", False), ("a;b", "1", True)]:
        with case_folder(subtests, tmp_path, (name, cell, is_noted)) as folder:
            _, warnings = text_of(folder, f"{name}\n{cell}\n")
            note = (
                f"sets.csv, line 1: the file has one column, {name!r}; "
                "if these are several columns, save it with commas"
            )
            assert (note in warnings) == is_noted


def test_a_cell_with_a_character_that_nobody_sees_is_noted(tmp_path: Path) -> None:
    found, warnings = text_of(tmp_path, "kind,n\nring\u200b,1\nring,2\n")
    assert [row["kind"] for row in found] == ["ring\u200b", "ring"]
    assert warnings[0].startswith("sets.csv, line 2, column 'kind': has an invisible character (U+200B)")


# --- files that mops writes -------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.sampled_from(
        ["True", "no", "T", "0,5", "1 000", "NA", "", "null", "1", '"', "a;b", " x ", "\u200b", "01", ".5"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
VALUES = st.one_of(
    st.lists(TEXTS, min_size=2, max_size=4, unique=True),
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=2, max_size=4, unique=True),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=4, unique=True),
    st.just([False, True]),
)
NAMES = st.one_of(st.sampled_from(["beta", "a;b", "a\tb", " c", "Unnamed: 0", "x\u200b", "n d", "", "\ufeffa"]), TEXTS)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), st.sampled_from(["csv", "parquet"]))
@example({"beta": ["True", "0\r0"]}, "csv")  # Python 3.11 writes it without quotes
@example({"beta": [False, True], "0\r0": [False, True]}, "csv")
def test_what_mops_samples_is_read_back(space: dict[str, list[Any]], ending: str) -> None:
    """A sample had names or texts that mops refused, or read otherwise."""
    import json

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "space.json").write_text(json.dumps({key: {"values": values} for key, values in space.items()}))
        out = folder / f"sets.{ending}"
        try:
            sample(folder / "space.json", out, method=Method.GRID)
        except StudyError:
            assert not out.exists()
            return
        found, warnings = read(folder, out.name)
    assert len({tuple(repr(row[key]) for key in space) for row in found}) == len(found)
    for key, values in space.items():
        assert {repr(row[key]) for row in found} == {repr(value) for value in values}
    assert not [text for text in warnings if "the file has one column" not in text]
