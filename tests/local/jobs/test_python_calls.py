"""A study run by `mops.submit`, as a notebook does."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mops
from mops.cli.main import app
from mops.errors import JobError, StudyError, UsageError
from mops.settings import Settings
from mops.storage.progress_record import Progress
from warm import warm


def test_a_path_names_the_storage_and_an_error_in_on_progress_reaches_the_caller(tmp_path: Path) -> None:
    """A Path raised an AttributeError; what on_progress raised was in the job's log only."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    (tmp_path / "study.json").write_text('{"model": "model:run", "parameter_sets": [{"x": 1}, {"x": 2}]}')

    def broken(_: Progress) -> None:
        raise ZeroDivisionError("a bar without a width")

    storage, settings = tmp_path / "storage", Settings(slots=1)
    with pytest.warns(RuntimeWarning, match=r"job 'waves' continues(.|\n)*in broken(.|\n)*a bar without a width"):
        job = mops.submit(
            tmp_path / "study.json", storage=storage, name="waves", settings=settings, local=True, on_progress=broken
        )
    assert job.status().state == "succeeded"
    assert len(mops.open_job("waves", storage).outputs("output")) == 2


def test_a_job_with_many_small_parts_has_few_after_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    sets = ", ".join(f'{{"x": {x}}}' for x in range(40))
    (tmp_path / "study.json").write_text(f'{{"model": "model:run", "parameter_sets": [{sets}]}}')
    settings = Settings(slots=1, checkpoint_seconds=0, batch_size=1)
    with caplog.at_level("INFO"):
        job = mops.submit(tmp_path / "study.json", storage="memory://many", name="many", settings=settings, local=True)
    assert "many: merged small parts: 40 parts are now 1" in caplog.text
    assert len(job.paths("output")) == 1
    assert sorted(job.outputs("output").to_arrow()["y"].to_pylist()) == list(range(40))
    assert job.verify() == []


RANKED = """
def run(params, seed):
    return {"y": [params["x"]]}


def near(params, replicates):
    if params["x"] == 3:
        raise ValueError("three")
    return abs(params["x"] - 2)


def both(params, replicates):
    return {"low": params["x"], "high": -10 * params["x"]}
"""


def test_best_ranks_sets_by_the_weighted_sum_of_their_losses(tmp_path: Path) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(RANKED)
    study = {
        "model": "model:run",
        "targets": ["model:near", "model:both"],
        "parameter_sets": [{"x": x} for x in range(5)],
    }
    job = mops.submit(study, project=tmp_path, storage=tmp_path / "s", settings=Settings(slots=1), local=True)
    equal = {"near": 1.0, "both.low": 1.0, "both.high": 1.0}
    best = job.best(3, weights=equal).to_arrow()
    assert best.column_names == ["group", "loss", "near", "both.low", "both.high", "x", "param_id"]
    assert best["x"].to_pylist() == [4, 2, 1]  # 3 has no loss of `near`
    assert best["loss"].to_pylist() == [2 + 4 - 40, 0 + 2 - 20, 1 + 1 - 10]
    assert job.best(weights={"near": 1.0}).to_arrow()["x"].to_pylist() == [2, 1, 0, 4]
    assert job.best(1, weights={"near": 1.0, "both.high": 0.2}).to_arrow()["loss"].to_pylist() == [2 - 8.0]
    with pytest.raises(UsageError, match="no loss has the label 'nea'") as raised:
        job.best(weights={"nea": 1.0}).to_arrow()
    assert raised.value.hint == "the labels are 'near', 'both.low', 'both.high'"
    for n in (0, -1, 1.5, "3"):
        with pytest.raises(UsageError, match="is not a number of parameter sets"):
            job.best(n)
    for weight in (math.nan, math.inf):
        with pytest.raises(UsageError, match=f"the weight of 'near' is {weight}"):
            job.best(weights={"near": weight}).to_arrow()
        with pytest.raises(UsageError, match=f"the weight of 'near' is {weight}"):
            job.report(weights={"near": weight})
    each = job.best(2).to_arrow()
    assert each.column_names[:3] == ["ranked_by", "group", "loss"]
    assert list(zip(each["ranked_by"].to_pylist(), each["x"].to_pylist(), strict=True)) == [
        *(("near", 2), ("near", 1), ("both.low", 0), ("both.low", 1), ("both.high", 4), ("both.high", 3)),
    ]
    assert each["loss"].to_pylist() == [0, 1, 0, 1, -40, -30]
    arguments = ["jobs", "results", job.name, "--best", "1", "--storage", job.files.url]
    said = CliRunner().invoke(app, arguments).output
    assert "ranked by both.low" in said
    assert "each of 3 losses ranks the sets" in said
    weighted = CliRunner().invoke(app, [*arguments, "--target", "both", "--weight", "both.low=1", "--json"]).output
    assert [row["x"] for row in json.loads(weighted)] == [0]


def test_best_keeps_parameters_that_have_the_name_of_a_loss(tmp_path: Path) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(RANKED)
    sets = [{"x": x, "loss": 10 - x, "near": 0.5} for x in (1, 2)]
    study = {"model": "model:run", "targets": ["model:near"], "parameter_sets": sets}
    job = mops.submit(study, project=tmp_path, storage=tmp_path / "s", settings=Settings(slots=1), local=True)
    best = job.best().to_arrow()
    assert best.column_names == ["group", "loss", "near", "x", "param.loss", "param.near", "param_id"]
    assert best["loss"].to_pylist() == [0, 1]
    assert best["param.loss"].to_pylist() == [8, 9]


def in_project(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    return {"model": "model:run", "project": tmp_path, "storage": tmp_path / "s", "settings": Settings(slots=1)}


def test_notes_on_a_study_are_warnings_at_the_line_of_the_call(tmp_path: Path) -> None:
    """Only the command line showed them."""
    call = in_project(tmp_path)
    with pytest.warns(UserWarning, match="'bta' is in 1 of 2 sets") as seen:
        job = mops.submit(sets=[{"x": 1}, {"x": 2, "bta": 3}], name="notes", local=True, **call)
    assert {Path(one.filename) for one in seen if one.category is UserWarning} == {Path(__file__)}
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [2 * params['x']]}\n")
    with pytest.warns(UserWarning, match=r"runs the submitted files, which differ in: model.py") as seen:
        job.extend(replicates=2, settings=Settings(slots=1))
    assert {Path(one.filename) for one in seen if one.category is UserWarning} == {Path(__file__)}


LOGGED = """
import logging

import mops
from mops.settings import Settings

logging.basicConfig(format="HANDLER %(message)s")
settings = Settings(slots=1)
job = mops.submit(model="model:run", sets=[{"x": 1}], name="logged", storage="s", settings=settings, local=True)
print(job.logs())
logger = logging.getLogger("mops")
assert (logger.level, logger.propagate, logger.handlers) == (logging.INFO, True, [])
logging.getLogger().handlers[0].setLevel("WARNING")  # docs/how-to/follow-a-job.md
job = mops.submit(model="model:run", sets=[{"x": 1}], name="handled", storage="s", settings=settings, local=True)
print(job.logs())
logger.setLevel(logging.WARNING)
mops.submit(model="model:run", sets=[{"x": 1}], name="quiet", storage="s", settings=settings, local=True)
"""


def test_the_log_has_the_lines_of_mops_and_the_program_decides_on_the_console(tmp_path: Path) -> None:
    """A job that Python ran had an empty log."""
    in_project(tmp_path)
    code, out, err = warm().run(["-c", LOGGED], dict(os.environ), tmp_path, timeout_s=120)
    assert code == 0, err
    assert "INFO logged: attempt 1 ends: every simulation has run" in out
    assert "HANDLER logged: attempt 1 ends" in err
    assert "INFO handled: attempt 1 ends" in out
    assert "handled" not in err
    assert "quiet" not in err


def test_targets_without_a_list_and_an_unknown_format_are_errors(tmp_path: Path) -> None:
    """The first letter of a target was taken for a target, and an export raised a ValueError."""
    call = in_project(tmp_path)
    job = mops.submit(sets=[{"x": 1}], name="listless", local=True, **call)
    for targets, said in (("model:run", "'model:run'"), (in_project, "of type function")):
        for attempt in (
            lambda targets=targets: job.extend(targets=targets),
            lambda targets=targets: mops.submit(sets=[{"x": 1}], targets=targets, local=True, **call),
        ):
            with pytest.raises(UsageError, match=f"the targets are {said}, not a list"):
                attempt()
    with pytest.raises(UsageError, match="the format 'cvs' is unknown") as raised:
        job.export(tmp_path / "out", "cvs")
    assert raised.value.hint == "did you mean 'csv'?"


def test_an_argument_of_a_wrong_type_is_refused_with_the_form_to_write(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Regression: errors such as AttributeError and TypeError came from inside mops."""
    call: dict[str, Any] = in_project(tmp_path) | {"sets": [{"x": 1}], "local": True}
    job = mops.submit(**call, name="typed")
    for wrong, said in (
        (lambda: mops.submit(**call, name=5), "use lower-case letters, digits and single hyphens"),
        (lambda: job.extend(replicates=2, name=Path("a")), "use lower-case letters, digits and single hyphens"),
        (lambda: mops.submit(**call | {"settings": {"slots": 1}}), "write settings=mops.settings.Settings("),
        (lambda: mops.check(model="model:run", sets=[{"x": 1}], settings={}), "write settings=mops.settings.Settings("),
        (lambda: mops.submit(**call, env=["A=1"]), 'write env={"NAME": "VALUE"}'),
        (lambda: mops.check(model="model:run", sets=[{"x": 1}], env=["A=1"]), 'write env={"NAME": "VALUE"}'),
        (
            lambda: mops.submit(**call, pod={"memory": "4Gi"}),
            "pass an object of mops.storage.job_options.PodOptions",
        ),
        (lambda: job.extend(replicates="2"), "write a number, like replicates=10"),
        (lambda: mops.resume("typed"), "open the job: mops.resume(mops.open_job(name))"),
        (lambda: mops.retry("typed"), "open the job: mops.retry(mops.open_job(name))"),
        (lambda: mops.open_job(Path("typed")), "write the name: mops.open_job('waves')"),
        (lambda: mops.open_job(None), "write the name: mops.open_job('waves')"),
    ):
        with subtests.test(said), pytest.raises(UsageError, match=re.escape(f"hint: {said}")):
            wrong()


def test_wrong_sets_of_an_extension_are_named_as_such(tmp_path: Path) -> None:
    job = mops.submit(sets=[{"x": 1}], name="grows", local=True, **in_project(tmp_path))
    with pytest.raises(StudyError, match="the added parameter sets are not valid") as raised:
        job.extend(sets=str(tmp_path / "more.csv"))
    assert "there is no file '" in str(raised.value)
    assert raised.value.where == "the added sets"


def test_a_job_without_targets_has_nothing_to_score_again(tmp_path: Path) -> None:
    """A rescoring ran its failed simulations again."""
    job = mops.submit(sets=[{"x": 1}], name="plain", local=True, **in_project(tmp_path))
    with pytest.raises(JobError, match="job 'plain' has no targets") as raised:
        job.rescore()
    assert raised.value.hint == "add one: mops jobs extend plain --target MODULE:NAME"
