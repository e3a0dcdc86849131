"""The output and exit codes of commands for succeeded, partial, killed and cancelled jobs."""

from __future__ import annotations

import csv
import inspect
import pkgutil
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import mops
from mops.cli.main import VERBS, Verb, app
from mops.settings import Settings
from programs import Ran
from waiting import until

from .command_lab import MOPS, CommandLab

PATIENCE_S = 120.0


# submit


def test_submit_prints_the_name_on_stdout_and_talks_on_stderr(lab: CommandLab) -> None:
    ran = lab.submit()
    assert ran.code == 0
    assert re.fullmatch(r"project-\d{6}-[0-9a-f]{4}\n", ran.out)
    for text in ("2 parameter sets, 4 simulations", "succeeded in", "4 good, 0 failed", "peak memory", "mops jobs res"):
        assert text in ran.err
    assert "a model prints" not in ran.out + ran.err


def test_submit_as_json_includes_the_final_state(lab: CommandLab) -> None:
    ran = lab.submit("--json", "--name", "as-json")
    end = ran.json
    assert (end["job"], end["state"], end["groups"], end["n_groups"]) == ("as-json", "succeeded", 2, 2)
    assert end["counts"] == {
        "simulations_good": 4,
        "simulations_failed": 0,
        "targets_good": 0,
        "targets_failed": 0,
        "verdicts": {},
    }
    assert end["peak_bytes"] > 0
    assert end["seconds"] > 0
    assert end["reasons"] == []


def test_suggested_commands_work_in_the_same_folder(lab: CommandLab, tmp_path: Path) -> None:
    """Regression: the results were in the project's folder, but `mops jobs results JOB` read the working directory."""
    ran = lab.submit(MODELOPS_STORAGE="")
    named = re.search(r"results +mops (jobs results .*)", ran.err)
    assert named
    assert lab.run(*named[1].split(), MODELOPS_STORAGE="").code == 0
    assert (lab.project / "mops-storage").is_dir()


def test_a_job_with_failures_is_partial_and_prints_the_reasons(lab: CommandLab) -> None:
    lab.write_study(parameter_sets=[{"x": 1}, {"x": -1}], targets=["model:score"])
    ran = lab.submit("--name", "partly")
    assert ran.code == 3
    assert "partial in" in ran.err
    assert "2 x error: ValueError: x is negative" in ran.err
    assert "ValueError: x is negative" in lab.run("jobs", "status", "partly").out


# stopped, killed, resumed


WAITS = """
import os, time

def run(params, seed):
    while params["x"] and os.path.exists(params["gate"]):
        time.sleep(0.02)
    return {"x": params["x"]}
"""


def test_a_killed_job_is_interrupted_and_resumes(lab: CommandLab) -> None:
    """While there is a gate, only the first set finishes, so that the kill is never too late."""
    gate = lab.write("../gate", "")
    lab.write("model.py", WAITS)
    lab.write_study(parameter_sets=[{"x": x, "gate": str(gate)} for x in range(40)], n_replicates=1)
    with lab.start("jobs", "submit", lab.study, "--name", "killed", MODELOPS_JOB_CHECKPOINT_SECONDS="0") as runner:
        wait_for(lab, "killed", lambda status: status["groups"] >= 1)
        running = lab.run("jobs", "status", "killed", "--json").json
        runner.send_signal(signal.SIGKILL)
    assert (running["state"], running["live"]["pid"]) == ("running", runner.pid)
    killed = lab.run("jobs", "status", "killed")
    assert re.search(r"state +interrupted", killed.out)
    assert re.search(r"continue +mops jobs resume killed", killed.out)
    committed = lab.run("jobs", "status", "killed", "--json").json["groups"]
    lab.write("notes.txt", "new")
    lab.write("model.py", "raise ValueError('not what was submitted')")
    gate.unlink()
    resumed = lab.run("jobs", "resume", "killed")
    assert resumed.code == 0
    assert (
        "warning: the project has changed since the submit; the job runs the submitted files, which differ in: "
        "model.py (changed), notes.txt (added)\n"
    ) in resumed.err
    assert f"continues: {committed} of 40 parameter sets" in resumed.err
    end = lab.run("jobs", "status", "killed", "--json").json
    assert (end["state"], end["attempt"], end["groups"]) == ("succeeded", 2, 40)


@pytest.mark.usefixtures("real_children")
def test_ctrl_c_while_the_model_is_imported_writes_nothing(lab: CommandLab) -> None:
    begun = lab.root / "begun"
    begins = f"import time\nfrom pathlib import Path\nPath({str(begun)!r}).touch()\ntime.sleep(600)\n"
    lab.write("slow.py", begins + "def run(p, s): return 1\n")
    lab.write_study(model="slow:run")
    with lab.start("jobs", "submit", lab.study) as runner:
        child = wait_for_child(runner.pid)
        until(begun.exists, PATIENCE_S)  # the first child starts before the command is imported
        runner.send_signal(signal.SIGINT)
        out, err = runner.communicate(timeout=60)
    assert (runner.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert lab.stored() == []
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


# results


def test_results_are_a_table_for_people(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "results", job)
    rows = {line.split()[0]: line.split() for line in ran.out.splitlines()}
    assert rows["name"] == ["name", "rows", "parts", "size", "folder"]
    assert rows["daily"][1:3] == ["8", "2"]
    assert rows["losses"][1] == "2"
    assert rows["failures"][1:3] == ["0", "0"]
    assert f"mops.open_job('{job}')" in ran.err


def test_results_as_json_list_every_part(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    tables = {(table["kind"], table["name"]): table for table in lab.run("jobs", "results", job, "--json").json}
    assert set(tables) == {
        ("outputs", "daily"),
        ("outputs", "summary"),
        ("losses", "losses"),
        ("failures", "failures"),
    }
    daily = tables["outputs", "daily"]
    assert sum(pq.read_metadata(path).num_rows for path in daily["paths"]) == daily["rows"] == 8
    assert sum(Path(path).stat().st_size for path in daily["paths"]) == daily["bytes"]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_an_export_contains_all_rows_of_the_job(
    finished: tuple[CommandLab, str], tmp_path: Path, file_format: str
) -> None:
    lab, job = finished
    ran = lab.run("jobs", "results", job, "--to", tmp_path / "new" / "folder", "--format", file_format, "--json")
    files = {file["name"]: file for file in ran.json}
    assert {name: file["rows"] for name, file in files.items()} == {
        "daily": 8,
        "summary": 4,
        "losses": 2,
        "failures": 0,
        "params": 2,
    }
    stored = mops.open_job(job, str(lab.storage)).outputs("daily").to_arrow().to_pylist()
    assert sorted(read(files["daily"]["path"])) == sorted(
        (row["param_id"], row["replicate"], row["seed"], row["day"], row["y"]) for row in stored
    )


def read(path: str) -> Iterator[tuple[str, int, int, int, float]]:
    """Yield the rows of an exported ``daily``."""
    if path.endswith(".csv"):
        with Path(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = pq.read_table(path).to_pylist()
    for row in rows:
        yield row["param_id"], int(row["replicate"]), int(row["seed"]), int(row["day"]), float(row["y"])


def test_outputs_may_have_any_name(lab: CommandLab, tmp_path: Path) -> None:
    """Regression: an output named losses replaced the losses."""
    lab.write("odd.py", "def run(p, s):\n    return {'losses': {'a': [1]}, 'b%é': {'a': [2]}, 'a b': {'a': [3]}}\n")
    lab.write_study(model="odd:run")
    job = lab.submit().name
    tables = lab.run("jobs", "results", job, "--json").json
    assert [table["name"] for table in tables] == ["losses", "b%é", "a b", "losses", "failures"]
    folder = tmp_path / "deep" / "out"
    assert lab.run("jobs", "results", job, "--to", folder).code == 0
    names = {path.relative_to(tmp_path / "deep").as_posix() for path in folder.parent.rglob("*") if path.is_file()}
    files = [f"{name}.parquet" for name in ("output-losses", "b%25%C3%A9", "a b", "losses", "failures", "params")]
    assert names == {f"out/{file}" for file in (*files, ".gitignore")}


# settings and check


def test_settings_lists_each_with_value_source_and_meaning(lab: CommandLab) -> None:
    lines = {line["name"]: line for line in lab.run("settings", "--json", MODELOPS_JOB_BATCH_SIZE="7").json}
    lines.pop("service")  # a location and not a setting: tests/local/cli/test_location.py
    shared = {
        "storage": "MODELOPS_STORAGE",
        "scheduler": "MODELOPS_SCHEDULER",
        "metrics_port": "MODELOPS_METRICS_PORT",
    }
    assert set(lines) == {shared.get(field, f"MODELOPS_JOB_{field.upper()}") for field in Settings.model_fields}
    batch = lines["MODELOPS_JOB_BATCH_SIZE"]
    assert (batch["value"], batch["source"]) == (7, "environment")
    assert lines["MODELOPS_JOB_RETRIES"]["source"] == "default"
    assert all(line["meaning"] for line in lines.values())
    text = lab.run("settings", MODELOPS_JOB_BATCH_SIZE="7").out
    assert len(text.splitlines()) == 2 + len(Settings.model_fields)  # the header and the service
    assert re.search(r"MODELOPS_JOB_BATCH_SIZE +7 +environment +\w", text)
    assert re.search(r"MODELOPS_JOB_CHECKPOINT_BYTES +64 MiB +default", text)


def test_check_reports_what_would_run_and_stores_nothing(lab: CommandLab) -> None:
    lab.write_study(targets=["model:score"], note="kept")
    ran = lab.run("study", "check", lab.study)
    assert ran.code == 0
    assert re.search(r"simulations +4, ", ran.out)
    assert "note: $.note: unknown key" in ran.err
    plan = lab.run("study", "check", lab.study, "--json").json
    assert (plan["model"], plan["targets"], plan["simulations"]) == ("model:run", ["model:score"], 4)
    assert plan["bundle"]["files"] == 3
    assert lab.stored() == []


# the terminal


def test_help_is_on_stdout_and_fits_a_terminal(lab: CommandLab) -> None:
    for command in ("", "jobs", "jobs submit", "jobs results", "jobs list", "jobs clean", "study", "study sample"):
        ran = lab.run(*command.split(), "--help", COLUMNS="80")
        assert (ran.code, ran.err) == (0, "")
        assert "..." not in ran.out.partition("\n\n")[2], "a summary that is cut says too little: make it shorter"
        assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_version(lab: CommandLab) -> None:
    assert lab.run("--version").out == f"mops {mops.__version__}\n"


def imported(ran: Ran) -> set[str]:
    """Return the modules that a command imported, from the list that Python writes to stderr."""
    return set(re.findall(r"^import time:.*\| +(\S+)$", ran.err, re.MULTILINE))


def test_a_command_imports_only_the_modules_that_it_needs(finished: tuple[CommandLab, str]) -> None:
    """The import of Dask takes a third of a second, and so does that of Arrow, which only `status --losses` needs."""
    lab, job = finished
    version = imported(lab.run("--version", PYTHONPROFILEIMPORTTIME="1"))
    status = imported(lab.run("jobs", "status", job, PYTHONPROFILEIMPORTTIME="1"))
    assert "mops.cli.terminal" in version
    assert not version & {"pyarrow", "numpy", "distributed"}
    assert "pydantic" in status
    assert not status & {"pyarrow", "numpy", "azure", "fsspec", "distributed"}


def test_every_verb_in_the_table_is_a_command_whose_help_begins_with_its_summary() -> None:
    for group, verbs in VERBS.items():
        for name, verb in verbs.items():
            function = pkgutil.resolve_name(verb.where)
            assert verb.summary == (inspect.getdoc(function) or "").partition("\n")[0]
            ran = CliRunner().invoke(app, [*group.split(), name, "--help"], prog_name="mops")
            assert ran.exit_code == 0
            assert ran.output.startswith(f"Usage: mops {f'{group} {name}'.strip()} ")


def test_mops_does_not_import_pandas_and_models_can(lab: CommandLab) -> None:
    """pyarrow would import pandas at its first value, even in a process that never uses a frame."""
    lab.write("model.py", "import pandas as pd\n\ndef run(params, seed):\n    return pd.DataFrame({'n': [seed]})\n")
    ran = lab.run("jobs", "submit", lab.study, "--name", "framed", PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 0, ran.err
    assert "pyarrow" in imported(ran)
    assert "distributed" not in imported(ran), "a job on one machine needs no Dask"
    assert not {module for module in imported(ran) if module.startswith("pandas.")}, "pandas itself is looked for"
    assert lab.run("jobs", "status", "framed", "--json").json["counts"]["simulations_good"] == 4


def test_run_is_short_for_jobs_submit(lab: CommandLab) -> None:
    lab.write_study(parameter_sets=[{"x": 1}], n_replicates=1)
    assert lab.run("run", str(lab.study), "--name", "short").code == 0
    assert lab.run("jobs", "status", "short").code == 0


def test_the_shell_completes_commands(lab: CommandLab) -> None:
    for words, completed in {"mops jobs stat": "status", "mops ru": "run", "mops jobs": "jobs"}.items():
        typed = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_MOPS_COMPLETE": "complete_bash"}
        assert completed in lab.run("--help", **typed).out.split()


def test_progress_on_a_terminal_shows_all_figures(lab: CommandLab) -> None:
    """On a real pseudo-terminal of 80 columns."""
    lab.write_study(parameter_sets=[{"x": x, "sleep": 0.2} for x in range(10)], n_replicates=1)
    _, shown = lab.at_a_terminal("jobs", "submit", str(lab.study))
    assert re.search(r"simulations  [━─]+  \d+ of 10, 0 failed, \d+ left, \d+ %", shown)
    assert re.search(r"rate +.*\d/s", shown)
    assert re.search(r"memory .*\d+ MiB", shown)
    assert "succeeded in" in shown


def wait_for(lab: CommandLab, job: str, true: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the status of a job, read in this process, meets a condition."""
    there = lab.storage / "jobs" / job / "job.json"
    until(lambda: there.exists() and true(asdict(mops.open_job(job, str(lab.storage)).status())), PATIENCE_S)


def wait_for_child(pid: int) -> psutil.Process:
    """Wait until a runner has a child process, and return it."""
    return until(lambda: psutil.Process(pid).children(), PATIENCE_S)[0]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback() -> None:
    process = subprocess.Popen(
        [MOPS, "jobs", "results", "job"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and "libarrow" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.005)  # until the long import has started
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert process.returncode == -signal.SIGINT


def test_a_key_error_during_the_import_of_a_verb_is_not_reported_as_an_unknown_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_verb.py").write_text("{}['missing']")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(VERBS["jobs"], "broken", Verb("broken_verb:broken", "Fail."))
    result = CliRunner().invoke(app, ["jobs", "broken"])
    assert isinstance(result.exception, KeyError)


def test_a_job_in_which_all_failed_says_so_and_what_to_do(lab: CommandLab) -> None:
    """Regression: 'partial' reads as if something was still to come."""
    lab.write_study(parameter_sets=[{"x": -1}], targets=["model:score"])
    ran = lab.submit("--name", "none")
    assert ran.code == 3
    said = [line.strip() for line in ran.err.splitlines()]
    assert any(line.startswith("partial in ") and line.endswith(": every simulation failed") for line in said)
    advice = "repair the cause, then: mops jobs retry none --verdict error --with-new-code"
    assert f"next            {advice}" in said
    for verb in ("status", "watch"):
        out = lab.run("jobs", verb, "none").out
        assert ": every simulation failed" in out
        assert advice in out
    assert lab.run("jobs", "status", "none", "--json").json["state"] == "partial"
