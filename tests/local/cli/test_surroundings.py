"""The environment of child processes: variables from --env, and the interpreter from --python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import psutil
import pyarrow
import pytest

import mops
from job_folders import folder_of
from mops.settings import Settings
from mops.storage.job_records import read_options
from mops.worker.environment import child_environment, read_variables

from .command_lab import CommandLab
from .test_commands import wait_for
from .test_wrong_input import refused, refused_and_nothing_written

SECRET = "c2VjcmV0-value"
NO_OPTIONS = "error: these options cannot start simulations"
KEPT = "write --env NAME=VALUE to store a value with the job, or --env NAME to read it at each start"
ENV_HINT = f"hint: {KEPT}"
MODEL = """
import os, time

def run(params, seed):
    while params.get("x") and not os.path.exists(os.environ["GO"]):  # all but the first set wait for a sign
        time.sleep(0.02)
    return {name: os.environ.get(name, "(unset)") for name in ("MODE", "KEPT", "API_TOKEN", "EMPTY")}
"""
IN_ANOTHER = """
import importlib.util, os, sys, time
import only_there

def run(params, seed):
    while params.get("x") and not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
    here = [name for name in ("dask", "distributed", "pydantic", "fsspec", "typer") if importlib.util.find_spec(name)]
    loaded = {name.partition(".")[0] for name in sys.modules if name[0] != "_"} - sys.stdlib_module_names
    foreign = [path for path in sys.path if path.startswith(params["ours"])]
    return {
        "value": only_there.VALUE, "executable": sys.executable, "prefix": sys.prefix, "here": " ".join(here),
        "loaded": " ".join(sorted(loaded)), "foreign": " ".join(foreign), "mops": sys.modules["mops"].__file__,
        "pythonpath": os.environ.get("PYTHONPATH", ""),
    }

def score(params, replicates):
    return float(len(replicates))
"""


@pytest.fixture
def model(lab: CommandLab) -> CommandLab:
    lab.write("model.py", MODEL)
    lab.write_study(parameter_sets=[{"x": 0}])
    return lab


def table(lab: CommandLab, job: str) -> pyarrow.Table:
    return mops.open_job(job, str(lab.storage)).outputs("output").to_arrow()


def row(lab: CommandLab, job: str) -> dict[str, Any]:
    """Return one row of a job. The rows differ only in the seed."""
    return table(lab, job).to_pylist()[0]


def options_of(lab: CommandLab, job: str = "j") -> dict[str, Any]:
    """Return the options that a job's record keeps."""
    found: dict[str, Any] = json.loads((lab.storage / "jobs" / job / "job.json").read_text())["options"]
    return found


def killed_half_way(lab: CommandLab, *arguments: object, **variables: str) -> None:
    """Submit a job 'j' of two sets, and kill it after the first commit. The second set waits for the file GO."""
    one_by_one = {"MODELOPS_JOB_CHECKPOINT_SECONDS": "0", "MODELOPS_JOB_SLOTS": "1"}
    submit = ("jobs", "submit", lab.study, "--name", "j", "--env", f"GO={lab.root / 'go'}", *arguments)
    with lab.start(*submit, **one_by_one, **variables) as runner:
        wait_for(lab, "j", lambda status: status["groups"] == 1)
        runner.send_signal(signal.SIGKILL)
    (lab.root / "go").touch()


# --env


def test_variables_reach_the_model_and_values_are_kept_only_if_given(model: CommandLab) -> None:
    ran = model.submit("--name", "j", "--env", "MODE=a=b c", "--env", "API_TOKEN", "--env", "EMPTY=", API_TOKEN=SECRET)
    assert ran.code == 0, ran.err
    found = row(model, "j")
    assert (found["MODE"], found["API_TOKEN"], found["EMPTY"]) == ("a=b c", SECRET, "")
    assert options_of(model)["env"] == {"MODE": "a=b c", "API_TOKEN": None, "EMPTY": ""}
    outputs = folder_of(model.storage, "j") / "outputs"  # only where the model has written it
    written = [path for path in model.storage.rglob("*") if path.is_file() and not path.is_relative_to(outputs)]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert SECRET not in ran.out + ran.err


def test_a_resume_uses_kept_values_reads_the_others_and_changes_those_that_it_names(model: CommandLab) -> None:
    """Regression: resume and retry had no --env, so a user could not correct a wrong value."""
    model.write_study(parameter_sets=[{"x": 0}, {"x": 1}])
    killed_half_way(model, "--env", "MODE=slow", "--env", "KEPT=x", "--env", "API_TOKEN", API_TOKEN=SECRET)
    committed = model.stored()
    without = model.run("jobs", "resume", "j")
    assert (without.code, without.out) == (2, "")
    assert without.err.splitlines() == [
        NO_OPTIONS,
        "  --env API_TOKEN: not set in this environment; set it, or write NAME=VALUE",
        "  at: job j",
        ENV_HINT,
    ]
    assert model.stored() == committed
    ran = model.run("jobs", "resume", "j", "--env", "MODE=fast", API_TOKEN="another")
    assert ran.code == 0, ran.err
    assert "--env MODE: slow before, fast now" in ran.err
    found = table(model, "j")
    assert set(found["API_TOKEN"].to_pylist()) == {SECRET, "another"}, "read at each start"
    assert set(found["MODE"].to_pylist()) == {"slow", "fast"}
    assert set(found["KEPT"].to_pylist()) == {"x"}
    assert options_of(model)["env"]["MODE"] == "slow", "what was submitted stays as it was"
    (changed,) = (folder_of(model.storage, "j") / "options").iterdir()
    assert "another" not in changed.read_text() + ran.err
    job = mops.open_job("j", str(model.storage))
    assert read_options(job.files, job.record).options.env == {
        "MODE": "fast",
        "KEPT": "x",
        "API_TOKEN": None,
        "GO": str(model.root / "go"),
    }


def test_python_callers_give_a_mapping(model: CommandLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    settings = Settings(slots=1, storage=str(model.storage))
    job = mops.submit(model.study, env={"MODE": "x", "API_TOKEN": None}, settings=settings)
    found = job.outputs("output").to_arrow().to_pylist()[0]
    assert (found["MODE"], found["API_TOKEN"]) == ("x", SECRET)


NO_NAME = "not the name of a variable: use letters, digits and underscores, and do not start with a digit"
NO_TEXT = "the value is not UTF-8 text without null characters"
OF_THE_PROCESS = (
    "mops sets it for each process; set TMPDIR in the environment of the command, or of the workers, instead"
)
SET_BY_MOPS = "mops sets it for each simulation; set MODELOPS_JOB_SIM_THREADS in the environment instead"

A_SETTING = "a setting of mops, not of the model; set it in the environment of the command instead"


def of_a_secret(name: str) -> str:
    return f"the name looks like a secret, and jobs do not store secrets; write --env {name}, and set it here"


# The options, and the lines of the error.
BAD_ENV: dict[str, tuple[list[str], list[str]]] = {
    "not set": (["MODE"], ["--env MODE: not set in this environment; set it, or write NAME=VALUE"]),
    "no name": (["=x"], [f"--env: {NO_NAME}"]),
    "a hyphen": (["MY-MODE=x"], [f"--env MY-MODE: {NO_NAME}"]),
    "a value for a name": (["c2VjcmV0/long+value/of=="], [f"--env c2Vj...: {NO_NAME}"]),
    "a key": ([f"OpenAI_Api_Key={SECRET}"], [f"--env OpenAI_Api_Key: {of_a_secret('OpenAI_Api_Key')}"]),
    "a secret": ([f"MY_SECRET_ID={SECRET}"], [f"--env MY_SECRET_ID: {of_a_secret('MY_SECRET_ID')}"]),
    "threads": (["OMP_NUM_THREADS=4"], [f"--env OMP_NUM_THREADS: {SET_BY_MOPS}"]),
    "the hash seed": (
        ["PYTHONHASHSEED=1"],
        ["--env PYTHONHASHSEED: mops sets it to 0, so that Python sets have the same order in each simulation"],
    ),
    "the temporary folder": (
        ["TMPDIR=/x", "JOBLIB_TEMP_FOLDER=/y"],
        [f"--env {name}: {OF_THE_PROCESS}" for name in ("TMPDIR", "JOBLIB_TEMP_FOLDER")],
    ),
    "a setting": (["MODELOPS_JOB_SLOTS=1"], [f"--env MODELOPS_JOB_SLOTS: {A_SETTING}"]),
    "twice": (["MODE=a", "MODE=b"], ["--env MODE: the variable appears twice; remove one"]),
    "bytes": (["MODE=" + os.fsdecode(b"\xff")], [f"--env MODE: {NO_TEXT}"]),
    "all at once": (
        ["A=1", "A=2", "B-C=1", "TOKEN=x"],
        [
            "--env A: the variable appears twice; remove one",
            f"--env B-C: {NO_NAME}",
            f"--env TOKEN: {of_a_secret('TOKEN')}",
        ],
    ),
}


def test_an_invalid_variable(subtests: pytest.Subtests) -> None:
    for name, (given, said) in BAD_ENV.items():
        with subtests.test(name):
            with pytest.raises(mops.errors.OptionsError) as raised:
                child_environment(read_variables(given), None)
            told = str(raised.value)
            assert told.splitlines() == [NO_OPTIONS.removeprefix("error: "), *(f"  {line}" for line in said), ENV_HINT]
            assert SECRET not in told


def test_check_refuses_what_submit_refuses(lab: CommandLab) -> None:
    ran = lab.run("study", "check", lab.study, "--env", "MODE", "--env", f"TOKEN={SECRET}")
    refused(ran, "--env MODE: not set", "--env TOKEN: the name looks like a secret", where="hint: ")


def test_values_in_python_are_strings(lab: CommandLab) -> None:
    with pytest.raises(mops.errors.OptionsError) as raised:
        mops.submit(lab.study, env={"N": 3, "NUL": "a\0b"}, settings=Settings(storage=str(lab.storage)))  # type: ignore[dict-item]
    assert [str(problem) for problem in raised.value.problems] == [
        "--env N: the value is a int; write a string",
        f"--env NUL: {NO_TEXT}",
    ]
    assert lab.stored() == []


# --python


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty virtual environment."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with numpy, pyarrow and a library of the model, but without mops."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for library in (numpy, pyarrow):
        for source in Path(library.__file__).parents[1].glob(f"{library.__name__}*"):
            (packages / source.name).symlink_to(source)
    (packages / "only_there.py").write_text("VALUE = 'from the other environment'\n")
    return folder / "bin" / "python"


@pytest.fixture
def elsewhere(lab: CommandLab) -> CommandLab:
    lab.write("model.py", IN_ANOTHER)
    ours = str(Path(pyarrow.__file__).parents[1])
    lab.write_study(parameter_sets=[{"ours": ours}, {"ours": ours, "x": 0}], targets=["model:score"])
    return lab


def test_simulations_run_in_another_interpreter_without_the_libraries_of_mops(
    elsewhere: CommandLab, other_python: Path
) -> None:
    ran = elsewhere.submit("--name", "j", "--python", other_python, PYTHONPATH=os.pathsep.join(sys.path))
    assert ran.code == 0, ran.err
    found = row(elsewhere, "j")
    assert found["value"] == "from the other environment"
    assert (found["executable"], found["prefix"]) == (str(other_python), str(other_python.parents[1]))
    assert (found["here"], found["foreign"], found["pythonpath"]) == ("", "", "")
    # Debian's Python has a sitecustomize.
    known = {"mops", "numpy", "pyarrow", "cython_runtime", "model", "only_there", "sitecustomize"}
    assert set(found["loaded"].split()) <= known
    assert found["mops"] == mops.__file__
    assert options_of(elsewhere)["python"] == str(other_python)


def test_the_interpreter_is_kept_for_a_resume_as_an_absolute_path(elsewhere: CommandLab, other_python: Path) -> None:
    elsewhere.write_study(parameter_sets=[{"ours": "/nowhere", "x": x} for x in range(2)], n_replicates=1)
    (elsewhere.root / "lib").mkdir()
    lib = ("--env", f"PYTHONPATH={elsewhere.root / 'lib'}")
    killed_half_way(elsewhere, "--python", os.path.relpath(other_python, elsewhere.root), *lib)
    resumed = elsewhere.run("jobs", "resume", "j")
    assert resumed.code == 0, resumed.err
    kept = options_of(elsewhere)["python"]
    assert Path(kept).is_absolute()
    assert Path(kept).parent.samefile(other_python.parent)
    found = table(elsewhere, "j")
    assert found["value"].to_pylist() == ["from the other environment"] * 2
    assert found["pythonpath"].to_pylist() == [str(elsewhere.root / "lib")] * 2, "only a variable that was named"


def test_check_runs_in_the_other_interpreter(elsewhere: CommandLab, other_python: Path) -> None:
    without = elsewhere.run("study", "check", elsewhere.study)
    assert without.code == 2
    assert "No module named 'only_there'" in without.err
    assert f"if it is a library, install it for {sys.executable}" in without.err
    ran = elsewhere.run("study", "check", elsewhere.study, "--python", other_python, "--env", "MODE=x", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["python"], ran.json["env"]) == (str(other_python), {"MODE": "x"})
    assert ran.json["trial"]["reproducible"] is True


def test_resume_reports_a_missing_interpreter(elsewhere: CommandLab, other_python: Path) -> None:
    elsewhere.write_study(parameter_sets=[{"ours": "/nowhere", "x": x} for x in range(2)], n_replicates=1)
    environment = elsewhere.root / "venv"
    environment.symlink_to(other_python.parents[1])
    python = environment / "bin" / "python"
    killed_half_way(elsewhere, "--python", python)
    environment.unlink()
    ran = elsewhere.run("jobs", "resume", "j")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        NO_OPTIONS,
        f"  --python {python}: this file does not exist; name an interpreter, like .venv/bin/python",
        "  at: job j",
    ]


def answering(root: Path, **versions: object) -> Path:
    """Make a program that answers like an interpreter with these versions, which this machine may not have."""
    answer = json.dumps({"python": "3.12.1", "numpy": "2.4.6", "pyarrow": "26.0.1"} | versions)
    return script(root, f"#!/bin/sh\necho 'mops-interpreter:{answer}'\n")


def script(root: Path, text: str, mode: int = 0o755) -> Path:
    path = root / "program"
    path.write_text(text)
    path.chmod(mode)
    return path


def install(path: Path) -> str:
    return f"install what simulations need: {path} -m pip install 'pyarrow>=18.0' 'numpy>=1.23'"


PYTHON_NEEDED = "name an interpreter, like .venv/bin/python"
# What makes the file, and the problem.
BAD_PYTHONS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a folder": (lambda root: root, "it is a folder; name the interpreter in it, like .venv/bin/python"),
    "nothing": (lambda root: root / "nothing", f"this file does not exist; {PYTHON_NEEDED}"),
    "not executable": (lambda root: script(root, "", mode=0o644), f"it is not executable; {PYTHON_NEEDED}"),
    "no program": (lambda root: script(root, "not a program"), "it cannot be started: Exec format error"),
    "no Python": (
        lambda root: script(root, "#!/bin/sh\necho something >&2\nexit 3\n"),
        "it is not a Python interpreter: it exited with code 3 and printed 'something'",
    ),
    "an old Python": (
        lambda root: answering(root, python="3.10.13"),
        "it is Python 3.10.13; simulations need 3.11 or newer: make an environment with a newer one",
    ),
    "old libraries": (
        lambda root: answering(root, numpy="1.22.4", pyarrow="17.0.0.dev3"),
        (
            "its numpy is 1.22.4, and simulations need 1.23 or newer; "
            "its pyarrow is 17.0.0.dev3, and simulations need 18.0 or newer; {install}"
        ),
    ),
    "a broken library": (
        lambda root: answering(root, numpy=["ImportError", "libblas.so.3: cannot open shared object file"]),
        "its numpy cannot be imported (ImportError: libblas.so.3: cannot open shared object file); {install}",
    ),
}


def test_an_invalid_interpreter(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (make, said) in BAD_PYTHONS.items():
        folder = tmp_path / name
        folder.mkdir()
        path = make(folder)
        with subtests.test(name):
            with pytest.raises(mops.errors.OptionsError) as raised:
                child_environment(None, path)
            problem = f"  --python {path}: {said.format(install=install(path))}"
            assert str(raised.value).splitlines() == [NO_OPTIONS.removeprefix("error: "), problem]


def test_an_interpreter_without_numpy_and_pyarrow(lab: CommandLab, bare_python: Path) -> None:
    ran = lab.run("study", "check", lab.study, "--python", bare_python)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        NO_OPTIONS,
        f"  --python {bare_python}: it has no numpy; it has no pyarrow; {install(bare_python)}",
    ]


def test_an_interpreter_and_an_installed_environment_exclude_each_other(lab: CommandLab) -> None:
    for command in ("jobs", "submit"), ("study", "check"):
        ran = lab.run(*command, lab.study, "--python", sys.executable, MODELOPS_JOB_INSTALL="always")
        refused_and_nothing_written(lab, ran, where="MODELOPS_JOB_INSTALL=always")
        assert ran.err.splitlines() == [
            NO_OPTIONS,
            (
                "  MODELOPS_JOB_INSTALL=always: mops installs nothing into the interpreter that --python names; "
                "remove one of the two"
            ),
        ]


def test_problems_of_variables_and_interpreter_are_reported_together(lab: CommandLab, tmp_path: Path) -> None:
    ran = lab.submit("--env", "MODE", "--python", tmp_path / "nothing")
    refused_and_nothing_written(lab, ran, where="hint: ")
    assert ran.err.splitlines() == [
        NO_OPTIONS,
        "  --env MODE: not set in this environment; set it, or write NAME=VALUE",
        f"  --python {tmp_path / 'nothing'}: this file does not exist; name an interpreter, like .venv/bin/python",
        ENV_HINT,
    ]


def test_a_wrong_command_leaves_no_process(lab: CommandLab) -> None:
    ran = lab.run_cold("jobs", "submit", "missing.json", MARK=str(lab.root), PYTHONWARNINGS="error::ResourceWarning")
    assert ran.code == 2
    assert "ResourceWarning" not in ran.err
    assert not [process for process in psutil.process_iter() if _has_mark(process, str(lab.root))]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
