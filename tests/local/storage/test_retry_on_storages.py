"""A retry on the storage that is least like a folder: failed groups run again; the rows of both jobs read as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mops
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.sources import verify_job

MODEL = """
from pathlib import Path


def simulate(params, seed):
    if params["x"] in (2, 5) and Path(params["ward"]).exists():
        raise ValueError("ill")
    return {"daily": {"y": [params["x"], seed % 10]}}


def score(params, replicates):
    return params["x"]
"""


@pytest.mark.parametrize("storage", [pytest.param("azure", marks=pytest.mark.azurite)], indirect=True)
def test_a_retry_gives_the_rows_of_a_study_that_never_failed(tmp_path: Path, storage: Any) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    ward = tmp_path.with_name(tmp_path.name + "-ward")  # outside the project, so not in its bundle
    sets = [{"x": x, "ward": str(ward)} for x in range(8)]
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"model": "model:simulate", "targets": ["model:score"], "parameter_sets": sets}))
    settings = Settings(slots=1, batch_size=3)
    ward.touch()
    ill = mops.submit(study, storage=storage.url, settings=settings)
    ward.unlink()
    mended = mops.retry(mops.open_job(ill.name, storage.url), "error", settings=settings)
    whole = mops.submit(study, storage=storage.url, settings=settings)
    assert (ill.status().state, mended.status().state) == ("partial", "succeeded")
    assert rows(mended).equals(rows(whole))
    assert (
        mended.losses(params=True)
        .to_arrow()
        .sort_by("group")
        .equals(whole.losses(params=True).to_arrow().sort_by("group"))
    )
    assert mended.status().counts == whole.status().counts
    assert verify_job(Files.open(storage.url), mended.name) == []


def rows(job: mops.Job) -> pl.DataFrame:
    return pl.from_arrow(job.outputs("daily").to_arrow()).sort("group", maintain_order=True)
