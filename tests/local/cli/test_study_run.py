"""`mops study run` runs a simulation in the foreground as a job runs it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import mops
from processes import alive
from waiting import until

from .command_lab import MOPS, CommandLab

MODEL = """
import os, random, sys, time
from pathlib import Path

import numpy as np

def run(params, seed):
    print("a model prints")
    print("a warning of the model", file=sys.stderr)
    if params["x"] == 3 and seed == params["bad"]:
        local = "a local value"
        raise ValueError("x is 3")
    if params["x"] == 4:
        Path(os.environ["STARTED"]).touch()
        time.sleep(600)
    if params["x"] == 5:
        os._exit(7)
    if params["x"] == 6:
        return {"facts": {"n": [1]}}
    Path("written.txt").write_text("by a simulation")
    facts = {
        "x": [params["x"]],
        "drawn": [random.random() + np.random.random()],
        "word": [os.environ.get("WORD", "")],
        "hash": [os.environ["PYTHONHASHSEED"]],
        "threads": [os.environ["OMP_NUM_THREADS"]],
        "files": [" ".join(sorted(os.listdir()))],
        "data": [Path("data.txt").read_text()],
        "argv": [Path(sys.argv[0]).name],
    }
    return {"facts": facts, "extra": {"day": list(range(9))}}

def score(params, replicates):
    print("a target prints")
    if params["x"] == 2:
        raise ValueError("no score")
    return {"n": len(replicates), "drawn": random.random()}
"""


@pytest.fixture
def study(lab: CommandLab) -> CommandLab:
    lab.write("model.py", MODEL)
    lab.write("data.txt", "some data")
    lab.write_study(parameter_sets=[{"x": x} for x in (1, 2)], targets=["model:score"])
    return lab


def facts(ran: Any) -> list[dict[str, Any]]:
    """Return the row of the output `facts` of each replicate."""
    outputs = [{output["name"]: output for output in one["outputs"]} for one in ran.json["replicates"]]
    return [each["facts"]["head"][0] for each in outputs]


def test_a_simulation_gives_what_a_job_gives(study: CommandLab) -> None:
    """Same parameters, seeds, variables, working folder and losses."""
    study.submit("--name", "job", "--env", "WORD=spoken")
    job = mops.open_job("job", study.storage)
    stored = {(row["group"], row["replicate"]): row for row in job.outputs("facts").to_arrow().to_pylist()}
    for source in ((study.study, "--env", "WORD=spoken"), ("--job", "job")):
        ran = study.run("study", "run", *source, "--json")
        assert ran.code == 0, ran.err
        assert len(facts(ran)) == 2
        for replicate, row in enumerate(facts(ran)):
            assert row == {name: stored[0, replicate][name] for name in row}
            assert ran.json["replicates"][replicate]["seed"] == stored[0, replicate]["seed"]
        losses = job.losses().to_arrow().to_pylist()
        expected = {(row["target"], row["name"]): row["loss"] for row in losses if row["group"] == 0}
        assert {(loss["target"], loss["name"]): loss["loss"] for loss in ran.json["losses"]} == expected
    assert study.run("jobs", "list", "--json").json[0]["job"] == "job"


LEAVES = """
import decimal, os
import numpy as np

def settings():
    return f"{decimal.getcontext().prec} {np.geterr()['divide']} {os.environ.get('LEFT')}"

def run(params, seed):
    found = settings()
    decimal.getcontext().prec = 5
    np.seterr(divide="raise")
    os.environ["LEFT"] = "x"
    return {"facts": {"x": [found]}}

def score(params, replicates):
    return {"n": float(settings() == "28 warn None")}
"""


def test_what_a_replicate_changes_is_undone_as_in_a_job(study: CommandLab) -> None:
    study.write("model.py", LEAVES)
    ran = study.run("study", "run", study.study, "--json")
    assert [row["x"] for row in facts(ran)] == ["28 warn None"] * 2
    assert [loss["loss"] for loss in ran.json["losses"]] == [1]


def test_prints_appear_and_the_tables_have_their_size_and_first_rows(study: CommandLab) -> None:
    before = study.stored()
    ran = study.run("study", "run", study.study, "--replicate", "1")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("a model prints\n")
    assert "a warning of the model" in ran.err
    lines = ran.out.splitlines()
    assert "facts 1 row, 8 columns; extra 9 rows, 1 column" in lines[1]
    assert lines[1].startswith("replicate 1  seed ")
    at = lines.index("output extra of replicate 1, first rows")
    assert [line.strip() for line in lines[at + 1 :]] == ["day", "0", "1", "2", "3", "4"]
    assert "a target prints" not in ran.out
    assert study.stored() == before == []


def test_a_set_is_named_by_the_start_of_its_id(study: CommandLab) -> None:
    study.submit("--name", "ids")
    ids = mops.open_job("ids", study.storage).params().to_arrow()["param_id"].to_pylist()
    ran = study.run("study", "run", study.study, "--set", ids[1][:6].upper(), "--replicate", "0", "--json")
    assert (ran.json["param_id"], facts(ran)[0]["x"]) == (ids[1], 2)


def test_a_failed_simulation_shows_its_traceback_and_ends_the_run(study: CommandLab) -> None:
    study.write_study(parameter_sets=[{"params": {"x": 3, "bad": 8}, "seed": seed} for seed in (7, 8, 9)])
    ran = study.run("study", "run", study.study)
    assert ran.code == 1
    assert "error: replicate 1 (seed 8): error: ValueError: x is 3" in ran.err
    assert re.search(r"at: set [0-9a-f]{12}\n", ran.err)
    assert '  File "model.py", line 12, in run' in ran.err
    assert ran.out.count("a model prints") == 2
    assert "replicate 0  seed 7" in ran.out
    ran = study.run("study", "run", study.study, "--replicate", "1", "--json")
    assert (ran.code, ran.json["failed"], ran.json["replicates"]) == (1, "replicate 1 (seed 8)", [])
    assert ran.json["message"] == "error: ValueError: x is 3"
    assert ran.json["traceback"].startswith("Traceback (most recent call last)")


def test_a_failed_target_fails_the_run(study: CommandLab) -> None:
    study.write_study(parameter_sets=[{"x": 2}], targets=["model:score"])
    ran = study.run("study", "run", study.study)
    assert ran.code == 1
    assert "error: target model:score: error: ValueError: no score\nthe target got params x and 2 replic" in ran.err
    assert "replicate 1  seed " in ran.out
    assert study.run("study", "run", study.study, "--replicate", "0").code == 0, "targets need all replicates"


def test_a_process_that_ends_is_a_failure(study: CommandLab) -> None:
    study.write_study(parameter_sets=[{"x": 5}])
    ran = study.run("study", "run", study.study)
    assert ran.code == 1
    assert ": ended with exit code 7 (os._exit?)" in ran.err


def test_with_a_job_its_reference_schema_counts(study: CommandLab) -> None:
    """Alone, the simulation is good. In the job it differs from the others."""
    study.write_study(parameter_sets=[{"x": 1}, {"x": 6}], n_replicates=1)
    study.submit("--name", "mixed")
    (cause,) = study.run("jobs", "failures", "mixed", "--json").json["causes"]
    assert cause["verdict"] == "invalid_output"
    assert study.run("study", "run", study.study, "--set", cause["param_id"]).code == 0
    ran = study.run("study", "run", "--job", "mixed", "--set", cause["param_id"])
    assert ran.code == 1
    assert f"error: replicate 0 (seed {cause['seed']}): invalid_output: {cause['cause']}" in ran.err


def test_a_failed_simulation_of_a_job_runs_again_with_a_repaired_model(study: CommandLab) -> None:
    """Its set came by an extension, so it is not in the study file."""
    study.write("more.csv", "x,bad\n3,*\n")
    study.write("model.py", MODEL.replace('seed == params["bad"]', 'params.get("bad")'))
    study.submit("--name", "base", "--env", "WORD=spoken")
    extended = study.run("jobs", "extend", "base", "--sets", study.project / "more.csv", "--name", "more")
    assert extended.code == 3
    causes = study.run("jobs", "failures", "more", "--json").json["causes"]
    (cause,) = (one for one in causes if one["stage"] == "model")
    alone = ("study", "run", "--job", "more", "--set", cause["param_id"], "--replicate", "0", "--json")
    study.write("model.py", MODEL.replace("raise ValueError", "print"))
    assert "ValueError: x is 3" in study.run(*alone).err, "the job keeps its files"
    ran = study.run(*alone, "--with-new-code")
    assert ran.code == 0, ran.err
    (row,) = facts(ran)
    assert (row["x"], row["word"]) == (3, "spoken")
    moved = study.project.rename(study.root / "moved")
    refused = study.run(*alone, "--with-new-code")
    assert refused.code == 2
    assert "the project of job 'more' is not on this machine" in refused.err
    assert study.run(*alone, "--with-new-code", "--project", moved).code == 0


def test_wrong_input_is_an_error(study: CommandLab) -> None:
    no_set = "no parameter set has a param_id that begins with"
    for arguments, said in {
        ("--with-new-code",): "a study file always runs the present files of its project",
        # Of an unset variable: it ran the first set.
        ("--set", ""): f"{no_set} ''\n  at: --set\nhint: use a param_id of the results",
        ("--set", "zz"): f"{no_set} 'zz'",
        ("--replicate", "2"): "the parameter set has no replicate 2",
        ("--job", "other"): "name a study file or a job, and not both",
    }.items():
        ran = study.run("study", "run", study.study, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert f"error: {said}" in ran.err
    study.submit("--name", "own")
    ran = study.run("study", "run", "--job", "own", "--env", "WORD=x")
    assert (ran.code, "error: a job has its project, variables and interpreter" in ran.err) == (2, True)
    study.write_study(parameter_sets=[{"x": x} for x in range(20, 220)])
    ran = study.run("study", "run", study.study, "--set", "1")
    assert ran.code == 2
    assert re.search("parameter sets have a param_id that begins with '1': (1[0-9a-f]{11}, )+", ran.err)
    assert "at: --set\n" in ran.err


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: its two ends."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def started(study: CommandLab, terminal: int, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Start the command with its input at a terminal, in a session of the terminal."""
    return subprocess.Popen(
        [MOPS, "study", "run", study.study, *map(str, arguments)],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=study.root,
        env=study.environment | variables,
        start_new_session=True,
    )


def test_the_debugger_starts_where_the_exception_was_raised(study: CommandLab, terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    study.write_study(parameter_sets=[{"params": {"x": 3, "bad": 8}, "seed": 8}])
    os.write(ours, b"p local.upper()\nq\n")
    with started(study, theirs, "--debug") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "A LOCAL VALUE" in out
    assert err.count("ValueError: x is 3") == 2, "the traceback before the debugger, and the error at the end"


def test_ctrl_c_shows_where_the_simulation_was(study: CommandLab, terminal: tuple[int, int]) -> None:
    study.write_study(parameter_sets=[{"x": 4}])
    flag = study.root / "started"
    with started(study, terminal[1], STARTED=str(flag)) as process:
        until(flag.exists)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'File "model.py", line 1' in err
    assert "KeyboardInterrupt" in err


@pytest.mark.usefixtures("real_children")
def test_a_signal_that_ends_the_command_ends_its_process_and_removes_its_folders(
    study: CommandLab, terminal: tuple[int, int]
) -> None:
    """Regression: SIGTERM left the simulation running, and its folder."""
    folder = study.root / "tmp"
    folder.mkdir()
    study.write_study(parameter_sets=[{"x": 4}])
    flag = study.root / "started"
    with started(study, terminal[1], STARTED=str(flag), TMPDIR=str(folder)) as process:
        until(flag.exists)
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (128 + signal.SIGTERM, False)
    assert below
    assert [one.pid for one in below if alive(one.pid)] == []
    assert list(folder.iterdir()) == []
