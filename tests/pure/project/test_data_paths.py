"""The data outside the project that `mops.toml` declares."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cases import case_folder
from mops.errors import DataError, UsageError
from mops.project.mops_toml import check_data, read_data_paths


def test_paths_are_read(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, expected in [
        ("", ()),
        ("# a comment\n", ()),
        ("[data]\n", ()),
        ('[data]\npaths = ["/data/a.parquet", "/b"]\n', ("/data/a.parquet", "/b")),
        ('\ufeff[data]\npaths = ["/é"]\n', ("/é",)),
        ("[other]\nx = 1\n", ()),
        ("[server]\nport = 1\n[[observed]]\n", ()),
    ]:
        with case_folder(subtests, tmp_path, (text, expected)) as folder:
            (folder / "mops.toml").write_text(text, encoding="utf-8")
            assert read_data_paths(folder) == expected


def test_a_project_may_have_no_such_file(tmp_path: Path) -> None:
    assert read_data_paths(tmp_path) == ()
    (tmp_path / "mops.toml").mkdir()
    assert read_data_paths(tmp_path) == ()


def test_a_mistake_is_refused_with_the_file(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, said in [
        ("[data\n", "mops.toml is not TOML"),
        ("data = 3\n", "'data' in mops.toml is not a table"),
        ("[dat]\npaths = []\n", r"unknown table \[dat\]; did you mean \[data\]"),
        ('[[observe]]\noutput = "daily"\n', r"unknown table \[observe\]; did you mean \[\[observed\]\]"),
        ('[data]\npath = ["/a"]\n', r"\[data\] in mops.toml has an unknown key 'path'"),
        ('[data]\npaths = "/a"\n', "not a list of absolute paths"),
        ('[data]\npaths = ["a.parquet"]\n', "not a list of absolute paths"),
        ("[data]\npaths = [1]\n", "not a list of absolute paths"),
        # Regression: a traceback of Python, when a worker looked for the data.
        ('[data]\npaths = ["/no\\u0000pe"]\n', r"a path of \[data\] in mops.toml has a null character"),
    ]:
        with case_folder(subtests, tmp_path, (text, said)) as folder:
            (folder / "mops.toml").write_text(text)
            with pytest.raises(UsageError, match=said) as raised:
                read_data_paths(folder)
            assert raised.value.where == str(folder / "mops.toml")


def test_all_missing_paths_are_named_with_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    check_data([str(tmp_path), str(tmp_path / "a.parquet")])
    with pytest.raises(DataError) as raised:
        check_data([str(tmp_path / name) for name in ("b", "a.parquet", "c")])
    assert raised.value.where == f"{socket.gethostname()}: {tmp_path / 'b'}, {tmp_path / 'c'}"
