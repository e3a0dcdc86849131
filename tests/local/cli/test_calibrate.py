"""`mops study calibrate` with the real command: what it prints, writes and refuses."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .command_lab import CommandLab

MODEL = """
import os


def run(params, seed):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{seed}\\n")
    if params["x"] > params.get("limit", 100):
        raise ValueError("x is too large")
    return {"y": [params["x"]]}


def near_3(params, replicates):
    return 0.5 * ((params["x"] - 3) / 0.5) ** 2


def two(params, replicates):
    return {"low": abs(params["x"] - 1), "high": abs(params["x"] - 9)}


def broken(params, replicates):
    raise KeyError("no such column")
"""
SPACE = {"x": {"min": 0, "max": 10}}


@pytest.fixture
def calibrate_lab(lab: CommandLab) -> CommandLab:
    lab.write("model.py", MODEL)
    lab.write("space.json", json.dumps(SPACE))
    lab.environment["CALLS"] = str(lab.root / "calls.txt")
    return lab


def n_calls(lab: CommandLab) -> int:
    path = Path(lab.environment["CALLS"])
    return len(path.read_text().splitlines()) if path.exists() else 0


MODEL_OPTIONS = ("--model", "model:run", "--target", "model:near_3", "--replicates", 2)
OPTIMISED = ("study", "calibrate", "space.json", *MODEL_OPTIONS, "--name", "fit", "--method", "tpe")


def test_the_command_prints_the_interval_and_writes_both_files(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    out = lab.root / "out"
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 32, "--name", "fit", "--ess", 40]
    ran = lab.run(*arguments, "--to", out, cwd=lab.project)
    assert ran.code == 0, ran.err
    head, row = ran.out.splitlines()
    assert head.split() == ["parameter", "mean", "2.5", "%", "median", "97.5", "%"]
    name, mean, low, median, high = row.split()
    assert name == "x"
    assert float(mean) == pytest.approx(3, abs=0.3)
    assert float(median) == pytest.approx(3, abs=0.3)
    assert float(low) == pytest.approx(2, abs=0.5)
    assert float(high) == pytest.approx(4, abs=0.5)
    assert "round 1 of 8: job fit-r1, 32 parameter sets, 64 simulations" in ran.err
    trials = pq.read_table(out / "trials.parquet")
    n_rounds = trials["round"][-1].as_py()
    assert n_rounds < 8, "the rounds end when the effective sample size is reached"
    assert trials.num_rows == 32 * n_rounds
    assert n_calls(lab) == 64 * n_rounds
    assert sum(trials["weight"].to_pylist()) == pytest.approx(1)
    posterior = pq.read_table(out / "posterior.parquet")
    assert posterior.num_rows == 1_000
    assert posterior.column_names == ["draw", "job", "param_id", "x"]
    assert set(posterior["param_id"].to_pylist()) <= set(trials["param_id"].to_pylist())
    assert f"calibrations/fit/rounds/{n_rounds:08d}-told.json" in lab.stored()

    assert lab.run(*arguments, "--to", out, cwd=lab.project).code == 0, "it may replace its own files"
    assert pq.read_table(out / "trials.parquet").equals(trials)
    assert n_calls(lab) == 64 * n_rounds, "a repeated command simulates nothing"
    ran = lab.run(*arguments[:-3], "other", "--to", out, cwd=lab.project)
    assert ran.code == 2
    assert "these files exist already" in ran.err


def test_other_weights_and_temperatures_use_the_same_simulations(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write_study(targets=["model:two", "model:near_3"], n_replicates=3)
    arguments = ["study", "calibrate", "space.json", "--study", "study.json", "-n", 64, "--name", "fit", "--json"]
    arguments += ["--rounds", 1, "--ess", 1]
    ran = lab.run(*arguments, cwd=lab.project)
    assert ran.code == 0, ran.err
    assert (ran.json["scored"], ran.json["failed"], ran.json["jobs"]) == (64, 0, ["fit-r1"])
    assert n_calls(lab) == 64 * 3
    low = lab.run(*arguments, "--weight", "two.low=4", cwd=lab.project)
    high = lab.run(*arguments, "--weight", "two.high=2", "--temperature", 0.5, cwd=lab.project)
    assert low.json["posterior"][0]["median"] == pytest.approx(1, abs=0.4)
    assert high.json["posterior"][0]["median"] == pytest.approx(9, abs=0.4)
    assert n_calls(lab) == 64 * 3
    wrong = lab.run(*arguments, "--weight", "two.hight=4", cwd=lab.project)
    assert wrong.code == 2
    assert "no loss has the label 'two.hight'" in wrong.err
    assert "the labels are two.low, two.high, near_3" in wrong.err.replace("'", "")


def test_failed_sets_are_told_as_failures_unless_they_are_too_many(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("space.json", json.dumps({**SPACE, "limit": 5}))
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 32, "--name", "fit", "--ess", 20]
    ran = lab.run(*arguments, cwd=lab.project, MODELOPS_JOB_MAX_FAILURES="1")
    assert ran.code == 1
    assert lab.run("jobs", "status", "fit-r1", "--json").json["state"] == "failed"
    ran = lab.run(*arguments, "--to", "out", cwd=lab.project)
    assert ran.code == 0, ran.err
    assert "round 1 ended: 16 sets scored, 16 failed" in ran.err, "the round continues with another limit"
    for row in pq.read_table(lab.project / "out" / "trials.parquet").to_pylist():
        is_good = row["x"] <= 5
        assert row["failure"] == (None if is_good else "error")
        assert (row["loss"] is not None and math.isfinite(row["loss"])) == is_good
        assert (row["weight"] is not None) == is_good


def test_a_round_without_any_loss_is_an_error(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    ran = lab.run(
        *("study", "calibrate", "space.json", "--model", "model:run", "--target", "model:broken"),
        *("-n", 4, "--name", "fit"),
        cwd=lab.project,
    )
    assert ran.code == 1
    assert "no parameter set of round 1 has a loss" in ran.err
    assert "mops jobs status fit-r1" in ran.err


def test_a_small_effective_sample_size_gives_rough_intervals(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    out = lab.root / "out"
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 16, "--name", "fit", "--to", out]
    ran = lab.run(*arguments, "--rounds", 1, cwd=lab.project)
    assert ran.code == 3
    _, row = ran.out.splitlines()
    assert all(number.startswith("~") for number in row.split()[1:])
    assert re.search(
        r"no posterior: the effective sample size is \S+, and \d+ are wanted; the intervals \(~\) are rough", ran.err
    )
    assert (out / "trials.parquet").exists()
    assert not (out / "posterior.parquet").exists()
    assert lab.run(*arguments, "--rounds", 1, "--json", cwd=lab.project).json["rough"] is True
    more = lab.run(*arguments, "--rounds", 3, "--ess", 20, cwd=lab.project)
    assert more.code == 0, more.err
    assert "round 2 of 3: job fit-r2" in more.err


def test_a_later_round_from_the_whole_space_is_told(calibrate_lab: CommandLab) -> None:
    """Two of four sets are too few for a normal distribution."""
    lab = calibrate_lab
    options = ("-n", 4, "--name", "fit", "--method", "abc", "--rounds", 2)
    ran = lab.run("study", "calibrate", "space.json", *MODEL_OPTIONS, *options, cwd=lab.project)
    assert "round 1 of 2: job fit-r1, 4 parameter sets, 8 simulations" in ran.err
    assert "round 2 of 2: job fit-r2, 4 parameter sets from the whole space, 8 simulations" in ran.err


def test_an_optimiser_prints_the_best_sets_and_no_posterior(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "--method", "tpe", "-n", 16, "--rounds", 3]
    ran = lab.run(*arguments, "--name", "fit", "--to", "out", cwd=lab.project)
    assert ran.code == 0, ran.err
    head, *rows = ran.out.splitlines()
    assert head.split() == ["loss", "x"]
    assert len(rows) == 5
    losses = [float(row.split()[0]) for row in rows]
    assert losses == sorted(losses)
    assert float(rows[0].split()[1]) == pytest.approx(3, abs=0.5)
    assert "round 3 ended: 16 sets scored, 0 failed; best loss " in ran.err
    assert "no posterior: tpe is an optimiser; for intervals use --method importance" in ran.err
    assert "from the whole space" not in ran.err
    assert sorted(path.name for path in (lab.project / "out").glob("*.parquet")) == ["trials.parquet"]
    trials = pq.read_table(lab.project / "out" / "trials.parquet")
    assert trials.num_rows == 48
    assert trials["weight"].null_count == 48
    assert n_calls(lab) == 48 * 2
    more = lab.run(*arguments[:-1], 4, "--name", "fit", "--json", cwd=lab.project)
    assert (more.json["rounds"], more.json["posterior"], more.json["ess"]) == (4, None, None)
    assert more.json["best"][0]["loss"] <= losses[0] * 1.001
    assert n_calls(lab) == 64 * 2


def test_several_objectives_give_the_pareto_set(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    arguments = ["study", "calibrate", "space.json", "--model", "model:run", "--target", "model:two", "--name", "fit"]
    objectives = ["--objective", "two.low", "--objective", "two.high"]
    ran = lab.run(*arguments, "--method", "tpe", *objectives, "-n", 24, "--rounds", 2, "--to", "out", cwd=lab.project)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].split() == ["two.low", "two.high", "x"]
    pareto = pq.read_table(lab.project / "out" / "pareto.parquet")
    assert 2 <= pareto.num_rows <= 48
    for row in pareto.to_pylist():
        assert 0.5 <= row["x"] <= 9.5, "between the optima of both losses"
    assert f"Pareto set of {pareto.num_rows} sets" in ran.err
    page = lab.project / "report.html"
    ran = lab.run("jobs", "report", "fit-r2", "--to", page, "--json", cwd=lab.project)
    assert ran.json == {"job": "fit-r2", "file": str(page), "bytes": page.stat().st_size}
    text = page.read_text()
    assert "Pareto set: two.low and two.high" in text
    assert "The Pareto set, in the order of two.low." in text
    wrong = lab.run(*arguments, "--method", "tpe", "--objective", "two.hight", cwd=lab.project)
    assert wrong.code == 2
    assert "no loss has the label 'two.hight'" in wrong.err


def test_a_mistake_in_the_model_does_not_use_up_the_name(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("model.py", "import nothing_like_this\n")
    arguments = [*OPTIMISED, "-n", 4, "--rounds", 1]
    ran = lab.run(*arguments, cwd=lab.project)
    assert ran.code == 2
    assert "nothing_like_this" in ran.err
    lab.write("model.py", MODEL)
    assert lab.run(*arguments, cwd=lab.project).code == 0


def test_what_cannot_run_is_refused_before_anything_is_stored(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("fixed.json", '{"x": 3}')
    lab.write("kinds.json", '{"x": {"values": [3, 4]}}')
    for arguments, said in [
        (["missing.json", *MODEL_OPTIONS], "this space file does not exist"),
        (["fixed.json", *MODEL_OPTIONS], "nothing varies in the space"),
        (["space.json", "--model", "model:run"], "the calibration has no target"),
        (["space.json", "--target", "model:near_3"], "the calibration has no model"),
        (["space.json", *MODEL_OPTIONS, "--weight", "three"], "'three' is not a weight"),
        (["space.json", *MODEL_OPTIONS, "--name", "Fit"], "'Fit' is not a valid name"),
        (["space.json", *MODEL_OPTIONS, "--name", "f" * 53], "is too long for the name of a calibration"),
        (["space.json", *MODEL_OPTIONS, "--temperature", "0"], "temperature is 0"),
        (["space.json", *MODEL_OPTIONS, "-n", 10_000_001], "should be less than or equal to 10000000"),
        (["space.json", *MODEL_OPTIONS, "--draws", 10_000_001], "should be less than or equal to 10000000"),
        (["space.json", *MODEL_OPTIONS, "--objective", "a"], "the method 'importance' has one objective"),
        (["kinds.json", *MODEL_OPTIONS, "--method", "cmaes"], "'cmaes' searches ranges only"),
    ]:
        ran = lab.run("study", "calibrate", *arguments, cwd=lab.project)
        assert ran.code == 2, ran.err
        assert said in ran.err
        assert not lab.storage.exists() or lab.stored() == []


def test_changed_data_and_another_space_are_refused_by_name(calibrate_lab: CommandLab) -> None:
    """Regression: losses against old and new data were mixed without a word."""
    lab = calibrate_lab
    near = "def near_3(params, replicates):\n"
    model = MODEL.replace(near, near + '    assert "*.csv"\n')  # code that may find added files
    lab.write("model.py", model)
    lab.write("data.csv", "cases\n0.3\n")
    arguments = [*OPTIMISED, "-n", 8]
    assert lab.run(*arguments, "--rounds", 1, cwd=lab.project).code == 0
    lab.write("results.csv", "cases\n")
    assert lab.run(*arguments, "--rounds", 2, cwd=lab.project).code == 0, "an added file is no input of earlier rounds"
    lab.write("data.csv", "cases\n0.7\n")
    ran = lab.run(*arguments, "--rounds", 3, cwd=lab.project)
    assert ran.code == 2
    assert "files have changed since the earlier rounds of calibration 'fit': data.csv" in ran.err
    assert "--trust-data" in ran.err
    assert lab.run(*arguments, "--rounds", 3, "--trust-data", cwd=lab.project).code == 0
    lab.write("model.py", "# A comment.\n" + model)
    assert lab.run(*arguments, "--rounds", 4, cwd=lab.project).code == 0, "later calls compare with the accepted data"
    lab.write("model.py", model.replace("- 3) / 0.5", "- 4) / 0.5"))
    ran = lab.run(*arguments, "--rounds", 4, cwd=lab.project)
    assert ran.code == 2
    assert "exists and fits something else; what differs: the file model.py" in ran.err, "the target has changed"
    lab.write("model.py", model)
    lab.write("space.json", json.dumps({"x": {"min": 0, "max": 11}}))
    ran = lab.run(*arguments, "--seed", 1, cwd=lab.project)
    assert ran.code == 2
    assert "exists and fits something else; what differs: the seed, the space" in ran.err


def test_a_job_with_the_name_of_a_round_is_not_taken_for_it(calibrate_lab: CommandLab) -> None:
    """Regression: the calibration took the losses of any job whose name was that of its next round."""
    lab = calibrate_lab
    lab.write_study(parameter_sets=[{"x": 1.0}], targets=["model:near_3"])
    assert lab.run("jobs", "submit", "study.json", "--name", "fit-r2", cwd=lab.project).code == 0
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 8, "--name", "fit", "--ess", 100]
    ran = lab.run(*arguments, "--rounds", 2, cwd=lab.project)
    assert ran.code == 2
    assert "job 'fit-r2' exists and is not a round of calibration 'fit'" in ran.err
    page = lab.project / "report.html"
    assert lab.run("jobs", "report", "fit-r2", "--to", page, cwd=lab.project).code == 0
    assert "Calibration fit" not in page.read_text()
    assert lab.run("calibrations", "delete", "fit", "--yes", cwd=lab.project).code == 0
    assert "jobs/fit-r2/job.json" in lab.stored(), "it belongs to no calibration"


def test_a_calibration_does_not_take_the_losses_of_an_earlier_one_of_its_name(calibrate_lab: CommandLab) -> None:
    """Regression: after a loss of the records, a new calibration took the losses of the earlier model."""
    lab = calibrate_lab
    arguments = [*OPTIMISED, "-n", 8, "--rounds", 1]
    assert lab.run(*arguments, cwd=lab.project).code == 0
    shutil.rmtree(lab.storage / "calibrations" / "fit")
    lab.write("model.py", MODEL.replace("- 3) / 0.5", "- 4) / 0.5"))
    ran = lab.run(*arguments, cwd=lab.project)
    assert ran.code == 2
    assert "job 'fit-r1' exists and is not a round of calibration 'fit'" in ran.err


def test_equal_sets_have_other_seeds_until_the_model_counts_as_deterministic(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("space.json", json.dumps({"x": {"min": 1, "max": 16, "type": "int"}}))
    model = ["--model", "model:run", "--target", "model:near_3", "--temperature", 1e6]
    options = ["-n", 64, "--rounds", 3, "--name", "fit", "--ess", 1e6]
    ran = lab.run("study", "calibrate", "space.json", *model, *options, cwd=lab.project)
    assert ran.code == 3, ran.err
    seeds = Path(lab.environment["CALLS"]).read_text().splitlines()
    first, second, third = (lab.run("jobs", "status", f"fit-r{k}", "--json").json for k in (1, 2, 3))
    assert len(set(seeds)) == len(seeds) == first["n_simulations"] + second["n_simulations"]
    assert third["n_simulations"] > 8, "the third round takes its simulations from the first two"


def test_calibrations_are_listed_and_deleted_with_their_jobs(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    assert lab.run("calibrations", "list").err.startswith("no calibrations in ")
    options = [*MODEL_OPTIONS, "-n", 8, "--method", "tpe"]
    for name, rounds in (("fit", 2), ("other", 1)):
        given = [*options, "--rounds", rounds, "--name", name]
        assert lab.run("study", "calibrate", "space.json", *given, cwd=lab.project).code == 0
    listed = {one["calibration"]: one for one in lab.run("calibrations", "list", "--json").json}
    assert set(listed) == {"fit", "other"}
    fit = listed["fit"]
    assert (fit["method"], fit["rounds"], fit["scored"], fit["failed"]) == ("tpe", 2, 16, 0)
    assert lab.run("jobs", "delete", "fit-r2", "--yes").code == 0  # a calibration may lack a job
    shown = lab.run("calibrations", "list").out.splitlines()
    assert shown[0].split() == ["calibration", "method", "rounds", "sets", "failed", "began", "open", "round"]
    asked = lab.run("calibrations", "delete", "fit")
    assert asked.code == 2
    assert "stdin is not a terminal" in asked.err
    wrong = lab.run("calibrations", "delete", "fitt", "--yes")
    assert wrong.code == 2
    assert "calibration 'fitt' does not exist" in wrong.err
    assert "use the name of an existing calibration: fit" in wrong.err
    ran = lab.run("calibrations", "delete", "fit", "--yes")
    assert ran.code == 0, ran.err
    assert "deleted job fit-r1" in ran.err
    assert "deleted calibration fit" in ran.err
    left = [path for path in lab.stored() if not path.startswith("bundles/")]
    assert left
    assert not [path for path in left if "/fit" in path]
    assert [one["calibration"] for one in lab.run("calibrations", "list", "--json").json] == ["other"]
    given = [*options, "--rounds", 1, "--name", "fit"]
    again = lab.run("study", "calibrate", "space.json", *given, cwd=lab.project)
    assert again.code == 0, "the name is free again"


def test_an_open_round_and_a_damaged_calibration_are_listed_and_can_be_deleted(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    options = ["-n", 8, "--rounds", 1, "--method", "tpe", "--name", "fit"]
    assert lab.run("study", "calibrate", "space.json", *MODEL_OPTIONS, *options, cwd=lab.project).code == 0
    rounds = lab.storage / "calibrations" / "fit" / "rounds"
    (rounds / "00000001-told.json").unlink()
    assert lab.run("calibrations", "list").out.splitlines()[1].endswith("fit-r1")
    assert lab.run("calibrations", "list", "--json").json[0]["open_job"] == "fit-r1"
    (rounds / "00000001-told.json").write_text("{")
    ran = lab.run("calibrations", "list")
    assert ran.code == 0
    assert "warning: calibration fit cannot be read: " in ran.err
    (rounds / "00000001-asked.json").write_text("{")
    assert lab.run("calibrations", "delete", "fit", "--yes").code == 0
    assert not [path for path in lab.stored() if not path.startswith("bundles/")]
