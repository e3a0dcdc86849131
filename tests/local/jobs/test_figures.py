"""The numbers of each figure of a real job, against pandas, numpy and scipy on its Parquet files.

Nothing here reads the files by mops: a job that was not interrupted has no files that do not count.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest
from figure_jobs import sets, submitted
from scipy import stats

from job_folders import folder_of
from job_reads import data_of
from mops.errors import UsageError
from mops.figures.choices import Course
from mops.figures.fan import BAND_COLUMNS, QUANTILES
from mops.figures.losses import distribution
from mops.jobs.figure_data import (
    LossSummary,
    best_groups,
    course_of,
    failure_bins_of,
    fans_of,
    loss_summary_of,
    measured_of,
    scored_of,
    sensitivity_of,
    timeline_of,
)
from mops.jobs.job import Job

LABELS = {"fit": ("model:fit", "loss"), "shape.low": ("model:shape", "low"), "shape.high": ("model:shape", "high")}

WEIGHTS = dict.fromkeys(LABELS, 1.0)


@pytest.fixture(scope="module")
def raw(job: Job) -> dict[str, pd.DataFrame]:
    """The Parquet files of the job, by folder."""
    return raw_of(job)


def raw_of(job: Job) -> dict[str, pd.DataFrame]:
    root = folder_of(job.files.url, job.name)
    files = {"params": [root / "params.parquet"]}
    for folder in ("losses", "failures", "outputs/daily", "outputs/summary", "outputs/people"):
        files[folder] = sorted((root / folder).glob("*.parquet"))
    return {name: pd.concat([pd.read_parquet(path) for path in paths]) for name, paths in files.items() if paths}


def losses_by_set(raw: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row for each set with a loss, with its losses, their sum and its parameters."""
    wide = raw["losses"].pivot(index="group", columns=["target", "name"], values="loss")
    wide = pd.DataFrame({label: wide[pair] for label, pair in LABELS.items()})
    wide["loss"] = wide["fit"] + wide["shape.low"] + wide["shape.high"]
    params = pd.DataFrame(map(json.loads, raw["params"]["params"]), index=raw["params"]["group"])
    return wide.join(params)


def test_the_job_has_what_makes_figures_difficult(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    assert job.status().state == "partial"
    assert set(raw["failures"]["target"].dropna()) == {"*", "model:shape"}
    wide = losses_by_set(raw)
    assert wide["loss"].isna().any()
    assert wide["extra"].isna().any()
    assert raw["outputs/daily"]["share"].isna().any()


def test_each_set_has_its_losses_their_sum_and_its_parameters(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    found = scored_of(data_of(job), weights=WEIGHTS)
    assert set(found.labels) == set(LABELS)
    assert found.parameters == ("beta", "gamma", "kind", "rate", "extra")
    mine, theirs = found.table.to_pandas().set_index("group"), losses_by_set(raw)
    for name in ("loss", *LABELS, *found.parameters):
        pd.testing.assert_series_equal(mine[name], theirs[name], check_dtype=False, check_index_type=False)
    for label in ("loss", *LABELS):
        n_missing = len(raw["params"]) - theirs[label].count()
        assert distribution(found, label).n_missing == n_missing, "also sets without any loss"
    best = job.best(5, weights=WEIGHTS).to_pandas()
    assert found.ranked["group"].to_pylist()[:5] == best["group"].tolist()


def test_a_summary_has_the_spread_of_each_loss_and_the_best_sets(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    found, wide = loss_summary_of(data_of(job), n_best=3), losses_by_set(raw)
    assert found.n_losses == len(raw["losses"])
    assert found.spreads is not None
    assert found.best is not None
    assert {spread.label for spread in found.spreads} == set(LABELS), "without weights there is no sum"
    for spread in found.spreads:
        values = wide[spread.label].dropna()
        assert spread.n == len(values)
        expected = pytest.approx([values.min(), values.median(), values.max()])
        assert [spread.least, spread.median, spread.greatest] == expected
    best = job.best(3).to_arrow().select(["param_id", "group", "loss", "ranked_by"]).to_pylist()
    assert [asdict(one) for one in found.best] == best
    assert len(best) == 3 * len(LABELS)


def test_a_summary_does_not_read_too_many_losses(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    n = len(raw["losses"])
    assert loss_summary_of(data_of(job), most_losses=n - 1) == LossSummary(n, None, None)
    assert loss_summary_of(data_of(job), most_losses=n).spreads


def test_a_fan_has_the_quantiles_of_all_simulations_at_each_x(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    course = course_of(data_of(job))
    assert course == Course("daily", "day", ("infected", "share", "same"))
    rows = raw["outputs/daily"]
    for y, found in zip(course.ys, fans_of(data_of(job), course, by=False), strict=True):
        assert found.y == y
        check_bands(found.table.to_pandas(), rows[rows[y].notna()], y)
        assert found.n_left_out == rows[y].isna().sum()
        assert found.n_simulations == len(rows.drop_duplicates(["group", "replicate"]))
        assert (found.n_sets, found.n_sets_read, found.n_sets_shown) == (30, 30, rows["group"].nunique())


def check_bands(mine: pd.DataFrame, rows: pd.DataFrame, y: str) -> None:
    at_x = rows.groupby("day")[y]
    assert mine["x"].tolist() == list(at_x.groups)
    assert mine["n"].tolist() == at_x.size().tolist()
    for name, q in zip(BAND_COLUMNS, QUANTILES, strict=True):
        assert mine[name].to_numpy() == pytest.approx(at_x.quantile(q, interpolation="linear").to_numpy(), rel=1e-12)


def test_a_fan_is_divided_by_a_parameter(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    (found,) = fans_of(data_of(job), Course("daily", "day", ("infected",)))
    assert found.by == "kind"
    rows = raw["outputs/daily"].merge(raw["params"][["group", "kind"]], on="group")
    for kind in ("a", "b"):
        mine = found.table.filter(pc.equal(found.table["division"], kind)).to_pandas()
        check_bands(mine, rows[rows["kind"] == kind], "infected")


def test_a_fan_of_the_best_sets_has_only_those(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    best = losses_by_set(raw).nsmallest(4, "loss").index
    (found,) = fans_of(
        data_of(job),
        Course("daily", "day", ("infected",)),
        by=False,
        best=best_groups(scored_of(data_of(job), weights=WEIGHTS), 4),
    )
    rows = raw["outputs/daily"]
    check_bands(found.table.to_pandas(), rows[rows["group"].isin(best)], "infected")
    assert found.n_simulations == 12


def test_a_sample_of_a_large_output_has_the_quantiles_of_its_sets(
    job: Job, raw: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mops.jobs import figure_data

    whole = figure_data.sample_of_sets
    monkeypatch.setattr(figure_data, "sample_of_sets", lambda groups, n_rows: whole(groups, n_rows, most=7))
    (found,) = fans_of(data_of(job), Course("daily", "day", ("infected",)), by=False)
    chosen = np.sort(np.random.default_rng(0).choice(np.arange(30), 7, replace=False))
    rows = raw["outputs/daily"]
    check_bands(found.table.to_pandas(), rows[rows["group"].isin(chosen)], "infected")
    assert (found.n_sets, found.n_sets_read) == (30, 7)


def test_rank_correlations_are_those_of_scipy(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    found = sensitivity_of(measured_of(data_of(job))).table.to_pandas().set_index(["parameter", "measure"])
    wide = losses_by_set(raw)
    last = raw["outputs/daily"].sort_values("day").groupby(["group", "replicate"])[["infected"]].last()
    daily = last.groupby("group").mean()
    peak = raw["outputs/summary"].groupby("group")["peak"].mean()
    params = raw["params"].set_index("group")
    measures = {label: wide[label] for label in LABELS}
    measures |= {"last daily.infected": daily["infected"], "summary.peak": peak}
    for parameter in ("beta", "rate", "extra"):
        for measure, values in measures.items():
            both = pd.DataFrame({"x": params[parameter], "y": values}).dropna()
            row = found.loc[parameter, measure]
            assert row["n"] == len(both)
            assert row["rho"] == pytest.approx(stats.spearmanr(both["x"], both["y"]).statistic)
    assert np.isnan(found.loc["gamma", "fit"]["rho"])
    assert sensitivity_of(measured_of(data_of(job))).left_out == ("kind",)


def test_failed_sets_are_counted_by_cause_and_bin(job: Job, raw: dict[str, pd.DataFrame]) -> None:
    failures = raw["failures"][raw["failures"]["target"] != "*"]
    params = raw["params"].set_index("group")
    simulations = failures[failures["target"].isna()]
    scores = failures[failures["target"].notna()]
    causes = data_of(job).causes
    assert [(one.n, len(one.groups)) for one in causes] == [
        (len(simulations), simulations["group"].nunique()),
        (len(scores), scores["group"].nunique()),
    ]
    found = failure_bins_of(data_of(job))
    assert set(found.bins) == {"beta", "kind", "rate", "extra"}
    assert (found.n_failed, found.n_sets) == (failures["group"].nunique(), 30)
    table = found.table.to_pandas()
    for cause, some in enumerate((failures, simulations, scores)):
        failed = params.loc[some["group"].unique(), "beta"]
        rows = table[(table["cause"] == cause) & (table["parameter"] == "beta")]
        edges = found.bins["beta"].edges
        assert rows["failed"].tolist() == np.histogram(failed, edges)[0].tolist()
        assert rows["sets"].tolist() == np.histogram(params["beta"], edges)[0].tolist()
    of_b = table[(table["cause"] == 2) & (table["parameter"] == "kind") & (table["label"] == "b")].iloc[0]
    assert of_b["share"] == scores["group"].nunique() / 15


def test_the_timeline_ends_with_all_simulations(job: Job) -> None:
    found = timeline_of(data_of(job))
    folder = folder_of(job.files.url, job.name) / "events"
    samples = [sample for path in sorted(folder.rglob("*.json")) for sample in json.loads(path.read_text())["samples"]]
    points = found.points.to_pandas()
    names = ("simulations_good", "simulations_failed")
    finished, durable = (
        [sum(s.get(of, {}).get(n, 0) for n in names) for s in samples] for of in ("finished", "durable")
    )
    assert points["simulations"].tolist() == finished
    assert points["memory_bytes"].tolist() == [s["memory_bytes"] for s in samples]
    assert points["durable"].tolist() == durable
    assert found.n_simulations == 90
    assert found.limit_bytes is not None


def test_a_job_of_one_set_without_targets_has_figures(tmp_path: Path) -> None:
    one = {"beta": 0.5, "kind": "a"}
    job = submitted(tmp_path / "one", parameter_sets=[one], n_replicates=1, targets=[])
    course = course_of(data_of(job))
    assert course is not None
    found = fans_of(data_of(job), course)[0]
    rows = raw_of(job)["outputs/daily"]
    for name in BAND_COLUMNS:
        assert found.table[name].to_pylist() == rows["infected"].tolist()
    scored = scored_of(data_of(job))
    assert (scored.labels, len(scored.table), scored.shown_labels) == ((), 0, ())
    assert distribution(scored).n == 0
    assert set(sensitivity_of(measured_of(data_of(job))).table["rho"].to_pylist()) == {None}
    assert failure_bins_of(data_of(job)).bins == {}
    with pytest.raises(UsageError, match="the job has no losses, so it has no best sets"):
        best_groups(scored, 3)


def test_a_job_in_which_all_fails_has_no_outputs(tmp_path: Path) -> None:
    job = submitted(tmp_path / "none", parameter_sets=[{"beta": 0.9, "kind": "a"}, {"beta": 1.0, "kind": "b"}])
    assert course_of(data_of(job)) is None
    assert (len(scored_of(data_of(job)).table), len(sensitivity_of(measured_of(data_of(job))).table)) == (0, 0)
    found = failure_bins_of(data_of(job))
    assert (found.n_failed, found.n_sets) == (2, 2)
    assert found.table.filter(pc.equal(found.table["cause"], 0))["share"].to_pylist() == [1.0] * 4


def test_only_a_time_has_a_last_value(tmp_path: Path) -> None:
    job = submitted(tmp_path / "project", name="ages", targets=None, model="model:ages", parameter_sets=sets()[:3])
    assert measured_of(data_of(job)).measures == ("output.mean", "people.n at the greatest age")
    n = raw_of(job)["outputs/people"]
    expected = n[n["age"] == 20].groupby("group")["n"].mean()
    found = measured_of(data_of(job)).table.sort_by("group")["people.n at the greatest age"].to_pylist()
    assert found == pytest.approx(expected.tolist())
