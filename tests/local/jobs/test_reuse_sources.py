"""Which jobs ``mops.submit(reuse=True)`` takes simulations from: in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mops
from job_folders import folder_of
from mops.errors import JobError
from mops.jobs.reuse import Found, Offer, Refused, match
from mops.storage.backends.base import Spool
from mops.storage.job_records import keep_options, read_options
from mops.study.groups import GroupChunk

MODEL = """
import os

def run(params, seed):
    return {"output": {"beta": [params["beta"]], "seed": [seed]}}

def score(replicates):
    return len(replicates)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "sets.csv").write_text("beta\n0.5\n")
    return tmp_path


def submit(name: str, *, file: str = "study.json", sets: Any = "sets.csv", **options: Any) -> mops.Job:
    study = {"model": "model:run", "targets": ["model:score"], "parameter_sets": sets}
    Path(file).write_text(json.dumps(study))
    return mops.submit(file, name=name, storage="results", **options)


def n_reused(job: mops.Job) -> int:
    assert job.status().state == "succeeded"
    return sum(source.simulations for source in job.record.reuse)


def test_without_a_source_a_warning_says_so(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert n_reused(submit("first", reuse=True)) == 0
    assert "no simulation is reused, because no complete job has run one of this study" in caplog.text


def change(file: Path) -> None:
    file.write_text("changed = 1\n")


def test_files_that_the_model_does_not_read_may_differ(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    submit("first")
    for name in ("README.md", "target.py", "rates.csv"):
        change(project / name)
    assert n_reused(submit("second", reuse=True)) == 1, caplog.text  # which names the file


def test_a_mended_target_in_the_file_of_the_model(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = submit("first")
    file = project / "model.py"
    file.write_text("# mended\n" + MODEL.replace("len(replicates)", "10 * len(replicates)"))
    second = submit("second", reuse=True)
    assert n_reused(second) == 1
    assert second.losses().to_arrow()["loss"].to_pylist() == [10.0]
    assert first.rescore(name="third").losses().to_arrow()["loss"].to_pylist() == [10.0]
    file.write_text(MODEL.replace('params["beta"]]', 'params["beta"] + 1]'))
    assert n_reused(submit("fourth", reuse=True)) == 0
    assert "job second is not reused, because its files differ: model.py (changed)" in caplog.text
    with pytest.raises(JobError, match=r"the model of job 'first' may have changed since the submit: model\.py"):
        first.rescore(name="fifth")
    assert first.rescore(name="fifth", trust_model=True).status().state == "succeeded"


def test_a_file_that_left_the_bundle_counts(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    (project / ".mopsignore").write_text("none\n")
    (project / "table.bin").write_text("1")
    submit("first")
    (project / ".mopsignore").write_text("*.bin\n")
    assert n_reused(submit("second", reuse=True)) == 0
    assert "table.bin (removed)" in caplog.text


def test_sets_whose_name_is_in_another_file_count(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    (project / "script.R").write_text('SETS = "sets.csv"\n')
    submit("first")
    assert n_reused(submit("second", reuse=True)) == 1
    (project / "sets.csv").write_text("beta\n0.5\n1.5\n")
    assert n_reused(submit("third", reuse=True)) == 0
    assert "its files differ: sets.csv (changed)" in caplog.text


def test_variables_without_a_stored_value_are_not_reused(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKEN", "one")
    submit("first", env={"TOKEN": None})
    assert n_reused(submit("second", env={"TOKEN": None}, reuse=True)) == 0
    assert "no simulation is reused, because mops does not store the value of --env TOKEN" in caplog.text
    assert n_reused(submit("third", reuse=True)) == 0
    assert "job second is not reused, because mops does not store the value of --env TOKEN" in caplog.text


def test_every_attempt_of_a_source_must_have_the_same_variables(project: Path) -> None:
    first = submit("first", env={"MODE": "a"})
    record = first.record
    for mode in "ba":
        keep_options(
            first.files, record, read_options(first.files, record), replace(record.options, env={"MODE": mode})
        )
    assert n_reused(submit("second", env={"MODE": "a"}, reuse=True)) == 0
    assert n_reused(submit("third", env={"MODE": "b"}, reuse=True)) == 0
    assert n_reused(submit("fourth", env={"MODE": "a"}, reuse=True)) == 1, "the second job's"


def remove_bundle(project: Path) -> None:
    for bundle in (project / "results" / "bundles").iterdir():
        bundle.unlink()
    shutil.rmtree(project / "cache")


def remove_groups(project: Path) -> None:
    (folder_of(project / "results", "first") / "params.parquet").unlink()


def damage_options(project: Path) -> None:
    folder = folder_of(project / "results", "first") / "options"
    folder.mkdir()
    (folder / "00000001.json").write_text("{")


@pytest.mark.parametrize("damage", [remove_bundle, remove_groups, damage_options])
def test_a_damaged_job_is_left_out(
    project: Path,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    (project / ".mopsignore").write_text("cache\n")
    submit("first")
    damage(project)
    assert n_reused(submit("second", sets=[{"beta": 0.5}], reuse=True)) == 0
    assert "job first is not reused, because it cannot be read" in caplog.text


def test_a_job_that_goes_during_the_submit_is_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    submit("first")
    submit("second")

    def match_later(
        groups: Iterator[GroupChunk], offers: list[Offer], spool: Callable[[], Spool], refused: Refused
    ) -> Found:
        (folder_of(project / "results", "second") / "params.parquet").write_bytes(b"")
        return match(groups, offers, spool, refused)

    monkeypatch.setattr("mops.jobs.reuse.match", match_later)
    third = submit("third", reuse=True)
    assert "job second is not reused, because it cannot be read" in caplog.text
    assert [source.job for source in third.record.reuse] == ["first"]
    assert n_reused(third) == 1


def test_a_warning_names_only_a_job_whose_simulations_run_again(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: mops also warned when another job had all of the simulations."""
    for name in ("rates.csv", "other.csv"):
        (project / name).write_text("1\n")
    submit("first", sets=[{"beta": 0.5}, {"beta": 1.5}])
    change(project / "rates.csv")
    submit("second", sets=[{"beta": 0.5}])
    submit("other", sets=[{"beta": 7.5}], env={"MODE": "a"})
    assert n_reused(submit("third", sets=[{"beta": 0.5}], reuse=True)) == 1
    assert "is not reused" not in caplog.text
    assert n_reused(submit("fourth", sets=[{"beta": 0.5}, {"beta": 1.5}], reuse=True)) == 1
    assert (
        "job first is not reused, because its files differ: rates.csv (changed); to run again: 1 simulation"
        in caplog.text
    )
    caplog.clear()
    change(project / "other.csv")
    assert n_reused(submit("fifth", sets=[{"beta": 1.5}], reuse=True)) == 0
    assert (
        "job fourth is not reused, because its files differ: other.csv (changed); to run again: 1 simulation"
        in caplog.text
    )


def test_reports_do_not_change_the_project(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a report in the project was a new file of the model for --reuse and rescore."""
    first = submit("first")
    first.report().save(project / "report-first.html")
    second = submit("second", reuse=True)
    assert second.record.bundle == first.record.bundle
    assert n_reused(second) == 1
    rescored = first.rescore(name="rescored")
    assert rescored.record.bundle == first.record.bundle
    assert "differ" not in caplog.text
