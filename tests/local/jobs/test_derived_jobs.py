"""What ``mops.extend``, ``retry`` and ``submit`` say and read: in this process."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mops
from job_folders import folder_of
from job_reads import with_counts
from mops.cli.main import app
from mops.errors import UsageError
from mops.jobs.compare import compare
from mops.jobs.job import Job
from mops.jobs.table import Table
from mops.storage.files import Files
from mops.study.ids_and_seeds import param_id, replicate_seed

MODEL = """
def run(params, seed):
    if params["beta"] < 0:
        raise ValueError("beta is negative")
    rows = {"i": [0, 1], "l": [[params["beta"]], None], "none": [None, None], "when": [None, "2026"]}
    return {"output": rows, "empty": {"n": [seed][:0], "x": [0.5][:0]}}

def told(params, seed, scenario):
    return {"x": [len(scenario)]}

def score(replicates):
    return len(replicates) + sum(one["output"].num_rows + one["empty"].num_rows for one in replicates)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def submit(
    name: str, sets: Sequence[dict[str, Any]], *, targets: Sequence[str] = (), n: int = 2, **options: Any
) -> mops.Job:
    study = {"model": "model:run", "targets": list(targets), "parameter_sets": list(sets)}
    return mops.submit({**study, "n_replicates": n}, name=name, storage="results", **options)


SETS = [{"beta": 0.5}, {"beta": -1.0}, {"beta": 1.5}]


def test_an_extension_reads_the_failures_of_its_parent_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit("first", SETS[:2])
    reads = []
    failures = Job.failures

    def counted(self: Job, **options: Any) -> Table:
        reads.append(self.name)
        return failures(self, **options)

    monkeypatch.setattr(Job, "failures", counted)
    more = job.extend(replicates=3, name="more")
    assert more.status().counts.simulations_failed == 3
    assert reads == ["first"]


def test_an_extension_keeps_the_good_simulations_of_a_set_with_a_failed_one(project: Path) -> None:
    """Regression: all replicates of the set ran again."""
    (project / "model.py").write_text(
        "import pathlib\n\n"
        f"CALLS = pathlib.Path({str(project)!r}, 'calls')\n"
        "BAD = CALLS.with_name('bad')\n\n"
        "def run(params, seed):\n"
        "    with CALLS.open('a') as file:\n"
        "        print(seed, file=file)\n"
        "    if BAD.exists() and str(seed) in BAD.read_text().split():\n"
        "        raise ValueError\n"
        "    return {'output': {'draw': [seed]}}\n\n"
        "def score(replicates):\n"
        "    return sum(one['output']['draw'][0].as_py() for one in replicates)\n"
    )
    seeds = [replicate_seed(param_id({"beta": 0.5}), i) for i in range(5)]
    (project / "bad").write_text(str(seeds[1]))
    job = submit("first", [{"beta": 0.5}], targets=["model:score"], n=3)
    assert job.status().counts.simulations_failed == 1
    (project / "bad").write_text(str(seeds[3]))
    (project / "calls").unlink()
    more = job.extend(replicates=4, name="more")
    assert sorted(map(int, (project / "calls").read_text().split())) == sorted([seeds[1], seeds[3]])
    assert more.status().origins == {"first": 2}
    (project / "bad").unlink()
    (project / "calls").unlink()
    last = more.extend(replicates=5, name="last")
    assert sorted(map(int, (project / "calls").read_text().split())) == sorted(seeds[3:])
    assert [row["draw"] for row in last.outputs("output").to_arrow().sort_by("replicate").to_pylist()] == seeds
    assert last.losses().to_arrow()["loss"].to_pylist() == [float(sum(seeds))]
    assert len(last.best(weights={})) == len(last.best()) == 1
    assert sum(last.status().origins.values()) == 3
    assert last.status().state == "succeeded"


def test_the_tables_of_a_derived_job_read_the_log_of_their_source_once(project: Path) -> None:
    """Regression: each conversion of a table read the logs of all sources again."""
    submit("first", SETS, targets=["model:score"]).retry("all", name="again")
    files, counts = with_counts(Job(Files.open("results"), "again").files)
    again = Job(files, "again", local=True)
    table = again.outputs("output")
    assert [len(table), len(table.to_arrow()), len(again.losses()), len(again.failures())] == [8, 8, 2, 3]
    folder = f"{folder_of('results', 'first').relative_to('results')}/log/"
    reads = {path: n for path, n in counts.of(".json").items() if path.startswith(folder)}
    assert set(reads.values()) == {1}, reads
    assert again.tables()[0].rows == 8


def test_replicates_for_sets_with_explicit_seeds_are_refused_with_what_to_do(project: Path) -> None:
    """The sets of a calibration's round have explicit seeds."""
    job = submit("first", [{"params": {"beta": 0.5}, "seed": 7}])
    with pytest.raises(UsageError, match="the sets have explicit seeds: add seeds with --sets"):
        job.extend(replicates=3, name="more")


def test_an_extension_without_targets_does_not_read_the_parents_rows(project: Path) -> None:
    job = submit("first", SETS[::2])
    shutil.rmtree(folder_of(project / "results", "first") / "outputs")
    assert job.extend(replicates=3, name="more").status().state == "succeeded"


def test_a_misspelled_parameter_of_added_sets_is_refused(project: Path) -> None:
    job = submit("first", SETS[:1])
    for column in ("bta", "Beta"):
        with pytest.raises(UsageError, match=f"no parameter 'beta', but '{column}'") as refused:
            job.extend(sets=[{column: 2.0}], name="more")
        assert "did you mean 'beta'?" in str(refused.value)
    assert not (project / "results" / "jobs" / "more").exists()


def test_wrong_options_of_an_extension_are_refused_before_a_job_exists(project: Path) -> None:
    submit("first", SETS[:1], targets=["model:score"])
    (project / "bad.csv").write_text("beta,seed\n1.0,y\n2.0,-1\n")
    for option, value, what in (
        ("--replicates", "1", "job 'first' has 2 replicates of each parameter set, and an extension removes none"),
        ("--replicates", "0", "0 replicates are not possible"),
        ("--replicates", "1000000000", "1,000,000,000 replicates are not possible"),
        ("--sets", "bad.csv", "bad.csv, line 3, column 'seed': -1 is not an integer from 0 to 2^64 - 1"),
        ("--sets", "none.csv", "there is no file 'none.csv'"),
        ("--target", "model", "'model' names no function"),
        ("--target", "a/b", "'a/b' is not a module"),
    ):
        arguments = ["jobs", "extend", "first", option, value, "--storage", "results"]
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, UsageError)
        assert what in str(error)
    assert [path.name for path in (project / "results" / "jobs").iterdir()] == ["first"]


def test_a_retry_says_that_the_stored_files_run(project: Path) -> None:
    submit("first", SETS)
    (project / "model.py").write_text(MODEL.replace("beta is negative", "no"))
    arguments = ["jobs", "retry", "first", "--verdict", "all", "--name", "again", "--storage", "results"]
    ran = CliRunner().invoke(app, arguments)
    said = "the submitted files, which differ in: model.py (changed); to run the present files: --with-new-code"
    assert said in ran.output.replace("\n", " ")


def test_a_retry_runs_the_repaired_model_and_the_job_remembers_what_ran_before(project: Path) -> None:
    """Regression: a repair of the model meant a new job of all simulations."""
    submit("first", SETS)
    repaired = MODEL.replace('raise ValueError("beta is negative")', 'params = {"beta": 0.25}')
    (project / "model.py").write_text(repaired)
    arguments = ["jobs", "retry", "first", "--with-new-code", "--name", "mended", "--storage", "results"]
    said = CliRunner().invoke(app, arguments).output.replace("\n", " ")
    assert "4 simulations of first ran with other versions of model.py; if the change matters" in said
    mended = mops.open_job("mended", "results")
    assert (mended.status().state, mended.status().mixed_code) == ("succeeded", ("model.py",))
    assert mended.extend(replicates=3, name="more").status().mixed_code == ("model.py",)
    (project / "model.py").write_text(MODEL)
    assert submit("none", SETS[1:2]).status().all_failed
    (project / "model.py").write_text(repaired)
    whole = mops.retry(mops.open_job("none", "results"), new_code=True, name="whole")
    assert (whole.status().counts.simulations_good, whole.status().mixed_code) == (2, ())


def test_a_notebook_replaces_a_model_that_it_has_repaired(project: Path) -> None:
    job = mops.submit(model=lambda params, _: {"y": 1 / params["x"]}, sets=[{"x": 0}, {"x": 2}], storage="results")
    with pytest.warns(UserWarning, match="1 simulation of .* ran with other versions of the model's function"):
        mended = mops.retry(job, model=lambda params, _: {"y": 1 / (params["x"] or 1)})
    assert sorted(mended.outputs("output").to_arrow()["y"].to_pylist()) == [0.5, 1.0]
    assert mended.status().mixed_code == ("the model's function",)


def test_an_option_that_is_elsewhere(project: Path) -> None:
    for option in ("--replicates", "--sets", "--target"):
        ran = CliRunner().invoke(app, ["jobs", "submit", "study.json", option, "3"])
        assert isinstance(ran.exception, UsageError)
        assert f"has no option {option}" in str(ran.exception)
        assert f"mops jobs extend JOB {option}" in str(ran.exception)
    misspelled = CliRunner().invoke(app, ["jobs", "submit", "study.json", "--nam", "x"])
    assert "--name" in misspelled.output


def test_reused_rows_have_every_kind_of_column(project: Path) -> None:
    """Lists, columns without values, outputs without rows, and values that are missing in one job only."""
    submit("first", SETS[:1], targets=["model:score"])
    submit("second", SETS[2:], targets=["model:score"])
    reused = submit("reused", [*SETS[::2], {"beta": 2.5}], targets=["model:score"], reuse=True)
    whole = submit("whole", [*SETS[::2], {"beta": 2.5}], targets=["model:score"])
    assert reused.record.reuse
    assert [(source.job, source.simulations) for source in reused.record.reuse] == [("second", 2), ("first", 2)]
    assert not whole.record.reuse
    order = [("group", "ascending"), ("replicate", "ascending")]
    for name in ("output", "empty"):
        one, other = (job.outputs(name).to_arrow().sort_by(order) for job in (reused, whole))
        assert one.schema == other.schema
        assert one.equals(other)
    assert all(two.is_equal for two in compare(reused, whole))
    assert reused.verify() == []


def test_a_damaged_record_of_another_job_does_not_matter(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    submit("first", SETS[:1])
    submit("broken", SETS[:1])
    (project / "results" / "jobs" / "broken" / "job.json").write_text("{")
    reused = submit("reused", SETS[:1], reuse=True)
    assert "job broken is not reused" in caplog.text
    assert reused.record.reuse


def test_another_scenario_is_not_reused(project: Path) -> None:
    study = {"model": "model:told", "targets": [], "parameter_sets": SETS}
    for number, scenario in enumerate(["one", "other", "one"]):
        job = mops.submit({**study, "scenario": scenario}, name=f"job{number}", storage="results", reuse=True)
        assert bool(job.record.reuse) == (number == 2)
        assert set(job.outputs("output").to_arrow()["x"].to_pylist()) == {len(scenario)}


def test_a_derived_job_knows_the_best_losses_that_it_takes_over(project: Path) -> None:
    """Regression: 'best loss so far' of a retried or extended job left out its parent's losses."""
    first = submit("first", [{"beta": 3.0}], targets=["model:score"])
    best = first.best(1).to_arrow().to_pylist()[0]
    seen: list[tuple[Any, ...]] = []
    extended = first.extend(
        sets=[{"beta": 9.0}],
        name="extended",
        on_progress=lambda now: seen.append(tuple((one.loss, one.param_id) for one in now.best)),
    )
    assert extended.status().state == "succeeded"
    assert seen[0][0] == (best["loss"], best["param_id"]), "before a simulation has run"
    assert extended.status().origins == {"first": 2}
