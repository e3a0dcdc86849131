"""The outputs of a calibration before and after the data, against pandas on the Parquet files of its rounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mops
from job_folders import folder_of
from mops.calibration.calibration import Calibration
from mops.errors import JobFailed
from mops.figures.columns import cell
from mops.figures.fan import BAND_COLUMNS, QUANTILES
from mops.report.calibration import fitting
from mops.report.content import Block, Gallery
from mops.report.facts import Facts
from mops.report.predictive import predictive, trial_rows
from mops.report.render import render
from mops.settings import Settings

from .report_lab import MODEL as OTHER_MODEL
from .report_lab import design, submit
from .test_report import csv_of, damaged

MODEL = """
import random

def run(params, seed):
    rng = random.Random(seed)
    days = list(range(8))
    if params["a"] > 0.95:
        raise ValueError("too large")
    return {"daily": {"day": days, "cases": [10 * params["a"] * day + rng.random() for day in days]}}

def fit(params, replicates):
    last = [replicate["daily"]["cases"][-1].as_py() for replicate in replicates]
    return (sum(last) / len(last) - 28) ** 2 / 30
"""
DATA = {2: 8.0, 4: 40.0, 7: 28.0}
SPACE = {"a": {"min": 0.0, "max": 1.0}}


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrated(tmp_path_factory.mktemp("predictive"))


def calibrated(folder: Path) -> Calibration:
    project(folder, MODEL)
    return calibrate(folder, rounds=4)


def project(folder: Path, model: str) -> None:
    (folder / "mops.toml").write_text('[[observed]]\noutput = "daily"\nx = "day"\ny = "cases"\nfile = "cases.csv"\n')
    (folder / "cases.csv").write_text("day,cases\n" + "".join(f"{day},{n}\n" for day, n in DATA.items()))
    (folder / "model.py").write_text(f"from pathlib import Path\nFOLDER = Path({str(folder)!r})\n{model}")


def calibrate(folder: Path, rounds: int) -> Calibration:
    study = {"model": "model:run", "targets": ["model:fit"], "n_replicates": 2}
    where = {"project": folder, "storage": folder / "storage", "local": True, "settings": Settings(slots=2, retries=0)}
    return mops.calibrate(SPACE, study, name="fit", n=32, rounds=rounds, ess=20, **where)


@pytest.fixture
def facts(fit: Calibration) -> Facts:
    return Facts.of(mops.open_job("fit-r1", fit.storage, local=True))


def outputs_of(fit: Calibration) -> pd.DataFrame:
    """Return the rows of all rounds with the weight of their set, from the files."""
    frames = []
    for each in fit.rounds:
        parts = (folder_of(fit.storage, each.job) / "outputs" / "daily").glob("*.parquet")
        frames.append(pd.concat(map(pd.read_parquet, parts)).assign(round=each.k))
    trials = fit.trials().to_pandas()[["round", "param_id", "weight"]]
    return pd.concat(frames).merge(trials, on=["round", "param_id"])


def quantiles(rows: pd.DataFrame) -> Iterator[tuple[int, int, list[float]]]:
    """Yield each day with its number of values and its weighted quantiles."""
    for day, here in rows.groupby("day"):
        share = here["weight"] / here.groupby(["round", "param_id"])["cases"].transform("size")
        in_order = here.assign(share=share).sort_values("cases")
        below = in_order["share"].cumsum() / in_order["share"].sum()
        yield day, len(here), [float(in_order["cases"][(below >= q).to_numpy()].iloc[0]) for q in QUANTILES]


def test_the_bands_are_weighted_quantiles_of_round_1_and_of_all_rounds(fit: Calibration) -> None:
    page = render(mops.open_job("fit-r1", fit.storage, local=True))
    table = pd.DataFrame(csv_of(page, "fit-r1-cases-prior-predictive-and-posterior-predictive-daily.csv"))
    table = table.astype(dict.fromkeys(("x", "n", *BAND_COLUMNS), float))
    rows = outputs_of(fit)
    before, after = rows[rows["round"] == 1].assign(weight=1.0), rows[rows["weight"] > 0]
    ends = {}
    for name, some in (("prior predictive", before), ("posterior predictive", after)):
        shown = table[table["sets"] == name].set_index("x")
        expected = list(quantiles(some))
        assert len(expected) == len(shown) == 8
        for day, n, bands in expected:
            assert shown.loc[day, "n"] == n
            assert shown.loc[day, list(BAND_COLUMNS)].tolist() == pytest.approx(bands)
            ends[day] = bands[0], bands[-1]
    within = sum(ends[day][0] <= n <= ends[day][1] for day, n in DATA.items())
    assert 0 < within < len(DATA)
    text = (
        f"{within} of 3 data points lie in the middle 90 % of the posterior predictive, but this band has no errors of "
        "measurement, so less than 90 % can still be a good fit."
    )
    assert page.count(text) == 3, "caption, desk and phone"
    n_before = rows[rows["round"] == 1]["param_id"].nunique()
    weights = np.array([weight or 0.0 for weight in fit.weights])
    n_after = np.count_nonzero(weights)
    caption = (
        rf"Prior predictive: {n_before} of 32 sets \({32 - n_before} have no result\) drawn from the prior, in round "
        rf"1\. Posterior predictive: {n_after} sets of all rounds, by their posterior weights \(effective sample size "
        rf"{re.escape(f'{1 / (weights**2).sum():.3g}')}\)"
    )
    assert n_before == np.count_nonzero([*weights][:32]) < 32, "some sets have failed"
    assert re.search(caption, page)


def test_a_sample_of_the_sets_has_about_their_quantiles(
    fit: Calibration, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mops.report.predictive.MOST_SETS", 12)
    weights = np.array([weight or 0.0 for weight in fit.weights])
    read = trial_rows(facts.data_of, fit.trials(), weights, "daily", ["day", "cases"])
    assert len(read.weights) == len(set(read.rows["group"].to_pylist())) <= 12
    assert read.n_sets == np.count_nonzero(weights)
    assert sum(read.weights.values()) == pytest.approx(1)


def notes(facts: Facts, found: Calibration) -> list[str]:
    parts = predictive(facts, found)
    assert all(isinstance(part, Block) for part in parts)
    return [part.data for part in parts if isinstance(part, Block)]


NONE = "No figure compares the outputs of the calibration with the data:"


def test_a_rough_posterior_is_drawn_and_named_so_and_without_outputs_a_note_says_why(
    fit: Calibration, facts: Facts
) -> None:
    (gallery,) = predictive(facts, fit)
    assert isinstance(gallery, Gallery)
    (rough,) = predictive(facts, replace(fit, scoring=replace(fit.scoring, ess=900)))
    assert isinstance(rough, Gallery)
    assert "rough posterior predictive" in rough.figures[0].title
    assert "data points lie in" not in rough.figures[0].caption
    without_prior = [replace(each, state={"drawn": 1}) for each in fit.rounds]
    (note,) = notes(facts, replace(fit, rounds=without_prior))
    assert note == f"{NONE} the outputs have no values for the prior predictive or for the posterior predictive."


def test_deleted_and_damaged_rounds_are_named(tmp_path: Path) -> None:
    project(tmp_path, MODEL)
    fit = calibrate(tmp_path, rounds=2)
    storage = tmp_path / "storage"
    facts = Facts.of(mops.open_job("fit-r2", storage, local=True))
    damaged(mops.open_job("fit-r1", storage, local=True), "outputs/daily")
    assert "a committed part of job 'fit-r1' is damaged" in notes(facts, fit)[0]
    assert "Posterior of a" in render(mops.open_job("fit-r2", storage, local=True)), "the other job's damage is a note"
    mops.open_job("fit-r1", storage, local=True).delete()
    assert notes(facts, fit) == [f"{NONE} the outputs of fit-r1 have been deleted, or belong to another calibration."]
    (tmp_path / "model.py").write_text(OTHER_MODEL)
    submit(tmp_path, design(2)[:1], name="fit-r1")
    assert notes(facts, fit) == [f"{NONE} the outputs of fit-r1 have been deleted, or belong to another calibration."]
    assert "Posterior of a" in render(mops.open_job(facts.data.name, facts.data.files.url, local=True))


def test_a_job_without_declared_data_has_no_note(fit: Calibration, facts: Facts) -> None:
    facts.data.__dict__["observed"] = []
    assert predictive(facts, fit) == []


def test_rounds_that_failed_leave_the_prior_to_the_next_ones(tmp_path: Path) -> None:
    """Only round 1 was taken for the prior. If it had no outputs, there was no report at all."""
    project(tmp_path, MODEL.replace('params["a"] > 0.95', "not (FOLDER / 'storage' / 'is_repaired').exists()"))
    with pytest.raises(JobFailed, match="no parameter set of round 1 has a loss"):
        calibrate(tmp_path, rounds=1)
    (tmp_path / "storage" / "is_repaired").touch()
    fit = calibrate(tmp_path, rounds=4)
    assert fit.has_posterior
    assert ["drawn" in each.state for each in fit.rounds] == [False, False, True, True][: len(fit.rounds)]
    page = render(mops.open_job("fit-r2", tmp_path / "storage", local=True))
    caption = "Prior predictive: 32 of 64 sets (32 have no result) drawn from the prior, in rounds 1, 2."
    assert caption in page
    table = pd.DataFrame(csv_of(page, "fit-r2-cases-prior-predictive-and-posterior-predictive-daily.csv"))
    assert set(table[table["sets"] == "prior predictive"]["n"]) == {"64"}


def test_the_section_of_an_optimiser_has_the_best_sets_of_all_rounds(
    fit: Calibration, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimiser = replace(fit, record=replace(fit.record, method="cmaes"), weights=[None] * len(fit.weights))
    monkeypatch.setitem(facts.__dict__, "calibration", optimiser)
    section = fitting(facts)
    assert section is not None
    (table,) = (part.data for part in section.parts if isinstance(part, Block) and part.kind == "table")
    assert table["caption"].startswith("The best sets of all rounds, at most 10. The loss is the sum of all losses.")
    best = fit.best(10).select(["loss", *fit.varying]).to_pylist()
    assert table["head"] == ["loss", *fit.varying]
    assert table["rows"] == [[cell(value) for value in row.values()] for row in best]
