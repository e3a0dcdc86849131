"""Studies that a program or notebook gives to `mops.submit` as Python objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import mops
from mops.errors import JobError, ModelError, UsageError
from mops.jobs.job import Job
from mops.settings import Settings

STORAGE = {"local": True, "settings": Settings(slots=1)}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(job: Job) -> list[float]:
    return sorted(job.outputs("output").to_table()["y"].to_pylist())


@pytest.mark.parametrize(
    "sets",
    [
        [{"x": 1}, {"x": 2}],
        pd.DataFrame({"x": [1, 2]}),
        pl.DataFrame({"x": [1, 2]}),
        pa.table({"x": [1, 2]}),
    ],
    ids=["dicts", "pandas", "polars", "pyarrow"],
)
def test_sets_are_a_list_or_a_table(sets: object) -> None:
    job = mops.submit(model="model:run", sets=sets, storage="storage", **STORAGE)
    assert values(job) == [1, 2]
    assert job.name.startswith("test-sets") or job.status().n_simulations == 2


def test_a_study_is_a_mapping_and_a_null_leaves_a_parameter_out(project: Path) -> None:
    (project / "model.py").write_text("def run(params, seed):\n    return {'y': [params.get('x', -1)]}\n")
    sets = pd.DataFrame({"x": [1, None], "z": [1, 2]}, dtype="Int64")
    study = {"model": "model:run", "parameter_sets": sets, "n_replicates": 2}
    assert values(mops.submit(study, storage="storage", **STORAGE)) == [-1, -1, 1, 1]


PROGRAM = """
import math
import threading
from math import floor as down
from pathlib import Path

import numpy as np
import pandas as pd

import mops

SCALE = 3
TABLE = np.arange(4.0)
HERE = Path("model.py")
GUARD = threading.Lock()
CLOSED = [GUARD]


def helper(x):
    return down(SCALE * x + math.sqrt(TABLE[1]))


class Model:
    offset = SCALE

    def simulate(self, params, seed):
        print("it runs")
        return {"y": [helper(params["x"]) + self.offset]}


def simulate(params, seed) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rng.random()
    return pd.DataFrame({"y": [helper(value) for value in (params["x"],)]})


def mean(replicates: list[pd.DataFrame]) -> float:
    return float(np.mean([one["output"]["y"].to_numpy().mean() for one in replicates]))


def guarded(params, seed):
    with CLOSED[0]:
        return {"y": [1]}


print("program runs")
SUBMIT
"""


def run_program(folder: Path, submit: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM.replace("SUBMIT", submit))
    return subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_functions_of_a_program_run_in_child_processes_with_what_they_use(project: Path) -> None:
    submit = 'mops.submit(model=simulate, targets=[mean], sets=[{"x": 1}, {"x": 2}], storage="s", name="j", local=True)'
    ran = run_program(project, submit)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "program runs\n"  # the program ran once, and not in each child process
    job = mops.open_job("j", "s", local=True)
    assert values(job) == [4, 7]
    assert sorted(job.losses().to_pandas()["loss"]) == [4.0, 7.0]
    assert job.record.spec.model == "mops_submitted.py:simulate"


def test_a_class_of_a_program_is_a_model(project: Path) -> None:
    ran = run_program(project, 'mops.submit(model=Model, sets=[{"x": 1}], storage="s", name="j", local=True)')
    assert ran.returncode == 0, ran.stderr
    assert values(mops.open_job("j", "s", local=True)) == [7]


def test_the_same_functions_make_the_same_bundle(project: Path) -> None:
    for name in ("one", "two"):
        run_program(project, f'mops.submit(model=simulate, sets=[{{"x": 1}}], storage="s", name="{name}", local=True)')
    one, two = (mops.open_job(name, "s", local=True).record for name in ("one", "two"))
    assert one.spec == two.spec
    submitted = {name: (project / "program.py").read_text() for name in ("one", "two")}
    assert submitted["one"] == submitted["two"]


@pytest.mark.parametrize(
    ("submit", "said"),
    [
        ("mops.submit(model=guarded, sets=[{}], local=True)", "guarded uses 'CLOSED', which cannot be copied"),
        ("mops.submit(model=lambda params, seed: 1, sets=[{}], local=True)", "a lambda has no name"),
        ("mops.submit(model=simulate, local=True)", "the call has neither a study nor a model"),
        ("mops.submit('study.json', model=simulate, local=True)", "the call has neither a study nor a model"),
        ("mops.submit(model=3, sets=[{}], local=True)", "an object of type int is not a function or class"),
        ("mops.submit(model=simulate, sets=7, local=True)", "parameter sets of type int"),
        ("mops.submit(model=simulate, sets=[{'x': HERE.open}], local=True)", "a value of the study is not JSON"),
        ("mops.submit(model=simulate, sets=[{'x': math.inf}], local=True)", "$.parameter_sets[0]"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(project: Path, submit: str, said: str) -> None:
    ran = run_program(project, submit)
    assert ran.returncode == 1
    assert said in ran.stderr


def test_a_function_inside_another_is_refused() -> None:
    def inner(params: dict[str, float], seed: int) -> dict[str, list[float]]:
        return {"y": [1.0]}

    with pytest.raises(ModelError, match="defined inside something else"):
        mops.submit(model=inner, sets=[{}], storage="storage", **STORAGE)


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
