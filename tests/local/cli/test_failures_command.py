"""`mops jobs failures` shows the causes of a real job's failures."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import mops

from .command_lab import CommandLab, make_lab

HELPER = """
def check(beta):
    if beta > 0.4:
        raise ValueError(f"beta {beta} is too large, and {'x' * 500} END")
"""
MODEL = """
import ctypes

from inner.helper import check

def run(params, seed):
    try:
        check(params["beta"])
    except ValueError as error:
        error.add_note("look at the prior")
        raise RuntimeError("no start") from error
    if params["what"] == "crash":
        ctypes.string_at(0)
    return {"daily": {"day": [1, 2], "infected": [3, 4]}}

def score(params, replicates):
    return replicates[0]["dayly"] if params["what"] == "score" else 1.0
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> CommandLab:
    """A job whose sets fail above a value of beta, and two others in their own ways."""
    lab = make_lab(tmp_path_factory.mktemp("failed"), cache)
    lab.write("model.py", MODEL)
    lab.write("inner/helper.py", HELPER)
    sets = [{"beta": round(0.01 * i, 2), "what": {3: "crash", 7: "score"}.get(i, "")} for i in range(1, 51)]
    lab.write_study(targets=["model:score"], parameter_sets=sets)
    ran = lab.submit("--name", "broken", MODELOPS_JOB_RETRIES="0")
    assert ran.code == 3, ran.err
    assert re.search(r"^ +causes +mops jobs failures broken$", ran.err, re.MULTILINE)
    return lab


def test_each_cause_has_its_counts_its_ranges_and_its_first_traceback(failed: CommandLab) -> None:
    lines = failed.run("jobs", "failures", "broken").out.splitlines()
    assert lines[0] == "3 causes of 22 failed simulations and 1 failed score"
    first = lines.index("1. error: RuntimeError: no start")
    assert lines[first + 1 : first + 3] == [
        "   at model.py:11 in run; 20 simulations in 10 parameter sets",
        "   beta: 0.41 to 0.5 (all sets: 0.01 to 0.5); every such set fails",
    ]
    assert re.fullmatch(r"   first: set [0-9a-f]{12}, which is group 40, replicate 0 \(seed \d+\)", lines[first + 3])
    assert lines[first + 4] == "   parameters of this set: beta=0.41, what="
    assert '   |   File "inner/helper.py", line 4, in check' in lines
    assert "   | look at the prior" in lines
    shortened = next(line for line in lines if line.startswith("   | ValueError: beta 0.41"))
    assert "characters ...] x" in shortened
    assert shortened.endswith("x END")
    assert any(re.match(r"2\. crashed: ended with SIGSEGV", line) for line in lines)
    assert "   at model.py:13 in run; 2 simulations in 1 parameter set" in lines
    assert "3. error: KeyError: 'dayly'" in lines
    assert "   | the target got params beta, what and 2 replicates:" in lines
    assert "   |   daily: 2 rows of day (int64), infected (int64)" in lines
    assert "   at model.py:17 in score; 1 score by model:score in 1 parameter set" in lines
    assert lines[-1] == "11 targets not run because a simulation failed"


def test_no_path_leads_into_the_cache_or_into_mops(failed: CommandLab, cache: Path) -> None:
    out = failed.run("jobs", "failures", "broken", "--json").out
    assert str(cache) not in out
    assert "mops/child" not in out


def test_json_has_every_cause(failed: CommandLab) -> None:
    found = failed.run("jobs", "failures", "broken", "--json").json
    assert (found["job"], found["state"], found["targets_not_run"]) == ("broken", "partial", 11)
    job = mops.open_job("broken", failed.storage)
    commands = [one.pop("command") for one in found["causes"]]
    assert found["causes"] == job.causes().to_arrow().to_pylist()
    assert [(one["stage"], one["verdict"], one["n"], one["sets"]) for one in found["causes"]] == [
        ("model", "error", 20, 10),
        ("model", "crashed", 2, 1),
        ("target", "error", 1, 1),
    ]
    failures = {
        (row["group"], row["replicate"]): row for row in job.failures().to_arrow().to_pylist() if row["target"] != "*"
    }
    assert all(command.startswith("mops study run --job broken --set ") for command in commands)
    sets = json.loads(failed.study.read_text())["parameter_sets"]
    for one in found["causes"]:
        assert json.loads(one["params"]) == sets[one["group"]]
        row = failures[one["group"], one["replicate"]]
        assert {name: one[name] for name in ("param_id", "seed", "message", "traceback")} == {
            name: row[name] for name in ("param_id", "seed", "message", "traceback")
        }


def test_the_command_runs_the_failed_simulation_alone(failed: CommandLab) -> None:
    for one in failed.run("jobs", "failures", "broken", "--json").json["causes"]:
        argv = shlex.split(one["command"])[1:]
        assert argv[2:4] == ["--job", "broken"]
        assert argv[-1] == "--with-new-code"
        assert ("--replicate" in argv) == (one["stage"] == "model")
        ran = failed.run(*argv)
        assert ran.code == 1
        assert (one["cause"] if one["verdict"] == "error" else "ended with SIGSEGV") in ran.err
    moved = failed.project.rename(failed.root / "moved")
    try:
        argv = shlex.split(failed.run("jobs", "failures", "broken", "--json").json["causes"][0]["command"])[1:]
        assert "--with-new-code" not in argv, "without the project, the files of the job run"
        assert "RuntimeError: no start" in failed.run(*argv).err
    finally:
        moved.rename(failed.project)


def test_the_command_has_the_options_of_the_submit(lab: CommandLab) -> None:
    lab.write("model.py", "import os\n\ndef run(params, seed):\n    raise ValueError(os.environ['WORD'])\n")
    lab.write_study(parameter_sets=[{"x": 1}], n_replicates=1)
    assert lab.submit("--name", "words", "--env", "WORD=two words").code == 3
    (one,) = lab.run("jobs", "failures", "words", "--json").json["causes"]
    assert "ValueError: two words" in lab.run(*shlex.split(one["command"])[1:]).err


def test_reasons_leave_out_consequences_too(failed: CommandLab) -> None:
    status = failed.run("jobs", "status", "broken", "--json").json
    assert [reason["n"] for reason in status["reasons"]] == [20, 2, 1]


def test_a_retry_shows_the_failures_of_both_jobs(failed: CommandLab) -> None:
    failed.run("jobs", "retry", "broken", "--verdict", "crashed", "--name", "again", MODELOPS_JOB_RETRIES="0")
    causes = failed.run("jobs", "failures", "again", "--json").json["causes"]
    assert [(one["verdict"], one["n"]) for one in causes] == [("error", 20), ("crashed", 2), ("error", 1)]


def test_only_the_most_frequent_causes_are_shown(lab: CommandLab) -> None:
    lab.write("model.py", "def run(params, seed):\n    return {'n': [params[params['name']]]}\n")
    sets = [{"name": chr(97 + i)} for i in range(12)]
    lab.write_study(parameter_sets=sets, n_replicates=1)
    assert lab.submit("--name", "many").code == 3
    short, every = (lab.run("jobs", "failures", "many", *more).out for more in ((), ("--all",)))
    assert len(re.findall(r"^\d+\. ", short, re.MULTILINE)) == 10
    assert "2 other causes: mops jobs failures many --all" in short
    assert len(re.findall(r"^\d+\. ", every, re.MULTILINE)) == 12


def test_a_job_without_failures_says_so(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "failures", job)
    assert (ran.code, ran.out) == (0, "no failures: 4 of 4 simulations are good\n")
    assert lab.run("jobs", "failures", job, "--json").json["causes"] == []
