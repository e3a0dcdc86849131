"""`mops study calibrate` with the real command: what it prints, writes and refuses."""

from __future__ import annotations

import json
import math
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

    ran = lab.run(*arguments, "--to", out, cwd=lab.project)
    assert ran.code == 2
    assert "these files exist already" in ran.err
    assert lab.run(*arguments, "--to", out, "--overwrite", cwd=lab.project).code == 0
    assert pq.read_table(out / "trials.parquet").equals(trials)
    assert n_calls(lab) == 64 * n_rounds, "a repeated command simulates nothing"


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


def test_failed_sets_are_told_as_failures(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("space.json", json.dumps({**SPACE, "limit": 5}))
    ran = lab.run(
        *("study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 32, "--name", "fit"),
        *("--ess", 20, "--to", "out"),
        cwd=lab.project,
    )
    assert ran.code == 0, ran.err
    assert "round 1 ended: 16 sets scored, 16 failed" in ran.err
    for row in pq.read_table(lab.project / "out" / "trials.parquet").to_pylist():
        is_good = row["x"] <= 5
        assert row["failure"] == (None if is_good else "error")
        assert (row["loss"] is not None and math.isfinite(row["loss"])) == is_good
        assert (row["weight"] is not None) == is_good


def test_a_round_that_failed_by_too_many_failures_continues_with_another_limit(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("space.json", json.dumps({**SPACE, "limit": 5}))
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 16, "--name", "fit", "--ess", 2]
    ran = lab.run(*arguments, cwd=lab.project, MODELOPS_JOB_MAX_FAILURES="1")
    assert ran.code == 1
    assert lab.run("jobs", "status", "fit-r1", "--json").json["state"] == "failed"
    ran = lab.run(*arguments, cwd=lab.project)
    assert ran.code == 0, ran.err
    assert "round 1 ended: 8 sets scored, 8 failed" in ran.err


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


def test_a_small_effective_sample_size_gives_no_interval(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    out = lab.root / "out"
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 16, "--name", "fit", "--to", out]
    ran = lab.run(*arguments, "--rounds", 1, cwd=lab.project)
    assert ran.code == 3
    assert ran.out == ""
    assert "no posterior: a few sets carry all weight" in ran.err
    assert (out / "trials.parquet").exists()
    assert not (out / "posterior.parquet").exists()
    more = lab.run(*arguments, "--rounds", 3, "--ess", 20, "--overwrite", cwd=lab.project)
    assert more.code == 0, more.err
    assert "round 2 of 3: job fit-r2" in more.err


def test_abc_takes_the_loss_as_a_distance(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    ran = lab.run(
        *("study", "calibrate", "space.json", "--model", "model:run", "--target", "model:near_3"),
        *("--method", "abc", "-n", 200, "--name", "fit", "--rounds", 3, "--json"),
        cwd=lab.project,
    )
    assert ran.code == 0, ran.err
    assert ran.json["rounds"] == 3
    assert 50 <= ran.json["ess"] <= 100, "the population is half of a round"
    (x,) = ran.json["posterior"]
    assert 2 < x["low"] < x["median"] < x["high"] < 4
    assert x["median"] == pytest.approx(3, abs=0.3)


def test_a_mistake_in_the_model_does_not_use_up_the_name(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    lab.write("model.py", "import nothing_like_this\n")
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 16, "--name", "fit", "--ess", 2]
    ran = lab.run(*arguments, cwd=lab.project)
    assert ran.code == 2
    assert "nothing_like_this" in ran.err
    lab.write("model.py", MODEL)
    assert lab.run(*arguments, cwd=lab.project).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json", *MODEL_OPTIONS], "this space file does not exist"),
        (["fixed.json", *MODEL_OPTIONS], "nothing varies in the space"),
        (["space.json", "--model", "model:run"], "the study has no target"),
        (["space.json", "--target", "model:near_3"], "$.model: missing"),
        (["space.json", *MODEL_OPTIONS, "--weight", "three"], "'three' is not a weight"),
        (["space.json", *MODEL_OPTIONS, "--name", "Fit"], "'Fit' is not a valid name"),
        (["space.json", *MODEL_OPTIONS, "--name", "f" * 53], "is too long for the name of a calibration"),
        (["space.json", *MODEL_OPTIONS, "--temperature", "0"], "temperature is 0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_stored(
    calibrate_lab: CommandLab, arguments: list[str], said: str
) -> None:
    lab = calibrate_lab
    lab.write("fixed.json", '{"x": 3}')
    ran = lab.run("study", "calibrate", *arguments, cwd=lab.project)
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert not lab.storage.exists() or lab.stored() == []


def test_another_space_needs_another_name(calibrate_lab: CommandLab) -> None:
    lab = calibrate_lab
    arguments = ["study", "calibrate", "space.json", *MODEL_OPTIONS, "-n", 8, "--name", "fit", "--ess", 1]
    assert lab.run(*arguments, cwd=lab.project).code == 0
    lab.write("space.json", json.dumps({"x": {"min": 0, "max": 11}}))
    ran = lab.run(*arguments, "--seed", 1, cwd=lab.project)
    assert ran.code == 2
    assert "exists and fits something else; what differs: the seed, the space" in ran.err
