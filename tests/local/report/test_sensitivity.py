"""The section about sensitivity: Sobol indices of a Saltelli design, against SALib on the Parquet files of the job."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from SALib.analyze import sobol as salib
from SALib.sample import sobol as sampling

from job_folders import folder_of
from job_reads import data_of
from mops.errors import UsageError
from mops.jobs import figure_data
from mops.jobs.figure_data import measured_of
from mops.jobs.job import Job
from mops.report.render import render

from .report_lab import design, submit
from .test_report import csv_of

MODEL = """
import math, random

def run(params, seed):
    x1, x2, x3 = params["x1"], params["x2"], params["x3"]
    if x1 > 2.8:
        raise ValueError("too large")
    y = math.sin(x1) + 7 * math.sin(x2) ** 2 + 0.1 * x3**4 * math.sin(x1)
    days = [0, 1, 2]
    noise = random.Random(seed).random() / 10
    return {"daily": {"day": days, "y": [0.0, 1.0, y + noise]}, "summary": {"same": [1.0]}}

def far(params, replicates):
    return abs(sum(replicate["daily"]["y"][-1].as_py() for replicate in replicates) / len(replicates))
"""
NAMES = ["x1", "x2", "x3"]
PROBLEM = {"num_vars": 3, "names": NAMES, "bounds": [[-math.pi, math.pi]] * 3}
N = 64


@pytest.fixture(scope="module")
def ishigami(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with a Saltelli design, in which some sets fail."""
    folder = tmp_path_factory.mktemp("sobol")
    (folder / "model.py").write_text(MODEL)
    points = sampling.sample(PROBLEM, N, calc_second_order=False, seed=1)
    sets: list[dict[str, Any]] = [dict(zip(NAMES, point, strict=True)) | {"fixed": 2} for point in points.tolist()]
    return submit(folder, sets, "ishigami", fields={"targets": ["model:far"]})


@pytest.fixture(scope="module")
def html(ishigami: Job) -> str:
    return render(ishigami)


def blocks_of(values: pd.Series) -> np.ndarray:
    """Return the values of the blocks without a missing set, one after the other."""
    blocks = values.reindex(range(N * 5)).to_numpy().reshape(N, 5)
    return blocks[~np.isnan(blocks).any(axis=1)].ravel()


def raw(job: Job, folder: str) -> pd.DataFrame:
    root = folder_of(job.files.url, job.name) / folder
    return pd.concat(map(pd.read_parquet, sorted(root.glob("*.parquet"))))


def check(rows: list[dict[str, str]], y: np.ndarray) -> None:
    theirs = salib.analyze(PROBLEM, y, calc_second_order=False, seed=1)
    indices = {(row["order"], row["parameter"]): row for row in rows}
    for order, key in (("first", "S1"), ("total", "ST")):
        for name, index in zip(NAMES, theirs[key], strict=True):
            row = indices[order, name]
            assert float(row["index"]) == pytest.approx(index)
            assert float(row["low"]) < float(row["index"]) < float(row["high"])
            assert int(row["blocks"]) == len(y) // 5
    assert len(rows) == 6


def test_the_indices_of_outputs_and_losses_are_those_of_salib(ishigami: Job, html: str) -> None:
    daily = raw(ishigami, "outputs/daily")
    last = daily[daily["day"] == 2].groupby("group")["y"].mean()
    assert N * 5 - 40 < len(last) < N * 5
    y = blocks_of(last)
    check(csv_of(html, "ishigami-sobol-indices-of-last-daily-y.csv"), y)
    assert f"{N - len(y) // 5} of the 64 blocks are left out, because a set of them has no value." in html
    assert "The parameter sets are a Saltelli design: 64 blocks of 5 sets." in html
    assert "Sobol indices of summary.same" not in html, "a result that does not vary"
    losses = raw(ishigami, "losses").set_index("group")["loss"]
    check(csv_of(html, "ishigami-sobol-indices-of-far.csv"), blocks_of(losses))


def test_a_chart_has_the_indices_of_the_report(ishigami: Job, html: str) -> None:
    chart = ishigami.plot.sobol()
    views = chart.to_dict()["concat"]
    assert [view["title"]["text"] for view in views] == ["Sobol indices of far", "Sobol indices of last daily.y"]
    for view, file in zip(views, ("far", "last-daily-y"), strict=True):
        rows = csv_of(html, f"ishigami-sobol-indices-of-{file}.csv")
        drawn = chart.to_dict()["datasets"][view["layer"][0]["data"]["name"]]
        found = {(row["order"], row["parameter"]): [row["index"], row["low"], row["high"]] for row in drawn}
        for row in rows:
            expected = [float(row[name]) for name in ("index", "low", "high")]
            assert found[row["order"], row["parameter"]] == pytest.approx(expected)
        assert "blocks are left out" in " ".join(view["title"]["subtitle"])


def test_a_plot_of_another_design_says_which_one_has_sobol_indices(tmp_path: Path) -> None:
    job = submit(tmp_path, design(16))
    with pytest.raises(UsageError, match="the parameter sets of job 'waves' are not a Saltelli design") as refused:
        job.plot.sobol()
    assert refused.value.hint == "draw the sets with SALib.sample.sobol.sample, and keep their order"
    page = render(job)
    assert "a Saltelli design whose parameters are continuous, as sobol.sample of SALib makes it" in page
    assert "Sobol indices of" not in page


def test_a_large_output_is_read_in_pieces(ishigami: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured_of(data_of(ishigami))
    monkeypatch.setattr(figure_data, "MOST_VALUES", 500)
    pieces = measured_of(data_of(ishigami))
    assert pieces.design == whole.design
    assert pieces.table.sort_by("group").equals(whole.table.sort_by("group"))


def test_a_rare_result_has_a_figure(tmp_path: Path) -> None:
    """The report once failed, because the ends of the intervals were not numbers."""
    points = sampling.sample(PROBLEM, 16, calc_second_order=False, seed=1).tolist()
    sets = [dict(zip(NAMES, point, strict=True)) for point in points]
    result = f"{{'last': {{'outbreak': [int(params['x1'] == {points[0][0]!r})]}}}}"
    (tmp_path / "model.py").write_text(f"def run(params, seed):\n    return {result}\n")
    job = submit(tmp_path, sets, fields={"targets": []})
    page = render(job)
    rows = csv_of(page, "waves-sobol-indices-of-last-outbreak.csv")
    assert all(float(row["index"]) >= 0 for row in rows if row["order"] == "total")


def test_too_few_blocks_have_no_indices(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    points = sampling.sample(PROBLEM, 4, calc_second_order=False, seed=1).tolist()
    sets = [dict(zip(NAMES, point, strict=True)) for point in points]
    job = submit(tmp_path, sets, fields={"targets": ["model:far"]})
    page = render(job)
    with pytest.raises(UsageError, match="job 'waves' has no result with Sobol indices") as refused:
        job.plot.sobol()
    assert refused.value.hint == "a result must vary, and have a value for each set of 8 blocks of 5 parameter sets"
    assert "4 blocks of 5 sets. Sobol indices need at least 8 blocks whose sets all have a value." in page
    assert "Sobol indices of" not in page
