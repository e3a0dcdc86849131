"""`mops.jobs`, `mops.check`, `mops.sample`, `mops.settings` and `mops.connect` do what the commands do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mops
import mops.jobs.listing
from mops.errors import ModelError, StudyError, TrialFailed, UsageError
from mops.settings import Settings

MODEL = """
import os

def run(params, seed):
    if params["beta"] > 1:
        raise ValueError("too large")
    return {"y": [params["beta"]]}


def unseeded(params, seed):
    return {"y": [int.from_bytes(os.urandom(4))]}


def near(params, replicates):
    return params["beta"]
"""
SPACE = {"beta": {"min": 0.1, "max": 0.5}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sample_is_drawn_from_a_mapping_or_a_file_and_can_be_submitted(project: Path) -> None:
    (project / "space.json").write_text('{"beta": {"min": 0.1, "max": 0.5}}')
    sets = mops.sample(SPACE, 4, seed=3)
    assert sets.to_arrow().equals(mops.sample(project / "space.json", 4, seed=3).to_arrow())
    assert sets.column_names == ["beta"]
    assert all(0.1 <= beta <= 0.5 for beta in sets.to_arrow()["beta"].to_pylist())
    assert len(mops.sample({"beta": {"min": 0.1, "max": 0.5, "points": 3}}, method="grid")) == 3
    job = mops.submit(model="model:run", sets=sets, storage="s", settings=Settings(slots=1), local=True)
    assert job.params().to_arrow()["beta"].to_pylist() == sets.to_arrow()["beta"].to_pylist()
    with pytest.raises(StudyError, match="the space"):
        mops.sample({"beta": {"min": 0.1}}, 4)
    with pytest.raises(UsageError, match="grid"):
        mops.sample(SPACE, 4, method="grid")


def test_check_says_what_a_study_would_run_and_whether_it_is_reproducible(project: Path) -> None:
    sets = [{"beta": 0.1}, {"beta": 0.2}]
    checked = mops.check(model="model:run", targets=["model:near"], sets=sets, replicates=3)
    assert (checked.model, checked.targets, checked.n_parameter_sets, checked.n_simulations) == (
        "model:run",
        ("model:near",),
        2,
        6,
    )
    assert checked.reproducible
    assert checked.trial is not None
    assert checked.trial.losses == {("model:near", "loss"): 0.1}
    unrun = mops.check(model="model:unseeded", sets=sets, run=False)
    assert (unrun.trial, unrun.reproducible) == (None, None)
    assert not (project / "mops-storage").exists()


def test_check_raises_what_submit_would_find(project: Path) -> None:
    with pytest.raises(TrialFailed, match="error: ValueError: too large"):
        mops.check(model="model:run", sets=[{"beta": 2.0}])
    with pytest.raises(ModelError, match="has no 'nope'"):
        mops.check(model="model:nope", sets=[{}])
    with pytest.raises(UsageError, match="neither a study nor a model") as raised:
        mops.check()
    assert raised.value.where == "mops.check"


def test_jobs_lists_jobs_by_state_and_condition(project: Path) -> None:
    assert len(mops.jobs(storage="s")) == 0
    for name, beta in (("good", 0.1), ("bad", 2.0)):
        mops.submit(model="model:run", sets=[{"beta": beta}], name=name, storage="s", settings=Settings(slots=1))
    listed = mops.jobs(storage="s")
    assert listed.column_names == ["job", "state", "groups", "n_groups", "simulations_failed", "created", "error"]
    assert {row["job"]: (row["state"], row["simulations_failed"]) for row in listed.to_arrow().to_pylist()} == {
        "good": ("succeeded", 0),
        "bad": ("partial", 1),
    }
    assert mops.jobs("partial", storage="s").to_arrow()["job"].to_pylist() == ["bad"]
    assert mops.jobs(storage="s", where={"simulations_failed": 0}).to_arrow()["job"].to_pylist() == ["good"]
    with pytest.raises(UsageError, match="unknown state: 'partly'"):
        mops.jobs(["partly"], storage="s").to_arrow()


def test_settings_lists_the_values_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELOPS_JOB_BATCH_SIZE", "7")
    rows = {row["name"]: row for row in mops.settings().to_arrow().to_pylist()}
    assert (rows["MODELOPS_JOB_BATCH_SIZE"]["value"], rows["MODELOPS_JOB_BATCH_SIZE"]["source"]) == ("7", "environment")


def test_connect_removes_the_profile_and_names_a_missing_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    mops.disconnect()
    with pytest.raises(UsageError, match="kubeconfig"):
        mops.connect("studies", kubeconfig=tmp_path / "none")


def test_a_package_that_is_also_a_function_can_be_called_before_and_after_its_import() -> None:
    """`mops.jobs` and `mops.settings` are modules too, and an import of a submodule sets them as attributes."""
    listed = "len(mops.jobs(storage='memory://x'))"
    more = f"{listed}, len(mops.settings()) > 9, mops.settings.PREFIX"
    program = f"import mops; print({listed}); import mops.jobs.job; print({more})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["0", "0", "True", "MODELOPS_JOB_"]
    assert mops.jobs.listing.STATES  # type: ignore[attr-defined]


def test_a_misspelled_method_is_an_error_with_the_nearest(project: Path) -> None:
    with pytest.raises(UsageError) as refused:
        mops.calibrate(SPACE, model="model:run", targets=["model:near"], method="tpee")
    assert refused.value.hint == "did you mean 'tpe'?"


def test_a_calibration_without_targets_names_what_was_given(project: Path, subtests: pytest.Subtests) -> None:
    """Regression: without a study, the error named a file study.json that nobody had given."""
    for study, what, where in [
        (None, "the calibration has no target", "the options"),
        ({"model": "model:run"}, "the study has no target", "the study given to mops"),
        ("study.json", "the study has no target", "study.json"),
    ]:
        with subtests.test(study=study, what=what, where=where):
            (project / "study.json").write_text('{"model": "model:run", "parameter_sets": [{"beta": 0.2}]}')
            with pytest.raises(UsageError) as refused:
                mops.calibrate(SPACE, study, model="model:run", local=True)
            assert (refused.value.what, refused.value.where) == (what, where)
