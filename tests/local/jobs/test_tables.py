"""The results of a job as tables: columns, conditions, and what other libraries get."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import mops
from mops.errors import UsageError
from mops.jobs.job import Job
from mops.jobs.scan import Scan, Selection
from mops.jobs.table import Table
from mops.settings import Settings
from mops.storage.params_file import free_names

MODEL = """
def run(params, seed):
    if params["x"] == 4:
        raise ValueError("four")
    return {"daily": {"day": [0, 1, 2], "y": [params["x"] * day for day in range(3)]}, "size": {"n": [seed % 2]}}


def loss(params, replicates):
    return params["x"]


def both(params, replicates):
    return {"low": 1.0, "high": -params["x"]}
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job of six sets, the fifth of which fails. Its parameters have the names of columns."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "mops.toml").touch()
    (folder / "model.py").write_text(MODEL)
    study = {
        "model": "model:run",
        "targets": ["model:loss", "model:both"],
        "n_replicates": 2,
        "parameter_sets": [{"x": x, "loss": x / 2, "group": f"g{x % 2}", "day": 7} for x in range(6)],
    }
    settings = Settings(slots=1)
    return mops.submit(study, project=folder, storage=folder / "s", name="six", settings=settings, local=True)


EQUAL_OF_BOTH = {"both.low": 1.0, "both.high": 1.0}
EQUAL = EQUAL_OF_BOTH | {"model:loss": 1.0}
PARAMETERS = {
    "daily": ["x", "loss", "param.group", "param.day"],
    "losses": ["x", "param.loss", "param.group", "day"],
    "failures": ["x", "loss", "param.group", "day"],
    "best": ["x", "param.loss", "param.group", "day"],
}


def tables(job: Job, **options: Any) -> dict[str, Table]:
    return {
        "daily": job.outputs("daily", **options),
        "losses": job.losses(**options),
        "failures": job.failures(**options),
    }


def test_a_table_shows_parameters_first_and_ids_last_and_a_clash_is_named_in_one_way_everywhere(
    job: Job, tmp_path: Path
) -> None:
    """Clashing parameters were called `param.NAME` in one place and `NAME.param` in another."""
    names = {name: table.column_names for name, table in tables(job).items()}
    assert names["daily"] == ["group", "replicate", "day", "y", "seed", "param_id"]
    assert names["losses"] == ["group", "target", "name", "loss", "n_replicates", "param_id"]
    with_parameters = {name: table.column_names for name, table in tables(job, params=True).items()}
    for name, own in names.items():
        n_keys = 1 if name == "losses" else 2
        assert with_parameters[name] == [*own[:n_keys], *PARAMETERS[name], *own[n_keys:]]
    assert job.params().column_names == ["group", "x", "loss", "param.group", "day", "seeds", "params", "param_id"]
    assert job.best().column_names == [
        "ranked_by",
        "group",
        "loss",
        "model:loss",
        "both.low",
        "both.high",
        *PARAMETERS["best"],
        "param_id",
    ]
    for file_format in ("parquet", "csv"):
        exported = {one.name: one.path for one in job.export(tmp_path, file_format)}
        assert {name: columns_of(exported[name]) for name in names} == with_parameters


def columns_of(path: str) -> list[str]:
    if path.endswith(".parquet"):
        return list(pq.read_schema(path).names)
    with Path(path).open(newline="") as file:
        return next(csv.reader(file))


NO_PARAMETERS: Any = SimpleNamespace(fields=lambda _: {}, ids=lambda: pa.array([], pa.string()))


def test_rows_are_in_the_order_of_the_study_when_a_table_is_read_at_once() -> None:
    n, rng = 5_000, np.random.default_rng(1)
    rows = pa.table(
        {
            "group": pa.array(np.repeat(np.arange(n // 10), 10), pa.int32()),
            "replicate": pa.array(np.tile(np.repeat([0, 1], 5), n // 10), pa.int32()),
            "day": pa.array(np.tile(np.arange(5), n // 5), pa.int64()),
        }
    )
    pieces = [rows.slice(start, 50) for start in range(0, n, 50)]
    stored = ds.dataset([pieces[i] for i in rng.permutation(len(pieces))])
    for where, columns in ((None, None), (pc.field("day") > 2, None), (None, ["day", "group"])):
        scan = Scan(
            stored, NO_PARAMETERS, Selection(where=where, columns=columns), ("group", "replicate"), sorts_batches=False
        )
        expected = rows.filter(where) if where is not None else rows
        assert scan.table().equals(expected.select(columns or expected.column_names))
        as_stored = pa.Table.from_batches(scan.batches(), scan.schema)
        assert as_stored.num_rows == len(expected)
        assert not as_stored.equals(scan.table())


def test_each_row_has_the_parameters_of_its_set(job: Job) -> None:
    rows = job.outputs("daily", params=True).to_arrow().to_pylist()
    assert len(rows) == 5 * 2 * 3
    assert all(row["y"] == row["x"] * row["day"] and row["param.group"] == f"g{row['x'] % 2}" for row in rows)
    assert all(row["loss"] == row["x"] / 2 and row["x"] == row["group"] for row in rows)


CONDITIONS: dict[str, tuple[Any, Callable[[dict[str, Any]], bool]]] = {
    "stored": (pc.field("y") > 4, lambda row: row["y"] > 4),
    "parameter": (pc.field("loss") > 1.2, lambda row: row["loss"] > 1.2),
    "both": ((pc.field("y") > 4) & (pc.field("x") < 5), lambda row: row["y"] > 4 and row["x"] < 5),
    "clash": ({"day": 2, "param.day": 7, "param.group": "g1"}, lambda row: row["day"] == 2 and row["x"] % 2 == 1),
    "values": ({"x": [1, 3], "day": range(2)}, lambda row: row["x"] in (1, 3) and row["day"] < 2),
    "text of parameters": ("loss == 1.5 or param.group == 'g1'", lambda row: row["loss"] == 1.5 or row["x"] % 2 == 1),
}


def test_a_condition_may_name_stored_columns_and_parameters(job: Job, subtests: pytest.Subtests) -> None:
    for name in CONDITIONS:
        with subtests.test(name=name):
            where, holds = CONDITIONS[name]
            every = job.outputs("daily", params=True).to_arrow().to_pylist()
            found = job.outputs("daily", params=True, where=where)
            expected = [row for row in every if holds(row)]
            assert found.to_arrow().to_pylist() == expected
            assert len(found) == len(expected)
            bare = job.outputs("daily", where=where)  # parameters can be named without `params`
            assert bare.to_arrow().to_pylist() == [{key: row[key] for key in bare.column_names} for row in expected]


def test_columns_are_chosen_by_name_and_in_this_order(job: Job) -> None:
    found = job.outputs("daily", where={"x": 3, "day": 2, "replicate": 0}, columns=["y", "loss", "param.group"])
    assert found.to_arrow().to_pylist() == [{"y": 6, "loss": 1.5, "param.group": "g1"}]
    assert job.losses(columns=["loss"], where={"name": "high"}).to_arrow()["loss"].to_pylist() == [0, -1, -2, -3, -5]
    assert job.failures(columns=["replicate", "target"]).to_arrow()["replicate"].to_pylist() == [0, 1, None]


def test_a_condition_works_on_every_table(job: Job) -> None:
    assert [len(table) for table in tables(job, where={"x": 4}).values()] == [0, 0, 3]
    assert job.best(2, where={"param.group": "g1"}, weights=EQUAL).to_arrow()["group"].to_pylist() == [1, 3]
    assert len(job.params(where=pc.field("x") > 2)) == 3


def test_best_may_rank_by_one_target(job: Job) -> None:
    for target in ("both", "model:both"):
        best = job.best(2, target=target, weights=EQUAL_OF_BOTH).to_arrow()
        assert best.column_names[:5] == ["group", "loss", "both.low", "both.high", "x"]
        assert best["group"].to_pylist() == [5, 3]
    assert job.best(10**30, target="both", weights=EQUAL_OF_BOTH).head(10**30).num_rows == len(
        job.best(100, target="both", weights=EQUAL_OF_BOTH)
    )
    assert job.best(1, target="both", weights={"both.low": 2.0}).to_arrow()["loss"].to_pylist() == [2.0]
    with pytest.raises(UsageError, match="no target with a loss has the name 'bot'") as raised:
        job.best(target="bot").to_arrow()
    assert raised.value.hint == "the targets are 'model:both', 'model:loss'"


def test_the_beginning_of_a_param_id_finds_its_set(job: Job) -> None:
    whole = job.params().to_arrow()["param_id"][3].as_py()
    assert job.losses(where={"param_id": whole[:12]}).to_arrow()["group"].to_pylist() == [3, 3, 3]
    assert job.best(weights=EQUAL, where={"param_id": [whole[:12]]}).to_arrow()["group"].to_pylist() == [3]
    assert job.best(weights=EQUAL, where=f"param_id == '{whole[:12]}'").to_arrow()["group"].to_pylist() == [3]
    assert job.best(where=f"param_id in ['{whole[:12]}']").to_arrow()["group"].to_pylist() == [3, 3, 3]
    with pytest.raises(UsageError, match="no parameter set has a param_id that begins with 'xyz'"):
        job.losses(where={"param_id": "xyz"}).to_arrow()


WRONG: dict[str, tuple[Callable[[Job], Table], str]] = {
    "misspelled": (lambda job: job.losses(where={"targe": 1}), "no column 'targe'.*did you mean 'target'"),
    "unknown": (
        lambda job: job.losses(where=pc.field("q") > 1),
        r"it has no column 'q'.*its columns are param_id \(string\), group \(int32\)",
    ),
    "types": (
        lambda job: job.losses(where=pc.field("x") > "a"),
        "the table: it compares or combines int64 with string",
    ),
    "a number": (lambda job: job.losses(where=3), "the condition is of type int.*write where="),
    "a frame": (lambda job: job.losses(where=pl.DataFrame({"x": [1]})), "the condition is an object of polars"),
    "column": (lambda job: job.losses(columns=["z"]), "no column 'z'"),
}


def test_a_wrong_selection_says_what_the_table_has(job: Job, subtests: pytest.Subtests) -> None:
    for name in WRONG:
        with subtests.test(name=name):
            make, message = WRONG[name]
            with pytest.raises(UsageError, match=f"(?s){message}"):
                make(job).to_arrow()


def test_each_library_gets_the_same_rows(job: Job) -> None:
    table = job.losses(params=True)
    rows = table.to_arrow().to_pylist()
    assert table.to_pandas().to_dict("records") == rows
    assert table.to_polars().to_dicts() == rows
    assert pl.DataFrame(table).to_dicts() == pa.table(table).to_pylist() == rows
    assert pa.Table.from_batches(table.to_batches()).to_pylist() == rows
    relation = table.to_duckdb()
    for _ in range(2):  # a stream is read once, but a relation by each query
        assert relation.filter("x > 2").aggregate("count(*), max(loss)").fetchall() == [(6, 5.0)]
    assert duckdb.sql("select count(*) from relation").fetchall() == [(15,)]
    assert table.head(2).to_pylist() == rows[:2]
    assert table.head(0).to_pylist() == []


def test_xarray_has_a_dimension_for_each_column_that_tells_rows_apart(job: Job) -> None:
    daily = job.outputs("daily", params=True).to_xarray("day")
    assert dict(daily.sizes) == {"group": 5, "replicate": 2, "day": 3}
    assert daily["y"].sel(group=3, replicate=1).to_numpy().tolist() == [0, 3, 6]
    assert daily["x"].dims == ("group",)
    assert daily["param.group"].sel(group=3) == "g1"
    losses = job.losses(params=True).to_xarray()
    assert losses["loss"].sel(group=2, target="model:both", name="high") == -2
    assert job.best(3, weights=EQUAL).to_xarray()["x"].dims == ("group",)
    assert set(job.best(3).to_xarray("ranked_by")["loss"].dims) == {"group", "ranked_by"}
    assert dict(job.failures().to_xarray().sizes) == {"row": 3}
    with pytest.raises(UsageError, match="several rows have the same group and replicate"):
        job.outputs("daily").to_xarray()
    with pytest.raises(UsageError, match="no column 'hour'"):
        job.outputs("daily").to_xarray("hour")


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb", "xarray"])
def test_a_missing_library_is_an_error_that_names_the_command(
    job: Job, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=f"{library} is not installed") as raised:
        getattr(job.best(), f"to_{library}")()
    assert raised.value.hint == f"pip install {library}"


def test_a_table_shows_its_rows_columns_and_first_rows(job: Job) -> None:
    table = job.losses(params=True)
    text = repr(table).splitlines()
    assert text[0] == "losses of job 'six': 15 rows, 10 columns"
    assert text[1].split() == table.column_names
    assert text[2].split()[-1] == table.to_arrow()["param_id"][0].as_py()[:12]
    assert text[-1] == "and 10 more"
    html = table._repr_html_()
    assert "losses of job &#x27;six&#x27;: 15 rows, 10 columns" in html
    assert html.count("<tr>") == 6
    assert "none" not in repr(job.failures(where={"reason": "oom"}))


def test_a_parameter_is_renamed_until_its_name_is_free() -> None:
    assert free_names(["group", "param.group", "x"], {"group"}) == {
        "group": "param.param.group",
        "param.group": "param.group",
        "x": "x",
    }
