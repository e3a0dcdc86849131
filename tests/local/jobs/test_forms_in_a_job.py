"""Every form of result is stored by a job, and every form of replicates reaches a target, in real child processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mops
from mops.errors import ModelError
from mops.jobs.following import read_log
from mops.jobs.job import Job
from mops.jobs.location import locate
from mops.jobs.status import JobState, storage_of
from mops.settings import Settings

MODEL = """
from __future__ import annotations
from dataclasses import dataclass
import duckdb, geopandas, numpy as np, pandas as pd, polars as pl, pyarrow as pa, pydantic, xarray as xr
from shapely.geometry import Point

@dataclass
class Agent:
    number: int
    at: tuple[float, float]

class Event(pydantic.BaseModel):
    day: int
    name: str

def grid(params, seed):
    return xr.Dataset({"n": (("day", "place"), [[1, 2], [3, params["x"]]])}, coords={"place": ["a", "b"]})

def events(params, seed):
    return [Event(day=day, name="e") for day in range(params["x"] - 1)]

def every(params, seed):
    return {
        "grid": grid(params, seed),
        "array": xr.DataArray(np.arange(3.0), dims="t", name="v"),
        "lazy": pl.LazyFrame({"day": [0, 1]}).select(pl.col("day") * params["x"]),
        "relation": duckdb.sql("select 1 as one"),
        "zones": geopandas.GeoDataFrame({"zone": ["a"]}, geometry=[Point(1, 2)], crs="EPSG:4326"),
        "summary": Agent(params["x"], (0.5, 1.5)),
        "agents": [Agent(n, (0.0, 1.0)) for n in range(params["x"])],
        "events": events(params, seed),
    }
"""
TARGETS = """
from __future__ import annotations
import pandas as pd, polars as pl, pyarrow as pa

def kind(table): return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"

def in_pandas(params, replicates: list[dict[str, pd.DataFrame]]):
    return {kind(replicates[0]["grid"]): sum(one["grid"]["n"].sum() for one in replicates)}

def in_polars(params, replicates: list[dict[str, pl.DataFrame]]):
    return {kind(replicates[0]["grid"]): sum(one["grid"]["n"].sum() for one in replicates)}

def in_arrow(params, replicates: list[dict[str, pa.Table]]):
    return {kind(replicates[0]["grid"]): sum(sum(one["grid"]["n"].to_pylist()) for one in replicates)}

def unresolved(replicates: list[np.ndarray]):
    return {kind(next(iter(replicates[0].values()))): 0}

def refused(replicates: list[pd.Series]):
    return 0
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(model: str, *targets: str) -> Job:
    study: dict[str, Any] = {
        "model": f"model:{model}",
        "targets": [f"targets:{target}" for target in targets],
        "parameter_sets": [{"x": 2}, {"x": 3}],
        "n_replicates": 2,
    }
    return mops.submit(study, storage="storage", name="forms", settings=Settings(slots=1), local=True)


def types(job: Job, output: str) -> dict[str, str]:
    identity = ("param_id", "group", "replicate", "seed")
    stored = [field for field in job.outputs(output).schema if field.name not in identity]
    return {field.name: str(field.type).replace("element", "item") for field in stored}


def log_of(name: str) -> str:
    return "".join(read_log(JobState(storage_of(name, locate("storage", local=True)), name)))


def losses(job: Job) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in sorted(job.losses().to_arrow().to_pylist(), key=lambda row: row["param_id"]):
        found.setdefault(f"{row['target'].removeprefix('targets:')}: {row['name']}", []).append(row["loss"])
    return {name: sorted(values) for name, values in found.items()}


def test_each_form_is_one_of_several_outputs() -> None:
    job = submit("every", "in_pandas", "in_polars", "in_arrow", "unresolved")
    assert job.status().state == "succeeded"
    assert {output: types(job, output) for output in job.output_names()} == {
        "grid": {"day": "int64", "place": "string", "n": "int64"},
        "array": {"t": "int64", "v": "double"},
        "lazy": {"day": "int64"},
        "relation": {"one": "int32"},
        "zones": {"zone": "string", "geometry": "binary"},
        "summary": {"number": "int64", "at": "list<item: double>"},
        "agents": {"number": "int64", "at": "list<item: double>"},
        "events": {"day": "int64", "name": "string"},
    }
    rows = {output: len(job.outputs(output)) for output in job.output_names()}
    assert rows == {
        "grid": 16,
        "array": 12,
        "lazy": 8,
        "relation": 4,
        "zones": 4,
        "summary": 4,
        "agents": 10,
        "events": 6,
    }
    assert losses(job) == {
        "in_pandas: pandas.DataFrame": [16, 18],
        "in_polars: polars.DataFrame": [16, 18],
        "in_arrow: pyarrow.Table": [16, 18],
        "unresolved: pyarrow.Table": [0, 0],
    }
    assert "warning: target 'targets:unresolved' gets 'replicates' as Arrow tables" in log_of("forms")


def test_an_unsupported_annotation_is_refused_before_anything_runs(project: Path) -> None:
    with pytest.raises(ModelError) as refused:
        submit("grid", "refused")
    assert str(refused.value).startswith(
        "the target cannot be loaded: target 'targets:refused' cannot get 'replicates' as 'list[pd.Series]'; "
        "write list[dict[str, FRAME]]"
    )
    assert not (project / "storage").exists()
