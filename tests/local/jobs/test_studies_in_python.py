"""Studies that a program or notebook gives to `mops.submit` as Python objects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mops
from mops.errors import JobError, StudyError, UsageError
from mops.jobs.job import Job
from mops.settings import Settings
from programs import Ran
from warm import warm

STORAGE = {"local": True, "settings": Settings(slots=1)}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(job: Job) -> list[float]:
    return sorted(job.outputs("output").to_arrow()["y"].to_pylist())


def test_sets_are_a_list_or_a_table() -> None:
    columns = {"x": [1, 2]}
    for sets in ([{"x": 1}, {"x": 2}], pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        job = mops.submit(model="model:run", sets=sets, storage="storage", **STORAGE)
        assert values(job) == [1, 2]
        assert job.status().n_simulations == 2


def test_a_study_is_a_mapping_and_a_null_leaves_a_parameter_out(project: Path) -> None:
    (project / "model.py").write_text("def run(params, seed):\n    return {'y': [params.get('x', -1)]}\n")
    sets = pd.DataFrame({"x": [1, None], "z": [1, 2]}, dtype="Int64")
    study = {"model": "model:run", "parameter_sets": sets, "n_replicates": 2}
    assert values(mops.submit(study, storage="storage", **STORAGE)) == [-1, -1, 1, 1]


def test_a_column_seed_of_a_table_has_the_seeds_as_in_a_file() -> None:
    """The seed was once a parameter of the set: the table ran with other seeds than its Parquet file."""
    sets = pd.DataFrame({"x": [1, 1, 2], "seed": [7, 8, None]}, dtype="Int64")
    sets.to_parquet("sets.parquet", index=False)
    jobs = [
        mops.submit(model="model:run", sets=given, storage="storage", **STORAGE) for given in (sets, "sets.parquet")
    ]
    from_table, from_file = (job.params().to_arrow().to_pylist() for job in jobs)
    assert from_table == from_file
    assert from_table[0]["seeds"] == [7, 8]
    assert from_table[0]["params"] == '{"x":1}'


MODULE = """
import functools


def simulate(params, seed):
    return {"y": [3 * params["x"] + 1]}


class Model:
    def simulate(self, params, seed):
        return {"y": [7]}


def mean(replicates):
    return float(sum(one["output"]["y"][0].as_py() for one in replicates)) / len(replicates)


def doubled(function):
    @functools.wraps(function)
    def inner(params, seed):
        return {"y": [2 * function(params, seed)["y"][0]]}

    return inner


twice = doubled(simulate)
"""


def submitted(folder: Path, submit: str, *, is_cold: bool = False) -> Ran:
    """Run a program that imports a module of the project, and submits."""
    (folder / "code_of_it.py").write_text(MODULE)
    head = "import math\n\nimport code_of_it as it\nimport mops\n\n\n"
    (folder / "program.py").write_text(f"{head}print('program runs')\n{submit}\n")
    if is_cold:
        done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=120)
        return Ran(done.returncode, done.stdout, done.stderr)
    return Ran(*warm().run(["program.py"], dict(os.environ), folder, timeout_s=120))


@pytest.mark.parametrize(("model", "found"), [("it.simulate", [4, 7]), ("it.Model", [7, 7]), ("it.twice", [8, 14])])
def test_functions_and_classes_of_imported_modules_run(project: Path, model: str, found: list[int]) -> None:
    sets = '[{"x": 1}, {"x": 2}]'
    submit = f'mops.submit(model={model}, targets=[it.mean], sets={sets}, name="j", local=True)'
    ran = submitted(project, submit, is_cold=model == "it.simulate")
    assert ran.code == 0, ran.err
    assert ran.out == "program runs\n"  # the program ran once, and not in each child process
    job = mops.open_job("j", "mops-storage", local=True)
    assert values(job) == found
    assert sorted(job.losses().to_arrow()["loss"].to_pylist()) == found


def test_a_module_of_the_working_folder_is_found_below_the_root(project: Path) -> None:
    (project / "deep").mkdir()
    ran = submitted(project / "deep", 'mops.submit(model=it.simulate, sets=[{"x": 1}], name="j", local=True)')
    assert ran.code == 0, ran.err
    spec = mops.open_job("j", "mops-storage", local=True).record.spec
    assert (spec.model, spec.import_folders) == ("code_of_it:simulate", (".", "deep"))


def test_a_module_that_is_imported_from_another_folder_is_named_by_its_file(project: Path) -> None:
    (project / "deep").mkdir()
    (project / "deep" / "far.py").write_text(MODULE)
    head = "import sys\nsys.path.insert(0, 'deep')\nimport far\n"
    ran = submitted(project, f'{head}mops.submit(model=far.simulate, sets=[{{"x": 1}}], name="j", local=True)')
    assert ran.code == 0, ran.err
    assert mops.open_job("j", "mops-storage", local=True).record.spec.model == "deep/far.py:simulate"


@pytest.mark.parametrize(("first", "model"), [(".", "./far.py"), ("deep", "deep/far.py")])
def test_of_two_modules_of_one_name_the_imported_one_runs(project: Path, first: str, model: str) -> None:
    (project / "deep").mkdir()
    for folder in (".", "deep"):
        (project / folder / "far.py").write_text(f"def simulate(params, seed):\n    return {{'y': [{len(folder)}]}}\n")
    head = f"import sys\nsys.path.insert(0, {str(project / first)!r})\nimport far\n"
    run = 'mops.submit(model=far.simulate, sets=[{}], name="j", local=True)'
    ran = submitted(project / "deep", head + run)
    assert ran.code == 0, ran.err
    job = mops.open_job("j", "mops-storage", local=True)
    assert values(job) == [len(first)]
    assert job.record.spec.model in (f"{model}:simulate", "far:simulate")


def test_a_module_outside_the_project_is_named_by_its_file(project: Path) -> None:
    """Regression: the hint advised .mopsignore, or the installation of a library."""
    outside = project / "lib" / "far.py"
    outside.parent.mkdir()
    (project / "here").mkdir()
    (project / "here" / "mops.toml").touch()
    outside.write_text("def simulate(params, seed):\n    return {'y': [1]}\n")
    head = f"import sys\nsys.path.insert(0, {str(outside.parent)!r})\nimport far\n"
    for model in ("far.simulate", "lambda params, seed: far.simulate(params, seed)"):
        ran = submitted(project / "here", head + f"mops.submit(model={model}, sets=[{{}}], local=True)")
        assert f"hint: far is {outside}, which the bundle of the project does not have: move it" in ran.err, model


REFUSED = {
    "mops.submit(model=it.simulate, local=True)": "the call has neither a study nor a model",
    "mops.submit('study.json', model=it.simulate, local=True)": "the call has neither a study nor a model",
    "mops.submit(model=it.simulate, sets=[{}], if_exists='replace')": "if_exists='replace' is unknown",
    "mops.submit(model=it.simulate, sets=[{}], if_exists='open')": "if_exists='open' needs a name",
    "mops.submit(model=3, sets=[{}], local=True)": "an object of type int is not a function or class",
    "mops.submit(model=it.simulate, sets=7, local=True)": "parameter sets cannot be of type int",
    "mops.submit(model=it.simulate, sets=[{'x': print}], local=True)": "a value of the study is not JSON",
    "mops.submit(model=it.simulate, sets=[{'x': math.inf}], local=True)": "$.parameter_sets[0]",
}
TRIES = """
for call in {calls!r}:
    try:
        exec(call)
        print("it ran")
    except mops.errors.MopsError as error:
        print(repr(str(error)))
"""


def test_what_cannot_run_is_refused_with_the_reason(project: Path) -> None:
    ran = submitted(project, TRIES.format(calls=list(REFUSED)))
    assert ran.code == 0, ran.err
    _, *answers = ran.out.splitlines()
    for (call, said), answer in zip(REFUSED.items(), answers, strict=True):
        assert said in answer, call


def test_sets_may_be_the_path_of_a_file(project: Path) -> None:
    (project / "sets.csv").write_text("x\n1\n2\n")
    assert values(mops.submit(model="model:run", sets=Path("sets.csv"), storage="storage", **STORAGE)) == [1, 2]


def test_an_array_as_a_value_is_refused_with_its_parameter() -> None:
    """Regression: the error was one of numpy, without the parameter."""
    with pytest.raises(StudyError, match=r"parameter_sets\[1\].x: a list cannot be a parameter"):
        mops.submit(model="model:run", sets=[{"x": np.array([1.5])}, {"x": np.array([1.0, 2.0])}], **STORAGE)


def test_a_table_that_arrow_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="no table of parameter sets: Arrow cannot read it"):
        mops.submit(model="model:run", sets=pd.DataFrame({"x": [1, "a", None]}), storage="storage", **STORAGE)
    twice = pa.table([[1], [2]], names=["x", "x"])
    with pytest.raises(UsageError, match="two columns 'x'"):
        mops.submit(model="model:run", sets=twice, storage="storage", **STORAGE)


def test_a_job_that_exists_is_opened_resumed_or_refused(project: Path) -> None:
    def submit(x: int, how: str) -> Job:
        sets = [{"x": x}]
        return mops.submit(model="model:run", sets=sets, storage="s", name="j", if_exists=how, **STORAGE)  # type: ignore[call-overload]

    assert values(submit(1, "resume")) == [1]  # it did not exist
    assert submit(1, "open").status().attempt == 1
    assert submit(1, "resume").status().attempt == 1  # complete
    with pytest.raises(JobError, match="exists already"):
        submit(1, "error")
    for how in ("open", "resume"):
        with pytest.raises(JobError, match="another study; what differs: the parameter sets"):
            submit(2, how)
    (project / "notes.txt").write_text("a file that the model does not need")
    (project / "a.ipynb").write_text("{}")
    assert submit(1, "resume").status().attempt == 1
    (project / "model.py").write_text("def run(params, seed):\n    return {'y': [0]}\n")
    with pytest.raises(JobError, match=r"what differs: the file model\.py"):
        submit(1, "open")
    with pytest.raises(UsageError):
        mops.submit(storage="s", **STORAGE)
