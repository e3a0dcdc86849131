"""The location of commands while the user is connected to a service and also runs jobs on this machine.

The service's storage is an Azure container without credentials here, so a command that reads it by mistake fails.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mops
from mops.cli.init import init
from mops.cli.job_text import nearby
from mops.errors import UsageError
from mops.jobs.location import locate
from mops.k8s.chart import ServiceConfig
from mops.service.profile import DEFAULT, Profile, save, use
from mops.settings import Settings
from mops.storage.files import Files, canonical_url

from .command_lab import CommandLab, Ran
from .test_service_options import SERVICE

STORAGE = "abfs://studies/mops"
SCHEDULER = "tcp://mops-scheduler.studies.svc:8786"


def profile(**changes: Any) -> Profile:
    service = ServiceConfig.parse(json.dumps(SERVICE | {"storage": STORAGE} | changes), "here")
    return Profile(namespace="studies", service=service)


@pytest.fixture
def connected(lab: CommandLab) -> CommandLab:
    """A user who is connected to a service, and whose local jobs use the project's folder."""
    lab.connect(profile())
    lab.environment.pop("MODELOPS_STORAGE")
    return lab


def here(lab: CommandLab, *arguments: object, **variables: str) -> Ran:
    return lab.run(*arguments, cwd=lab.project, **variables)


# The rule


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without variables of mops, and with an empty configuration folder."""
    for name in [name for name in os.environ if name.startswith("MODELOPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "")  # so that monkeypatch restores the original value
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    return monkeypatch


@pytest.fixture
def saved(environ: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    save(profile(storageEnv={"AZURE_STORAGE_ACCOUNT_NAME": "studies"}))
    use(DEFAULT)
    return environ


RULE = {
    "connected": ({}, {}, True, STORAGE, "service"),
    "--storage": ({"storage": "/there"}, {}, True, "/there", "command line"),
    "MODELOPS_STORAGE": ({}, {"MODELOPS_STORAGE": "/there"}, True, "/there", "environment"),
    "--local": ({"local": True}, {}, False, None, "default"),
    "--local with MODELOPS_STORAGE": ({"local": True}, {"MODELOPS_STORAGE": "/there"}, False, "/there", "environment"),
    "MODELOPS_SCHEDULER": ({}, {"MODELOPS_SCHEDULER": "tcp://h:1"}, False, None, "default"),
}


@pytest.mark.parametrize("case", RULE)
def test_the_rule_that_chooses_the_location(saved: pytest.MonkeyPatch, case: str) -> None:
    given, variables, on_service, storage, source = RULE[case]
    for name, value in variables.items():
        saved.setenv(name, value)
    found = locate(**given)  # type: ignore[arg-type]
    assert (found.profile is not None, found.storage, found.storage_source) == (on_service, storage, source)


@pytest.mark.usefixtures("saved")
def test_settings_of_a_call_count_like_the_environment() -> None:
    """Regression: `mops.submit` with a scheduler address in its settings used the connected service."""
    found = locate(settings=Settings(scheduler="tcp://h:1"))
    assert (found.profile, found.local_by) == (None, "MODELOPS_SCHEDULER")
    assert locate(settings=Settings(storage="/there")).storage == "/there"


@pytest.mark.usefixtures("environ")
def test_the_variables_of_the_service_are_set_only_for_its_storage(tmp_path: Path) -> None:
    save(profile(storage=str(tmp_path / "service"), storageEnv={"AZURE_STORAGE_ACCOUNT_NAME": "studies"}))
    use(DEFAULT)
    locate(str(tmp_path / "mine")).open()
    assert "AZURE_STORAGE_ACCOUNT_NAME" not in os.environ
    locate(f"{tmp_path}/service/").open()
    assert os.environ["AZURE_STORAGE_ACCOUNT_NAME"] == "studies"


@pytest.mark.usefixtures("saved")
def test_storages_that_pods_can_reach(subtests: pytest.Subtests) -> None:
    for url, seen in [(STORAGE, True), ("abfs://other/place", True), ("/srv/folder", False), ("memory://trial", False)]:
        with subtests.test(url=url, seen=seen):
            assert locate().reached_from_pods(url) is seen
            assert not locate(local=True).reached_from_pods(url), "a local location has no pods"


def test_equal_urls_have_one_canonical_form(subtests: pytest.Subtests) -> None:
    """Commands compare URLs, and omit --storage from suggested commands if it is the default."""
    plain = ["/a/b/", "relative", "file:///a%20b", "memory://name/", "memory://", "~/x", "/a?b", "file:///a:b@c"]
    for url in plain:
        with subtests.test(url=url):
            assert Files.open(url).url == canonical_url(url) == canonical_url(canonical_url(url))


def test_a_url_that_is_not_a_storage(subtests: pytest.Subtests) -> None:
    for url in ["abfs://", "az:///", "s3://", "abfs://c/p?sig=1", "http://host", "abfs:/c"]:
        with subtests.test(url=url), pytest.raises(UsageError):
            canonical_url(url)


@pytest.mark.usefixtures("environ")
def test_a_removed_working_folder_is_an_error_of_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Regression: commands and Python calls ended with a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    calls: dict[str, Callable[[], object]] = {
        "jobs": mops.jobs,
        "submit": lambda: mops.submit(model="model:run", sets=[{"x": 1}]),
        "calibrate": lambda: mops.calibrate({"x": {"min": 0, "max": 1}}, model="model:run", targets=["model:score"]),
        "a relative storage": lambda: canonical_url("storage"),
        "a path in a suggested command": lambda: nearby("/storage"),
    }
    for name, call in calls.items():
        with subtests.test(name), pytest.raises(UsageError, match=r"^the working folder cannot be used: No such file"):
            call()
    assert len(mops.jobs(storage=tmp_path / "storage")) == 0
    init(tmp_path / "new")
    assert (tmp_path / "new" / "model.py").is_file()


# A job of this machine


COMMANDS = ("status", "results", "logs", "verify", "watch", "clean")


def test_commands_read_and_change_a_local_job_on_this_machine(connected: CommandLab) -> None:
    """Regression: a local job succeeded, and then the command read the service's storage and exited with 2."""
    connected.write_study(parameter_sets=[{"x": 1}, {"x": -1}])
    ran = here(connected, "jobs", "submit", connected.study, "--name", "mine", "--local")
    assert (ran.code, ran.out) == (3, "mine\n"), ran.err
    assert "mops jobs results mine --local\n" in ran.err
    assert (connected.project / "mops-storage" / "jobs" / "mine" / "job.json").exists()
    for command in COMMANDS:
        assert here(connected, "jobs", command, "mine", "--local").code == (3 if command == "watch" else 0), command
    assert "mine" in here(connected, "jobs", "list", "--local").out
    retried = here(connected, "jobs", "retry", "mine", "--verdict", "all", "--name", "again", "--local")
    assert (retried.code, retried.out) == (3, "again\n"), retried.err
    assert "mops jobs results again --local\n" in retried.err
    assert "nothing to cancel" in here(connected, "jobs", "cancel", "again", "--local").err
    assert "nothing to resume" in here(connected, "jobs", "resume", "again", "--local").err
    assert here(connected, "jobs", "delete", "again", "--local", "--yes").code == 0


def test_a_detached_local_job_ends_with_exit_code_0(connected: CommandLab) -> None:
    """Regression: its runner ended with exit code 2 after the job had succeeded."""
    ran = here(connected, "jobs", "submit", connected.study, "--name", "mine", "--detach")
    assert ran.code == 0, ran.err
    assert "mops jobs watch mine --local\n" in ran.err
    assert here(connected, "jobs", "watch", "mine", "--local").code == 0
    log = Path(connected.environment["XDG_STATE_HOME"], "mops", "mine.log")
    deadline = time.monotonic() + 30  # the runner writes its last lines after the end of the job
    while "results" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "error" not in log.read_text()
    assert "mops jobs results mine --local" in log.read_text()


def test_suggested_commands_include_a_named_folder(connected: CommandLab) -> None:
    ran = here(connected, "jobs", "submit", connected.study, "--name", "mine", "--local", "--storage", "other")
    assert "mops jobs results mine --storage other --local\n" in ran.err
    said = here(connected, "jobs", "results", "mine", "--storage", "other", "--local").err
    assert "in Python: mops.open_job('mine', 'other', local=True)\n" in said


def test_a_local_job_that_is_not_on_the_service_gives_a_hint(connected: CommandLab) -> None:
    connected.connect(profile(storage=str(connected.root / "service")))
    assert here(connected, "jobs", "submit", connected.study, "--name", "mine", "--local").code == 0
    ran = here(connected, "jobs", "status", "mine")
    assert ran.code == 2
    assert "hint: this machine has a job of this name: add --local" in ran.err


# Python


def test_python_and_the_command_line_use_the_same_location(connected: CommandLab) -> None:
    """Regression: `mops.submit` wrote to the project's folder, and `mops.open_job` read the service's storage."""
    program = """
import mops
job = mops.submit("study.json", name="mine", local=True)
print(mops.open_job("mine", local=True).status().state, job.files.url == mops.open_job("mine", local=True).files.url)
"""
    ran = here(connected, "-c", program)
    assert (ran.code, ran.out) == (0, "succeeded True\n"), ran.err
    assert here(connected, "jobs", "status", "mine", "--local").code == 0


# mops settings


def lines(ran: Ran) -> dict[str, tuple[Any, str]]:
    return {line["name"]: (line["value"], line["source"]) for line in ran.json}


def test_settings_show_the_service_of_commands(connected: CommandLab) -> None:
    shown = lines(here(connected, "settings", "--json"))
    saved = str(Path(connected.environment["XDG_CONFIG_HOME"], "mops", "profiles", "default.json"))
    assert shown["service"] == ("mops in namespace studies", saved)
    assert shown["MODELOPS_STORAGE"] == (STORAGE, "service")
    assert shown["MODELOPS_SCHEDULER"] == (SCHEDULER, "service")


def test_settings_show_the_reason_that_commands_are_local(connected: CommandLab, subtests: pytest.Subtests) -> None:
    for option, variables, source in [
        ("--local", {}, "--local"),
        (None, {"MODELOPS_SCHEDULER": "tcp://h:1"}, "MODELOPS_SCHEDULER"),
    ]:
        with subtests.test(option=option, variables=variables):
            shown = lines(here(connected, "settings", "--json", *([option] if option else []), **variables))
            assert shown["service"] == (None, source)
            assert shown["MODELOPS_STORAGE"] == (str(connected.project / "mops-storage"), "default")
            assert shown["MODELOPS_SCHEDULER"][0] == variables.get("MODELOPS_SCHEDULER")


def test_settings_without_a_service(lab: CommandLab) -> None:
    shown = lines(here(lab, "settings", "--json"))
    assert shown["service"] == (None, "default")
    assert shown["MODELOPS_STORAGE"] == (str(lab.storage), "environment")
