"""``mops jobs compare`` counts what differs between the results of two jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import mops
from mops.cli.main import app
from mops.jobs.compare import _compared, compare

Row = tuple[str, int, float | None]
ROWS = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([None, float("nan"), 0.0, -0.0, 1.0]))

MODEL = """
def run(params, seed):
    x = [params["x"], float("nan"), None, seed % 7 + params.get("shift", 0) * 0]
    return {"output": {"i": [0, 1, 2, 3], "x": x, "l": [[1.0], None, [float("nan")], []]}, "more": {"n": [seed]}}

def score(replicates):
    return {"a": len(replicates), "b": 1.0}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def submit(name: str, sets: list[dict[str, Any]], **more: Any) -> mops.Job:
    study: Mapping[str, Any] = {"model": "model:run", "targets": ["model:score"], "parameter_sets": sets, **more}
    return mops.submit(study, name=name, storage="results")


def table_of(rows: list[Row]) -> pa.Table:
    ids, seeds, values = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return pa.table(
        {
            "param_id": pa.array(ids, pa.string()),
            "seed": pa.array(seeds, pa.uint64()),
            "x": pa.array(values, pa.float64()),
        }
    )


def counts(a: mops.Job, b: mops.Job) -> dict[str, tuple[int, int, int, int]]:
    return {one.what: (one.same, one.different, one.only_a, one.only_b) for one in compare(a, b)}


def test_sets_seeds_rows_and_losses(project: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    """A job may have more values than the memory holds, so the jobs are compared some groups at a time."""
    one = submit("one", [{"x": 1}, {"x": 2}], n_replicates=2)
    same = submit("same", [{"x": 2}, {"x": 1}], n_replicates=2)
    longer = submit("longer", [{"x": 2}, {"x": 3}], n_replicates=3)
    for values_at_once in (1, 2_000_000):
        monkeypatch.setattr("mops.jobs.compare._VALUES_AT_ONCE", values_at_once)
        with subtests.test(values_at_once=values_at_once):
            assert counts(one, same) == {
                "parameter sets": (2, 0, 0, 0),
                "simulations": (4, 0, 0, 0),
                "output output": (4, 0, 0, 0),
                "output more": (4, 0, 0, 0),
                "losses": (4, 0, 0, 0),
            }, "groups may have other numbers, and NaN equals NaN"
            assert counts(one, longer) == {
                "parameter sets": (1, 0, 1, 1),
                "simulations": (2, 0, 2, 4),
                "output output": (2, 0, 2, 4),
                "output more": (2, 0, 2, 4),
                "losses": (1, 1, 2, 2),
            }


def test_another_model(project: Path) -> None:
    one = submit("one", [{"x": 1}, {"x": 2}])
    text = MODEL.replace('params["x"], float', 'params["x"] * (1 + (params["x"] == 2)), float').replace('"n"', '"m"')
    (project / "model.py").write_text(text)
    found = {two.what: two for two in compare(one, submit("other", [{"x": 1}, {"x": 2}]))}
    assert (found["output output"].same, found["output output"].different) == (1, 1)
    assert (found["output more"].same, found["output more"].different) == (0, 2)
    assert found["output more"].examples[0] == "only one job has the column, or its types differ: m, n"


def test_the_command(project: Path) -> None:
    submit("one", [{"x": 1}])
    submit("two", [{"x": 1}, {"x": 2}])
    equal = CliRunner().invoke(app, ["jobs", "compare", "one", "one", "--storage", "results", "--json"])
    assert equal.exit_code == 0
    assert [one["same"] for one in json.loads(equal.stdout)] == [1, 1, 1, 1, 2]
    differs = CliRunner().invoke(app, ["jobs", "compare", "one", "two", "--storage", "results"])
    assert differs.exit_code == 1
    assert "only two" in differs.stdout
    assert "is only in the second job" in differs.output


@given(
    a=st.lists(ROWS, max_size=12),
    b=st.lists(ROWS, max_size=12),
)
def test_rows_with_the_same_keys_are_compared_in_their_order(a: list[Row], b: list[Row]) -> None:
    found = _compared("x", ("param_id", "seed"), *(table_of(rows) for rows in (a, b)))
    by_key: list[dict[tuple[str, int], list[float | None]]] = [{}, {}]
    for rows, known in zip((a, b), by_key, strict=True):
        for identity, seed, x in rows:
            known.setdefault((identity, seed), []).append(x)
    both = by_key[0].keys() & by_key[1].keys()
    same = sum(repr(by_key[0][key]) == repr(by_key[1][key]) for key in both)
    numbers = (same, len(both) - same, len(by_key[0]) - len(both), len(by_key[1]) - len(both))
    assert (found.same, found.different, found.only_a, found.only_b) == numbers
