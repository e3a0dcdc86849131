"""Settings from environment variables: values, defaults and errors."""

from __future__ import annotations

import ast
import functools
import json
from pathlib import Path

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st
from pydantic import ValidationError

import mops
from mops.errors import SettingsError, StudyError
from mops.settings import LIMITS, PREFIX, Settings, limit_texts, limits_of_study
from mops.study.study_file import LIMIT_KEYS

PACKAGE = Path(mops.__file__).parent
BYTES = "write bytes, or a number and a unit, like 64MiB"


def problems(**environ: str) -> list[tuple[str, str]]:
    """Return the variable and the message of everything that is wrong."""
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment(environ)
    assert raised.value.what == "the environment's settings are not valid"
    return [(problem.path, problem.message) for problem in raised.value.problems]


# Each setting: its default, the text of its variable, and the value of this text.
ALL: dict[str, tuple[object, str, object]] = {
    "batch_size": (None, "50", 50),
    "checkpoint_seconds": (30.0, "0", 0),
    "checkpoint_bytes": (64 * 2**20, "2MiB", 2 * 2**20),
    "sim_timeout": (None, "1.5", 1.5),
    "sim_memory": (None, "2GiB", 2 * 2**30),
    "tasks_per_child": (0, "1", 1),
    "child_growth": (300 * 2**20, "0", 0),
    "start": ("auto", "spawn", "spawn"),
    "sim_threads": (1, "2", 2),
    "retries": (1, "0", 0),
    "max_failures": (None, "5%", "5%"),
    "priority": ("normal", "high", "high"),
    "pool": (None, "gpu", "gpu"),
    "memory_pool": (None, "large", "large"),
    "task_seconds": (1.0, "0.1", 0.1),
    "slots": (None, "3", 3),
    "install": ("auto", "never", "never"),
    "persist": ("auto", "worker", "worker"),
    "install_timeout": (600.0, "90", 90),
    "import_timeout": (300.0, "80", 80),
    "scheduler": (None, "tcp://host:8786", "tcp://host:8786"),
    "cluster_timeout": (300.0, "60", 60.0),
    "storage": (None, "az://results", "az://results"),
    "metrics_port": (None, "9095", 9095),
}


def test_an_empty_environment_gives_the_defaults() -> None:
    got = Settings.from_environment({})
    assert got == Settings()
    assert got.to_json() == {field: default for field, (default, _, _) in ALL.items()}


def test_every_variable_is_read() -> None:
    of_all = {name: f"MODELOPS_{name.upper()}" for name in ("scheduler", "storage", "metrics_port")}
    variables = {of_all.get(field, PREFIX + field.upper()): text for field, (_, text, _) in ALL.items()}
    got = Settings.from_environment(variables)
    assert got == Settings(**{field: value for field, (_, _, value) in ALL.items()})  # type: ignore[arg-type]
    assert got.model_fields_set == set(Settings.model_fields)


def test_values_may_have_units_and_spaces(subtests: pytest.Subtests) -> None:
    for name, given, field, value in [
        ("CHECKPOINT_SECONDS", "2.5", "checkpoint_seconds", 2.5),
        ("CHECKPOINT_BYTES", "64MiB", "checkpoint_bytes", 64 << 20),
        ("CHECKPOINT_BYTES", "1.5 GiB", "checkpoint_bytes", 3 << 29),
        ("CHECKPOINT_BYTES", "2000000", "checkpoint_bytes", 2_000_000),
        ("TASK_SECONDS", "1e-3", "task_seconds", 0.001),
        ("SLOTS", " 3 ", "slots", 3),
        ("BATCH_SIZE", " 3 ", "batch_size", 3),
        ("BATCH_SIZE", " Auto ", "batch_size", "auto"),
    ]:
        with subtests.test(str((name, given, field, value))):
            assert getattr(Settings.from_environment({PREFIX + name: given}), field) == value


def test_the_environment_is_read_at_the_time_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELOPS_JOB_BATCH_SIZE", "7")
    assert Settings.from_environment().batch_size == 7


def test_an_empty_variable_counts_as_unset(subtests: pytest.Subtests) -> None:
    for value in ["", " ", "\t\n"]:
        with subtests.test(value=value):
            environ = {"MODELOPS_JOB_BATCH_SIZE": value, "MODELOPS_STORAGE": value, "MODELOPS_JOB_NONE_SUCH": value}
            got = Settings.from_environment(environ)
            assert got == Settings()
            assert got.model_fields_set == set()


def test_variables_of_other_tools_are_ignored() -> None:
    environ = {"MODELOPS_BUNDLE_REF": "x", "MODELOPS_STORAGES": "x", "modelops_job_slots": "0", "PATH": "/bin"}
    assert Settings.from_environment(environ) == Settings()


def test_an_unknown_setting_is_refused_with_the_nearest_name(subtests: pytest.Subtests) -> None:
    for name, near in [
        ("MODELOPS_JOB_BATCHSIZE", "MODELOPS_JOB_BATCH_SIZE"),
        ("MODELOPS_JOB_batch_size", "MODELOPS_JOB_BATCH_SIZE"),
        ("MODELOPS_JOB_TIMEOUT", "MODELOPS_JOB_SIM_TIMEOUT"),
        ("MODELOPS_JOB_RETRY", None),
        ("MODELOPS_JOB_SLOT", "MODELOPS_JOB_SLOTS"),
        ("MODELOPS_JOB_CHECKPOINT_SECOND", "MODELOPS_JOB_CHECKPOINT_SECONDS"),
        ("MODELOPS_JOB_STORAGE", "MODELOPS_STORAGE"),
        ("MODELOPS_JOB_METRICS_PORT", "MODELOPS_METRICS_PORT"),
        ("MODELOPS_JOB_CHECKPOINT_SECS", "MODELOPS_JOB_CHECKPOINT_SECONDS"),
        ("MODELOPS_JOB_ARCHIVE", None),  # compared with their common prefix, it would be similar to others
        ("MODELOPS_JOB_", None),
    ]:
        with subtests.test(str((name, near))):
            advice = f"did you mean {near}?" if near else "this version does not have this setting"
            assert problems(**{name: "1"}) == [(name, f"unknown setting; {advice}")]


def test_an_invalid_value_is_refused_with_the_valid_ones(subtests: pytest.Subtests) -> None:
    for name, value, right in [
        ("BATCH_SIZE", "0", "write a number of parameter sets, like 200, or auto"),
        ("BATCH_SIZE", "many", "write a number of parameter sets, like 200, or auto"),
        ("CHECKPOINT_SECONDS", "-1", "write 0 or more"),
        ("CHECKPOINT_SECONDS", "inf", "write a finite number"),
        ("CHECKPOINT_SECONDS", "30s", "write a number"),
        ("CHECKPOINT_BYTES", "1000", "write 1 MiB or more"),
        ("CHECKPOINT_BYTES", "big", BYTES),
        ("CHECKPOINT_BYTES", "64 MooB", BYTES),
        ("SIM_TIMEOUT", "0", "write a number above 0"),
        ("SIM_THREADS", "0", "write 1 or more"),
        ("RETRIES", "-1", "write 0 or more"),
        ("PRIORITY", "urgent", "write low, normal or high"),
        ("TASK_SECONDS", "0", "write a number above 0"),
        ("SLOTS", "0", "write 1 or more"),
        ("INSTALL", "yes", "write auto, never or always"),
        ("INSTALL", "nevr", "write auto, never or always; did you mean never?"),
        ("INSTALL_TIMEOUT", "0", "write a number above 0"),
        ("SLOTS", "x", "write an integer"),
    ]:
        with subtests.test(str((name, value, right))):
            assert problems(**{PREFIX + name: value}) == [(PREFIX + name, f"{value!r} is not valid: {right}")]


def test_a_pool_has_a_name_of_kubernetes(subtests: pytest.Subtests) -> None:
    for field in ["POOL", "MEMORY_POOL"]:
        with subtests.test(field=field):
            right = "small letters, digits and '-', at most 32, like gpu"
            variable = f"MODELOPS_JOB_{field}"
            assert problems(**{variable: "GPU"}) == [(variable, f"'GPU' is not valid: write {right}")]


def test_an_invalid_port_is_refused() -> None:
    for port, right in {"-1": "0 or more", "65536": "65535 or less", "http": "an integer"}.items():
        said = f"{port!r} is not valid: write {right}"
        assert problems(MODELOPS_METRICS_PORT=port) == [("MODELOPS_METRICS_PORT", said)]


def test_all_problems_are_listed_at_once_with_what_to_do() -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment(
            {"MODELOPS_JOB_SLOTS": "x", "MODELOPS_JOB_RETRYS": "2", "MODELOPS_JOB_BATCH_SIZE": "0"}
        )
    lines = str(raised.value).split("\n")
    assert lines[:4] == [
        "the environment's settings are not valid",
        "  MODELOPS_JOB_RETRYS: unknown setting; did you mean MODELOPS_JOB_RETRIES?",
        "  MODELOPS_JOB_BATCH_SIZE: '0' is not valid: write a number of parameter sets, like 200, or auto",
        "  MODELOPS_JOB_SLOTS: 'x' is not valid: write an integer",
    ]
    assert lines[4:] == ["hint: correct or unset these variables; then list all settings: mops settings"]
    assert raised.value.exit_code == 2


def test_the_list_of_settings_has_the_source_and_meaning_of_each_value() -> None:
    lines = Settings.from_environment({"MODELOPS_JOB_SLOTS": "2", "MODELOPS_JOB_RETRIES": "1"}).described()
    fields = list(Settings.model_fields)
    assert [line.name for line in lines] == [
        *(PREFIX + name.upper() for name in fields[: fields.index("scheduler")]),
        *("MODELOPS_SCHEDULER", "MODELOPS_JOB_CLUSTER_TIMEOUT", "MODELOPS_STORAGE", "MODELOPS_METRICS_PORT"),
    ]
    from_environment = {line.name: line.value for line in lines if line.source == "environment"}
    assert from_environment == {"MODELOPS_JOB_SLOTS": 2, "MODELOPS_JOB_RETRIES": 1}
    assert {line.source for line in lines} == {"environment", "default"}
    assert all(line.meaning for line in lines)


def test_settings_are_the_same_after_a_round_trip_through_json() -> None:
    given = Settings(sim_timeout=2.5, storage="az://x", checkpoint_bytes=5 * 2**20, slots=4)
    assert Settings.model_validate(json.loads(json.dumps(given.to_json()))) == given


def test_settings_are_frozen_and_refuse_unknown_names() -> None:
    with pytest.raises(ValidationError):
        Settings().batch_size = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Settings(batchsize=3)  # type: ignore[call-arg]


def test_changes_since_an_earlier_attempt_are_listed_by_variable() -> None:
    before = Settings(batch_size=7).to_json()
    assert Settings(batch_size=9).changes_since(before) == ["MODELOPS_JOB_BATCH_SIZE: 7 before, 9 now"]
    assert Settings(batch_size=7).changes_since(before) == []
    with_limits = Settings(batch_size=7, sim_timeout=1.0, sim_memory=1 << 30).changes_since(before)
    assert with_limits == [
        "MODELOPS_JOB_SIM_TIMEOUT: unset before, 1 now",
        "MODELOPS_JOB_SIM_MEMORY: unset before, 1.0 GiB now",
    ]


def test_settings_pass_through_an_environment_unchanged() -> None:
    """A detached runner gets the settings of the calling process as variables."""
    given = Settings(slots=2, checkpoint_bytes=3 << 20, checkpoint_seconds=0.5, sim_timeout=None, storage="abfs://a/b")
    assert Settings.from_environment(given.to_environment()) == given
    assert Settings().to_environment() == {}


def test_max_failures_is_a_number_or_a_share(subtests: pytest.Subtests) -> None:
    for given, n, allowed in [("7", 1000, 7), ("5%", 1000, 50), ("0.5%", 100, 0.5), ("0", 9, 0)]:
        with subtests.test(str((given, n, allowed))):
            assert Settings(max_failures=given).failures_allowed(n) == allowed


def test_any_other_max_failures_is_refused(subtests: pytest.Subtests) -> None:
    for given in ["-1", "five", "5 %", "1.5"]:
        with (
            subtests.test(str(given)),
            pytest.raises(SettingsError, match="write a number of simulations, like 100, or a share of them, like 5%"),
        ):
            Settings.from_environment({"MODELOPS_JOB_MAX_FAILURES": given})


def test_an_option_overrides_a_variable() -> None:
    environ = {"MODELOPS_JOB_PRIORITY": "low", "MODELOPS_JOB_RETRIES": "3"}
    assert Settings.from_environment(environ, priority="high") == Settings(priority="high", retries=3)
    assert Settings.from_environment(environ, priority=None) == Settings(priority="low", retries=3)
    assert Settings.from_environment({}, priority="high").to_environment() == {"MODELOPS_JOB_PRIORITY": "high"}


# Limits

VALUES: dict[str, st.SearchStrategy[object]] = {
    "sim_timeout": st.none() | st.floats(0.1, 1e6),
    "sim_memory": st.none() | st.integers(32 << 20, 1 << 40),
    "sim_threads": st.integers(1, 64),
    "retries": st.integers(0, 9),
    "import_timeout": st.floats(0.1, 1e6),
    "max_failures": st.none() | st.sampled_from(["7", "5%", "0.5%"]),
    "tasks_per_child": st.integers(0, 99),
    "child_growth": st.integers(0, 1 << 40),
    "batch_size": st.integers(1, 99) | st.just("auto"),
    "slots": st.none() | st.integers(1, 9),
}
SOME = st.fixed_dictionaries({}, optional=VALUES).map(lambda fields: Settings(**fields))


@given_any(SOME, SOME)
def test_given_limits_override_kept_ones_and_the_others_stay(now: Settings, submitted: Settings) -> None:
    """Regression: a retry in a new shell ran without the limits of its job."""
    kept = json.loads(json.dumps(submitted.limits))
    effective = now.over(kept)
    for name in Settings.model_fields:
        is_given = name in now.model_fields_set or name not in kept
        assert getattr(effective, name) == getattr(now if is_given else submitted, name), name
    assert effective.limits.keys() == kept.keys() | now.limits.keys()
    assert effective.over(kept) == effective
    passed_on = Settings.from_environment(effective.to_environment())
    assert (passed_on.limits, passed_on.over(kept)) == (effective.limits, effective), "a runner in another process"


def test_every_limit_may_stand_in_a_study_without_its_prefix() -> None:
    given = {"timeout": 60, "memory": "2 GiB", "threads": 2, "retries": 0}
    given |= {"import_timeout": 60, "tasks_per_child": 100, "child_growth": "1GiB"}
    found = limits_of_study(given, "study.json")
    assert found.keys() == set(LIMITS)
    assert given.keys() == set(LIMIT_KEYS)
    assert (found["sim_timeout"], found["sim_memory"], found["retries"]) == (60.0, 2 << 30, 0)
    assert limits_of_study({"timeout": None, "memory": "none"}, "") == {"sim_timeout": None, "sim_memory": None}
    assert limit_texts({"sim_timeout": 60.0, "sim_memory": None, "retries": 2}) == [
        *("SIM_TIMEOUT 60 s", "SIM_MEMORY none", "RETRIES 2"),
    ]


def test_wrong_limits_of_a_study_are_listed_with_their_places() -> None:
    with pytest.raises(StudyError) as raised:
        limits_of_study({"timeout": -5, "sim_memory": 1, "retries": True, "memory": [], "speed": 1}, "study.json")
    assert [str(problem) for problem in raised.value.problems] == [
        "$.limits.sim_memory: unknown limit; did you mean 'memory'?",
        (
            "$.limits.speed: unknown limit; the limits are timeout, memory, threads, retries, "
            "import_timeout, tasks_per_child, child_growth"
        ),
        "$.limits.timeout: '-5' is not valid: write a number above 0",
        f"$.limits.memory: [] is not valid: {BYTES}",
        "$.limits.retries: 'true' is not valid: write an integer",
    ]


# Every setting is read somewhere


def attributes_read(tree: ast.AST, name: str) -> set[str]:
    """Return the attributes that code reads of objects called ``name`` or ``_name``, and of new ``Settings``."""

    def has_that_name(node: ast.AST) -> bool:
        match node:
            case ast.Name(id=found) | ast.Attribute(attr=found):
                return found in (name, f"_{name}")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="Settings"), attr="from_environment")):
                return True
        return False

    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]
    return {node.attr for node in reads if has_that_name(node.value)}


@functools.cache
def settings_read() -> set[str]:
    """Return the settings that mops reads, directly or through a method of ``Settings``."""
    home = PACKAGE / "settings.py"
    read: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path != home:
            read |= attributes_read(ast.parse(path.read_text()), "settings")
    methods = [node for node in ast.walk(ast.parse(home.read_text())) if isinstance(node, ast.FunctionDef)]
    return read.union(*(attributes_read(method, "self") for method in methods if method.name in read))


def test_every_setting_is_read(subtests: pytest.Subtests) -> None:
    """Users believe that a setting has an effect, so a module other than ``settings.py`` must read each one.

    The test searches the syntax trees. Names in comments, texts and assignments do not count. Modules must call the
    object ``settings``: under another name, the test does not find the read.
    """
    for field in Settings.model_fields:
        with subtests.test(str(field)):
            assert field in settings_read()
