"""The posterior of each parameter and its prior, compared with numbers from the files of a calibration's first round.

All sets of the first round come from the prior, so the weight of each is proportional to its likelihood exp(-loss).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import mops
from job_folders import folder_of
from mops.jobs.job import Job
from mops.report.calibration import prior_of
from mops.report.render import render
from mops.settings import Settings
from mops.study.sampling.space import Choice

from .test_fitting import section_of
from .test_report import csv_of

MODEL = """
def run(params, seed):
    return {"x": params["a"]}

def fit(params, replicates):
    return 30 * (params["a"] - 0.3) ** 2 + (params["loss"] > 1) + params["n"] / 8 + 2.0 * (params["kind"] == "low")
"""
SPACE: dict[str, Any] = {
    "a": {"min": 0.0, "max": 1.0},
    "loss": {"min": 0.01, "max": 100.0, "scale": "log"},  # the name of a column of trials
    "n": {"min": 1, "max": 30, "type": "int"},
    "kind": {"values": ["low", "high"]},
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("marginals")
    (folder / "mops.toml").touch()
    (folder / "model.py").write_text(MODEL)
    study = {"model": "model:run", "targets": ["model:fit"]}
    where = {"project": folder, "storage": folder / "storage", "local": True, "settings": Settings(slots=2)}
    mops.calibrate(SPACE, study, name="fit", n=128, rounds=1, ess=10, **where)
    return mops.open_job("fit-r1", folder / "storage", local=True)


@pytest.fixture(scope="module")
def page(job: Job) -> str:
    return render(job)


@pytest.fixture(scope="module")
def trials(job: Job) -> pd.DataFrame:
    """The parameters of each set, and its weight, from the files of the job."""
    losses = pd.concat(pd.read_parquet(part) for part in parts(job, "losses"))[["param_id", "loss"]]
    losses = losses.rename(columns={"loss": "distance"})
    found = job.params().to_pandas().merge(losses, on="param_id")
    likelihood = np.exp(-found["distance"])
    return found.assign(weight=likelihood / likelihood.sum())


def parts(job: Job, table: str) -> list[Path]:
    return sorted((folder_of(job.files.url, job.name) / table).glob("*.parquet"))


PRIORS: dict[str, Callable[[float, float], float]] = {
    "a": lambda low, high: high - low,
    "loss": lambda low, high: np.log(high / low) / np.log(100 / 0.01),
    "n": lambda low, high: (min(high, 30.5) - low) / 30,
}


def test_a_range_has_the_weights_and_the_prior_of_each_bin(
    page: str, trials: pd.DataFrame, subtests: pytest.Subtests
) -> None:
    for name in PRIORS:
        with subtests.test(name=name):
            rows = pd.DataFrame(csv_of(page, f"fit-r1-posterior-of-{name}.csv"))
            columns = ("low", "high", "weight", "prior")
            low, high, weight, prior = (rows[column].astype(float).to_numpy() for column in columns)
            (column,) = [column for column in trials.columns if column in (name, f"param.{name}")]
            expected, _ = np.histogram(trials[column], np.append(low, high[-1]), weights=trials["weight"])
            assert weight == pytest.approx(expected)
            assert weight.sum() == pytest.approx(1)
            assert prior == pytest.approx([PRIORS[name](*ends) for ends in zip(low, high, strict=True)])
            assert prior.sum() == pytest.approx(1), "the bins cover the whole range"


def test_the_bins_of_a_parameter_are_equal_in_the_prior(page: str) -> None:
    """So the prior is a level line, and the posterior differs from it where the data taught."""
    for name in ("a", "loss"):
        shares = [float(row["prior"]) for row in csv_of(page, f"fit-r1-posterior-of-{name}.csv")]
        assert shares == pytest.approx([1 / len(shares)] * len(shares))


def test_a_list_of_values_has_the_same_prior_for_each(page: str, trials: pd.DataFrame) -> None:
    rows = {row["label"]: row for row in csv_of(page, "fit-r1-posterior-of-kind.csv")}
    expected = trials.groupby("kind")["weight"].sum()
    for value in ("low", "high"):
        assert float(rows[value]["weight"]) == pytest.approx(expected[value])
        assert float(rows[value]["prior"]) == 0.5
    assert "The prior is the same for each of its 2 values." in page


def test_the_caption_says_which_part_of_the_prior_the_data_left(page: str, trials: pd.DataFrame) -> None:
    found = re.search(
        r"The prior is uniform from 0 to 1\. The 95 % credible interval \(equal-tailed\) is from (\S+) to (\S+), a "
        r"range with (\S+) % of the prior\.",
        page,
    )
    assert found is not None
    assert re.search(r"median \d", section_of(page))
    assert "Weighted quantiles of the posterior" in page
    by_a = trials.sort_values("a")
    below = by_a["weight"].cumsum()
    low, high = (float(by_a["a"][below >= q].iloc[0]) for q in (0.025, 0.975))
    assert [float(text) for text in found.groups()] == pytest.approx([low, high, 100 * (high - low)], rel=0.01)
    shares = len(csv_of(page, "fit-r1-posterior-of-a.csv"))
    assert shares == min(max(np.ceil(8 / (high - low)), 20), 60), "about 8 bins in the interval"


def test_the_likeliest_of_many_texts_has_a_bin() -> None:
    """Texts were chosen by their names, so the likeliest one could be among the other values."""
    texts = [f"kind {i:02}" for i in range(30)]
    fitted = pa.table({"kind": [*texts[:20], "kind 20", "kind 29"]})
    weights = np.array([0.01] * 20 + [0.1, 0.7])
    prior = prior_of("kind", Choice(tuple(texts)), fitted, weights, 20)
    assert prior.bins.values == (*texts[:17], "kind 20", "kind 29", "other values")
    assert prior.masses.tolist() == pytest.approx([1 / 30] * 19 + [11 / 30])


def test_a_list_of_numbers_has_the_bins_of_its_values() -> None:
    levels = Choice(tuple(range(1, 31)))
    prior = prior_of("level", levels, pa.table({"level": [30, 30]}), np.array([0.5, 0.5]), 10)
    assert prior.bins.index(pa.array([1, 30])).tolist() == [0, 9]
    assert prior.masses.tolist() == pytest.approx([0.1] * 10)
