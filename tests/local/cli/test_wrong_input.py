"""Every wrong input gives an error of a few lines (what, where, hint), and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from .command_lab import MOPS, CommandLab, Ran

SETS = [{"x": 1}]


def refused(ran: Ran, *said: object, code: int = 2, where: object = "at: ") -> None:
    """Assert that a command failed with a short error, as it must for wrong input."""
    assert ran.code == code, ran.err
    assert ran.out == ""
    assert ran.err.startswith("error: "), ran.err
    assert str(where) in ran.err
    for text in said:
        assert str(text) in ran.err
    assert "runner/mops" not in ran.err.partition("Fatal Python error")[0], "the traceback shows frames of mops"
    assert "pydantic" not in ran.err


def refused_and_nothing_written(
    lab: CommandLab, ran: Ran, *said: object, code: int = 2, where: object = "at: "
) -> None:
    refused(ran, *said, code=code, where=where)
    assert lab.stored() == []


def test_an_invalid_study_file(lab: CommandLab) -> None:
    lab.write("study.json", '{"model": "model:run",\n "parameter_sets": [}')
    refused_and_nothing_written(lab, lab.submit(), "not JSON", "line 2, column 21", where=f"at: {lab.study}")


# Fields of the study, and parts of the error: the path, and the valid values.
BAD_FIELDS = {
    "a list as a value": ({"parameter_sets": [{"x": [1]}]}, ["$.parameter_sets[0].x", "a list", "a number"]),
    "calibration": ({"kind": "CalibrationSpec"}, ["$.kind", "calibration", "mops study calibrate space.json"]),
    "a model that is not an entry point": ({"model": "../model.py:run"}, ["$.model", "is outside the project"]),
}


def test_an_invalid_field_of_the_study(lab: CommandLab) -> None:
    for fields, said in BAD_FIELDS.values():
        lab.write_study(**fields)
        refused_and_nothing_written(lab, lab.submit(), *said, where=f"at: {lab.study}")


def test_the_limits_of_a_study_are_checked_although_the_rest_has_problems(lab: CommandLab) -> None:
    """Regression: only an unknown key was reported, and after its repair the next problem."""
    lab.write_study(parameter_sets=SETS, n_replicate=2, limits={"time_out": 3, "retries": -1})
    said = ("$.n_replicate: unknown key", "$.limits.time_out: unknown limit", "$.limits.retries: '-1' is not valid")
    refused_and_nothing_written(lab, lab.submit(), *said)


# Files of the project, fields of the study, and parts of the error about the model.
BAD_MODELS = {
    "unknown module": (
        {},
        {"model": "nowhere:run"},
        ["module 'nowhere' was not found", "if the module is in the project"],
    ),
    "raises at import": (
        {"bad.py": "def f():\n    return {}['beta']\nf()\n"},
        {"model": "bad:run"},
        ["KeyError: 'beta'", "bad.py", "line 2"],
    ),
    # Regression: "the project folder cannot be packed", with the working folder of the import.
    "submits at import": (
        {"bad.py": "import mops\ndef run(p, s):\n    return {}\nmops.submit('study.json')\n"},
        {"model": "bad:run"},
        ["the import of the model calls mops.submit", "put the call below `if __name__ == '__main__':`", "line 4"],
    ),
    "a dot in place of the colon": ({}, {"model": "model.run"}, ["did you mean 'model:run'?"]),
    "a syntax error": ({"bad.py": "def run(:\n"}, {"model": "bad:run"}, ["SyntaxError", "bad.py"]),
    "exits at import": ({"bad.py": "import sys\nsys.exit(3)\n"}, {"model": "bad:run"}, ["SystemExit", "bad.py"]),
    "crashes at import": (
        {"bad.py": "import ctypes\nctypes.string_at(0)\n"},
        {"model": "bad:run"},
        ["SIGSEGV", "bad.py"],
    ),
    "unknown target": ({}, {"targets": ["model:nothing"]}, ["no 'nothing'", "it has:"]),
    "several of them": (
        {},
        {"model": "model:ran", "targets": ["model:nothing", "nowhere:score"]},
        ["the model cannot be loaded: ", "no 'ran'", "\nalso: ", "no 'nothing'", "\nalso: module 'nowhere' was not"],
    ),
}


def test_a_model_that_cannot_be_loaded(lab: CommandLab, subtests: pytest.Subtests) -> None:
    for name, (files, fields, said) in BAD_MODELS.items():
        with subtests.test(name):
            for file, text in files.items():
                lab.write(file, text)
            lab.write_study(**fields)
            refused_and_nothing_written(lab, lab.submit(), *said)


def test_an_unknown_output_is_found_with_the_first_result(lab: CommandLab) -> None:
    """Only the first result has the names of outputs, so the job exists by then and fails."""
    lab.write_study(outputs=["dayly"])
    ran = lab.submit("--name", "outputs")
    assert (ran.code, ran.out) == (2, "")
    assert "no output 'dayly'; it has: daily, summary" in ran.err
    assert "at: $.outputs" in ran.err
    assert "Traceback" not in ran.err
    assert lab.run("jobs", "status", "outputs", "--json").json["state"] == "failed"


# A command, and parts of the error.
BAD_ARGUMENTS = {
    ("jobs", "submit", "{project}/nothing.json"): ["this study file does not exist", "nothing.json", "hint: "],
    ("jobs", "submit", "{project}"): ["Is a directory", "like study.json"],
    ("jobs", "submit", "{study}", "--project", "{root}/nothing"): ["project folder does not exist", "hint: "],
    ("jobs", "submit", "{study}", "--name", "My job"): ["'My job'", "lower-case letters"],
    ("jobs", "status", "nothing"): ["job 'nothing' does not exist", "hint: this storage has no jobs"],
    ("jobs", "status", "../x"): ["'../x'", "letters, digits"],
}


def test_an_invalid_argument(lab: CommandLab) -> None:
    for arguments, said in BAD_ARGUMENTS.items():
        given = [one.format(project=lab.project, study=lab.study, root=lab.root) for one in arguments]
        refused_and_nothing_written(lab, lab.run(*given), *said)


def test_an_unreadable_command(lab: CommandLab) -> None:
    for arguments in (["jobs", "submit"], ["jobs", "nothing"], ["settings", "--nothing"]):
        ran = lab.run(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert "Error: " in ran.err
        assert "-h' for help" in ran.err


def test_invalid_settings_are_reported_at_once(lab: CommandLab) -> None:
    ran = lab.submit(MODELOPS_JOB_RETRIES="-1", MODELOPS_JOB_SIM_TIMEOUT="nan")
    refused_and_nothing_written(lab, ran, "MODELOPS_JOB_RETRIES", "MODELOPS_JOB_SIM_TIMEOUT", where="hint: ")


BAD_STORAGES = {
    "gcs://bucket/x": ["does not know this kind of storage", "gs://bucket/prefix"],
    "ftp://host/x": ["does not know this kind of storage", "a folder"],
    "abfs://container/x?sig=SECRET": ["the URL contains credentials", "AZURE_STORAGE_SAS_TOKEN"],
    "abfs://container/x": ["no usable credentials", "AZURE_STORAGE_CONNECTION_STRING"],
}


def test_an_invalid_storage(lab: CommandLab) -> None:
    for url, said in BAD_STORAGES.items():
        ran = lab.submit("--storage", url)
        refused_and_nothing_written(lab, ran, *said)
        assert "SECRET" not in ran.err


def test_a_storage_that_cannot_be_written(lab: CommandLab) -> None:
    """A file is in the place of the folder, and not even root can create folders in /proc."""
    (lab.root / "taken").write_text("mine")
    ran = lab.submit("--storage", lab.root / "taken")
    refused(ran, "a file and a folder have the same path", "hint: ", code=4, where=f"at: {lab.root / 'taken'}")
    assert (lab.root / "taken").read_text() == "mine"
    refused(lab.submit("--storage", "/proc/mops"), "hint: ", code=4, where="at: /proc/mops")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_folder_of_another_user(lab: CommandLab) -> None:
    lab.storage.mkdir(mode=0o500)
    refused_and_nothing_written(lab, lab.submit(), "refuses access", "its owner and mode", code=4)


def test_a_storage_that_is_full(lab: CommandLab) -> None:
    """The storage is a file system of 64 KiB that only this process sees."""
    script = (
        "mount -t tmpfs -o size=64k tmpfs {storage} && head -c 60000 /dev/zero > {storage}/filler && exec {command}"
    )
    lab.storage.mkdir()
    ran = in_own_mounts(lab, script.format(storage=lab.storage, command=f"{{mops}} jobs submit {lab.study}"))
    refused(ran, "the storage is full", "free space", code=4, where=f"at: {lab.storage}")


def in_own_mounts(lab: CommandLab, script: str) -> Ran:
    """Run a shell script that may mount; skip the test on a machine that does not allow a mount."""
    unshare = [shutil.which("unshare") or "unshare", "--mount", "--map-root-user"]
    try:
        subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", lab.storage], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mount namespaces here")
    command = [*unshare, "sh", "-c", script.format(mops=MOPS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=lab.environment, cwd=lab.root)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_azure_cannot_be_reached(lab: CommandLab) -> None:
    """At a terminal, the error comes within the lab's time limit, not after the minutes of retries of a running job."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening, so the kernel refuses every connection
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}/devstoreaccount1"
        connection = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=c2VjcmV0;BlobEndpoint={endpoint};"
        ran = lab.submit("--storage", "abfs://box/studies", AZURE_STORAGE_CONNECTION_STRING=connection)
    refused(ran, "the storage does not answer", "check the network", code=4, where="at: abfs://box/studies")
    assert "c2VjcmV0" not in ran.err


def test_a_symlink_that_leads_out_of_the_project(lab: CommandLab) -> None:
    (lab.root / "secret.txt").write_text("")
    (lab.project / "link.txt").symlink_to(lab.root / "secret.txt")
    refused_and_nothing_written(lab, lab.submit(), "link.txt", "out of the project", ".mopsignore")


def test_a_project_that_is_too_large_for_the_bundle(lab: CommandLab) -> None:
    for name in ("one.bin", "two.bin", "three.bin"):
        with (lab.project / name).open("wb") as sparse:
            sparse.truncate(190 << 20)
    refused_and_nothing_written(
        lab, lab.submit(), "570.0 MiB in all", "500.0 MiB", "one.bin (190.0 MiB)", ".mopsignore"
    )


def test_a_file_that_is_too_large_for_the_bundle_gets_a_warning(lab: CommandLab) -> None:
    with (lab.project / "big.bin").open("wb") as sparse:
        sparse.truncate(300 << 20)
    ran = lab.submit()
    assert ran.code == 0, ran.err
    assert "warning: simulations cannot read big.bin (300.0 MiB)" in ran.err


def test_a_name_that_is_taken(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    before = lab.stored()
    refused(lab.submit("--name", job), "'done' exists already", "choose another name", where=f"at: {lab.storage}")
    assert lab.stored() == before


def test_resume_of_a_complete_job(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    before = lab.stored()
    ran = lab.run("jobs", "resume", job)
    refused(ran, "'done' is complete (succeeded)", "mops jobs results done", where=f"at: {lab.storage}")
    assert lab.stored() == before


def test_an_export_replaces_files_only_on_request(finished: tuple[CommandLab, str], tmp_path: Path) -> None:
    lab, job = finished
    (tmp_path / "daily.csv").write_text("mine")
    ran = lab.run("jobs", "results", job, "--to", tmp_path, "--format", "csv")
    refused(ran, "exist already", "--overwrite", where=f"at: {tmp_path / 'daily.csv'}")
    assert (tmp_path / "daily.csv").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["daily.csv"]
    again = lab.run("jobs", "results", job, "--to", tmp_path, "--format", "csv", "--overwrite")
    assert again.code == 0
    assert (tmp_path / "daily.csv").read_text() != "mine"


def test_an_option_without_effect(finished: tuple[CommandLab, str]) -> None:
    """They were ignored."""
    lab, job = finished
    for options, said in {
        "--format csv": "only an export has --format",
        "--best 3 --to out": "--best shows parameter sets and exports nothing, but --to is given",
    }.items():
        refused(lab.run("jobs", "results", job, *options.split()), said, where="at: the command line")


def test_detach_and_wait_exclude_each_other(lab: CommandLab) -> None:
    refused_and_nothing_written(
        lab, lab.submit("--detach", "--wait"), "--detach returns at once, and --wait at the end"
    )


def test_an_export_into_a_file(finished: tuple[CommandLab, str], tmp_path: Path) -> None:
    """Regression: a file in place of the folder gave a traceback."""
    lab, job = finished
    (tmp_path / "file").write_text("mine")
    for to, code in {"file": 2, "file/inner": 2, "/proc/mops": 4}.items():
        refused(lab.run("jobs", "results", job, "--to", tmp_path / to), "hint: ", code=code)


def test_a_table_that_csv_cannot_represent(lab: CommandLab, tmp_path: Path) -> None:
    lab.write("lists.py", "import pyarrow as pa\ndef run(p, s):\n    return pa.table({'v': [[1, 2]]})\n")
    lab.write_study(model="lists:run")
    job = lab.submit().name
    folder = tmp_path / "out"
    refused(lab.run("jobs", "results", job, "--to", folder, "--format", "csv"), "'output'", "--format parquet")
    assert not list(folder.glob("*partial*"))


def test_a_record_of_a_newer_mops(lab: CommandLab) -> None:
    """mops refuses the record with the version to install, so that it misreads nothing."""
    job = lab.submit().name
    record = lab.storage / "jobs" / job / "job.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 99, "mops": "9.1.0"}))
    refused(lab.run("jobs", "status", job), "format 99", "install mops-runner 9.1.0", where=f"at: {record}")


def test_a_misspelled_value_of_an_option_is_named_with_the_nearest(lab: CommandLab) -> None:
    """Regression: the message began with 'Value error,', the name of an exception of Python."""
    methods = "is not one of 'sobol', 'lhs', 'grid'"
    for command, said in {
        "study calibrate space.json --method tpee": "'gp'; did you mean 'tpe'?",
        "study sample space.json --method sobbol": f"'sobbol' {methods}; did you mean 'sobol'?",
        "study sample space.json --method xyz": f"Invalid value for '--method': 'xyz' {methods}.",
        "jobs submit study.json --priority hihg": "did you mean 'high'?",
        "jobs list --state parial": "did you mean 'partial'?",
    }.items():
        ran = lab.run(*command.split())
        assert ran.code == 2
        assert said in " ".join(ran.err.split())
        assert "Value error" not in ran.err
