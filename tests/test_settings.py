"""The environment: every value checked, all problems at once, unknown names refused with the nearest."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from mops.errors import SettingsError
from mops.settings import PREFIX, Settings


def read(**variables: str) -> Settings:
    """Read an environment with these settings; names without their prefix."""
    return Settings.from_environment({PREFIX + name: value for name, value in variables.items()})


def problems(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(environ)
    return {problem.path: problem.message for problem in caught.value.problems}


def problem(name: str, value: str) -> str:
    found = problems({PREFIX + name: value})
    assert list(found) == [PREFIX + name]
    return found[PREFIX + name]


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_environment({}).to_json() == {
        "batch_size": 200,
        "checkpoint_seconds": 30.0,
        "checkpoint_bytes": 64 << 20,
        "sim_timeout": None,
        "sim_threads": 1,
        "retries": 1,
        "task_seconds": 1.0,
        "slots": None,
        "storage": None,
    }


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_counts_as_unset(empty: str) -> None:
    environ = {"MODELOPS_JOB_BATCH_SIZE": empty, "MODELOPS_STORAGE": empty, "MODELOPS_JOB_NO_SUCH": empty}
    assert Settings.from_environment(environ) == Settings()


@pytest.mark.parametrize(
    ("name", "given", "field", "value"),
    [
        ("BATCH_SIZE", "1", "batch_size", 1),
        ("CHECKPOINT_SECONDS", "0", "checkpoint_seconds", 0.0),
        ("CHECKPOINT_SECONDS", "2.5", "checkpoint_seconds", 2.5),
        ("CHECKPOINT_BYTES", "64MiB", "checkpoint_bytes", 64 << 20),
        ("CHECKPOINT_BYTES", "1.5 GiB", "checkpoint_bytes", 3 << 29),
        ("CHECKPOINT_BYTES", "2000000", "checkpoint_bytes", 2_000_000),
        ("SIM_TIMEOUT", "0.5", "sim_timeout", 0.5),
        ("SIM_THREADS", "4", "sim_threads", 4),
        ("RETRIES", "0", "retries", 0),
        ("TASK_SECONDS", "1e-3", "task_seconds", 0.001),
        ("SLOTS", "3", "slots", 3),
    ],
)
def test_every_setting_is_read_with_its_unit(name: str, given: str, field: str, value: float) -> None:
    assert getattr(read(**{name: given}), field) == value


def test_the_storage_is_a_setting_without_job_in_its_name() -> None:
    settings = Settings.from_environment({"MODELOPS_STORAGE": "abfs://studies/mine"})
    assert settings.storage == "abfs://studies/mine"


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [
        ("BATCH_SIZE", "0", "greater than or equal to 1"),
        ("BATCH_SIZE", "many", "a valid integer"),
        ("BATCH_SIZE", "2.5", "a valid integer"),
        ("BATCH_SIZE", "auto", "this version does not choose it; write a number of parameter sets, like 200"),
        ("CHECKPOINT_SECONDS", "-1", "greater than or equal to 0"),
        ("CHECKPOINT_SECONDS", "inf", "a finite number"),
        ("CHECKPOINT_SECONDS", "30s", "a valid number"),
        ("CHECKPOINT_BYTES", "64 apples", "write bytes, or a number and a unit, like 64MiB"),
        ("CHECKPOINT_BYTES", "-1", "write bytes, or a number and a unit, like 64MiB"),
        ("CHECKPOINT_BYTES", "1KiB", "greater than or equal to 1048576"),
        ("SIM_TIMEOUT", "0", "greater than 0"),
        ("SIM_TIMEOUT", "nan", "a finite number"),
        ("SIM_THREADS", "0", "greater than or equal to 1"),
        ("RETRIES", "-1", "greater than or equal to 0"),
        ("TASK_SECONDS", "0", "greater than 0"),
        ("SLOTS", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(name: str, given: str, right: str) -> None:
    message = problem(name, given)
    assert message.startswith(f"'{given}' is not valid: ")
    assert right in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MODELOPS_JOB_BATCHSIZE", "MODELOPS_JOB_BATCH_SIZE"),
        ("MODELOPS_JOB_CHECKPOINT_SECS", "MODELOPS_JOB_CHECKPOINT_SECONDS"),
        ("MODELOPS_JOB_TIMEOUT", "MODELOPS_JOB_SIM_TIMEOUT"),
        ("MODELOPS_JOB_slots", "MODELOPS_JOB_SLOTS"),
        ("MODELOPS_JOB_STORAGE", "MODELOPS_STORAGE"),
    ],
)
def test_a_misspelled_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    assert problems({name: "1"}) == {name: f"unknown setting; did you mean {nearest}?"}


@pytest.mark.parametrize("name", ["MODELOPS_JOB_SIM_MEMORY", "MODELOPS_JOB_PERSIST", "MODELOPS_JOB_"])
def test_a_name_that_is_near_none_is_refused_with_the_list(name: str) -> None:
    """All names share their first word: compared whole, SIM_MEMORY was taken for a misspelled SIM_TIMEOUT."""
    assert problems({name: "1"}) == {name: "unknown setting; this version has none of this name"}
    with pytest.raises(SettingsError, match=r"MODELOPS_JOB_BATCH_SIZE \(200\).*MODELOPS_STORAGE \(unset\)"):
        Settings.from_environment({name: "1"})


def test_all_problems_are_told_at_once() -> None:
    environ = {"MODELOPS_JOB_RETRYS": "1", "MODELOPS_JOB_SLOTS": "x", "MODELOPS_JOB_BATCH_SIZE": "0"}
    assert set(problems(environ)) == set(environ)


def test_an_error_shows_its_problems_and_what_is_known() -> None:
    with pytest.raises(SettingsError) as caught:
        read(RETRYS="1")
    assert str(caught.value).split("\n")[:2] == [
        "the environment's settings are not valid",
        "  MODELOPS_JOB_RETRYS: unknown setting; did you mean MODELOPS_JOB_RETRIES?",
    ]
    assert caught.value.exit_code == 2


def test_other_tools_variables_are_theirs() -> None:
    environ = {"MODELOPS_RUN": "1", "MODELOPS_STORAGES": "x", "PATH": "/bin", "modelops_job_slots": "0"}
    assert Settings.from_environment(environ) == Settings()


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELOPS_JOB_RETRIES", "7")
    assert Settings.from_environment().retries == 7


def test_slots_are_the_processors_divided_by_the_threads_of_a_simulation() -> None:
    one, many = Settings(), Settings(sim_threads=10_000)
    assert one.effective_slots >= 1
    assert Settings(sim_threads=one.effective_slots).effective_slots == 1
    assert many.effective_slots == 1
    assert Settings(slots=3, sim_threads=4).effective_slots == 3


def test_described_says_value_source_and_meaning_of_every_setting() -> None:
    environ = {"MODELOPS_JOB_BATCH_SIZE": "200", "MODELOPS_STORAGE": "results"}
    lines = {line.name: line for line in Settings.from_environment(environ).described()}
    assert len(lines) == len(Settings.model_fields)
    assert lines["MODELOPS_JOB_BATCH_SIZE"].source == "environment"  # though it is the default's value
    assert (lines["MODELOPS_STORAGE"].value, lines["MODELOPS_STORAGE"].source) == ("results", "environment")
    assert (lines["MODELOPS_JOB_RETRIES"].value, lines["MODELOPS_JOB_RETRIES"].source) == (1, "default")
    assert all(line.meaning and "\n" not in line.meaning for line in lines.values())


def test_settings_read_back_from_json() -> None:
    settings = read(SLOTS="3", CHECKPOINT_BYTES="2MiB", SIM_TIMEOUT="1.5")
    assert Settings.model_validate(json.loads(json.dumps(settings.to_json()))) == settings


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().batch_size = 3  # type: ignore[misc]
