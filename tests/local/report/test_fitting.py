"""The report of a calibration's round shows the calibration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import mops
from mops.calibration.calibration import Calibration
from mops.calibration.stored import calibration_with
from mops.errors import JobFailed
from mops.figures.calibration import trials
from mops.figures.course_charts import trials as trials_chart
from mops.report.render import render
from mops.settings import Settings

from .report_lab import design, submit
from .test_report import csv_of

MODEL = """
def run(params, seed):
    return {"x": params["a"]}

def loss(params, replicates):
    return 50 * (params["a"] - 0.3) ** 2 + 20 * (params["b"] - 0.6) ** 2
"""
FAILING = """
def run(params, seed):
    raise ValueError

def loss(params, replicates):
    return 0.0
"""
SPACE = {"a": {"min": 0.0, "max": 1.0}, "b": {"min": 0.0, "max": 1.0}}


def section_of(page: str) -> str:
    """Return the section about the calibration."""
    (found,) = re.findall(r'<section id="calibration".*?</section>', page, re.DOTALL)
    return str(found)


def test_a_report_of_a_round_shows_trials_and_weights(tmp_path: Path) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    fit = mops.calibrate(
        SPACE,
        {"model": "model:run", "targets": ["model:loss"]},
        name="fit",
        method="abc",
        n=32,
        rounds=2,
        ess=1_000,
        project=tmp_path,
        storage=tmp_path / "storage",
        settings=Settings(slots=2),
        local=True,
    )
    job = mops.open_job("fit-r2", tmp_path / "storage", local=True)
    found = calibration_with(job)
    assert found is not None
    assert found.weights == fit.weights
    page = render(job)
    losses = fit.trials()["loss"].to_pylist()
    trials = csv_of(page, "fit-r2-trials.csv")
    assert [float(row["loss"]) for row in trials] == losses
    assert float(trials[-1]["best"]) == min(losses)
    weights = np.array([weight or 0.0 for weight in fit.weights])
    of_a = csv_of(page, "fit-r2-rough-posterior-of-a.csv")
    assert sum(float(row["weight"]) for row in of_a) == pytest.approx(weights.sum())
    a = fit.trials()["a"].to_numpy()
    edges = [float(row["low"]) for row in of_a] + [float(of_a[-1]["high"])]
    expected, _ = np.histogram(a, edges, weights=weights)
    assert [float(row["weight"]) for row in of_a] == pytest.approx(expected.tolist())
    assert [int(row["trials"]) for row in of_a] == np.histogram(a, edges)[0].tolist()
    ess = float(1 / (weights**2).sum())
    advice = "less than the 1000 wanted, so its intervals are rough: run more rounds"
    assert f"The posterior of calibration fit has an effective sample size of {ess:.3g}, {advice}." in page
    assert ("so the correlations describe this choice of sets" in page) == ("Rank correlations" in page)
    assert "This section covers all rounds of the calibration, and all other sections only this round." in page
    assert f"{ess:.3g} of 1000 wanted, so the posterior is rough." in page
    section = section_of(page)
    for text in ("Rough posterior of a", "Rough weighted quantiles", "rough 95 % credible interval", "rough median"):
        assert text in section


def test_a_calibration_in_which_all_sets_failed_is_not_an_optimiser(tmp_path: Path) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(FAILING)
    study = {"model": "model:run", "targets": ["model:loss"]}
    where = {"project": tmp_path, "storage": tmp_path / "storage", "local": True, "settings": Settings(slots=2)}
    with pytest.raises(JobFailed, match="no parameter set of round 1 has a loss"):
        mops.calibrate(SPACE, study, name="fit", method="importance", n=8, rounds=1, **where)
    page = render(mops.open_job("fit-r1", tmp_path / "storage", local=True))
    assert "0 scored sets, 8 failed sets. No set has a loss, so no set has a weight and there is no posterior." in page
    assert "searches for the least loss" not in page


def test_a_report_weighs_as_the_last_call(tmp_path: Path) -> None:
    """The report had the temperature 1 and the sum of all losses, so another posterior than the call had printed."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL + "\n\ndef other(params, replicates):\n    return 9 * params['a']\n")

    def calibrated(**options: Any) -> Calibration:
        study = {"model": "model:run", "targets": ["model:loss", "model:other"]}
        where = {"project": tmp_path, "storage": tmp_path / "storage", "local": True, "settings": Settings(slots=2)}
        return mops.calibrate(SPACE, study, name="fit", method="importance", n=16, **options, **where)

    weights = {"model:loss": 0.01, "other": 1.0}
    other = calibrated(rounds=2, ess=1_000)
    mine = calibrated(rounds=2, ess=900, weights=weights, temperature=4.5)  # ends no round
    assert other.weights != mine.weights
    job = mops.open_job("fit-r1", tmp_path / "storage", local=True)
    found = calibration_with(job)
    assert found is not None
    assert (found.weights, found.ess, found.least_ess) == (mine.weights, mine.ess, 900)
    page = render(job)
    assert [float(row["weight"]) for row in csv_of(page, "fit-r1-trials.csv")] == mine.weights
    assert page.count("The loss is 0.01 x model:loss + 1 x other.") >= 5
    assert page.count("The temperature is 4.5.") == page.count("0.01 x model:loss + 1 x other. T")


def test_the_axis_of_trials_shows_the_later_rounds(tmp_path: Path) -> None:
    losses = [1100.0, 1060.0, 1020.0, 1011.0, 1010.5, 1010.2, 1010.1, 1010.0]
    rounds = pa.array([1] * 4 + [2] * 4, pa.int32())
    table = pa.table({"round": rounds, "failure": pa.nulls(8, pa.string()), "loss": losses, "weight": [0.125] * 8})
    chart = trials_chart(trials(table))
    end = float(np.quantile(losses[4:], 0.98))
    for layer in chart.to_dict()["layer"][1:]:
        assert layer["encoding"]["y"]["scale"]["domain"] == pytest.approx([1010.0, end])
        assert layer["mark"]["clip"]
    assert " ".join(chart.title.subtitle).endswith("to show the later rounds: 5 trials above.")
    flat = table.set_column(2, "loss", pa.array([12.0, 9.0, 11.0, 10.0] * 2))
    assert "to show the later rounds" not in " ".join(trials_chart(trials(flat)).title.subtitle)


def test_a_job_with_such_a_name_need_not_be_a_round(tmp_path: Path) -> None:
    assert calibration_with(submit(tmp_path, design(2)[:1], name="wave-r2")) is None
