"""Functions that a notebook, a program or another function defines run as models and targets."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mops
from mops.errors import JobError, ModelError
from mops.jobs.job import Job
from mops.settings import Settings
from mops.storage.paths import bundle_path
from programs import Ran
from warm import warm

STORAGE: Any = {"local": True, "settings": Settings(slots=1)}

PROGRAM = """
from dataclasses import dataclass

import helper
import mops


@dataclass
class Growth:
    names: frozenset
    scale: float = 1.0

    def of(self, x):
        return self.scale * x


growth = Growth(frozenset({"alpha", "beta", "gamma"}), scale=2.0)


def grown(x):
    return growth.of(x)


def simulate(params, seed):
    return {"y": [helper.shifted(grown(params["x"]))]}


def distance(replicates):
    return abs(replicates[0]["output"]["y"][0].as_py() - 5)


"""
SUBMIT = """
job = mops.submit(
    model=simulate, targets=[distance], sets=[{"x": 1}, {"x": 2}], replicates=2, name="j", local=True, if_exists="IF"
)
print(sorted(job.outputs("output").to_arrow()["y"].to_pylist()), job.status().attempt)
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(laid(tmp_path))
    return tmp_path


def laid(folder: Path) -> Path:
    (folder / "mops.toml").touch()
    (folder / "helper.py").write_text("def shifted(y):\n    return y + 1\n")
    return folder


@pytest.fixture(scope="module")
def folder_of_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = laid(tmp_path_factory.mktemp("program"))
    done = ran(PROGRAM + SUBMIT.replace("IF", "error"), folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def with_job(folder_of_program: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a project in which the program has submitted a job ``j``, which no test changes."""
    monkeypatch.chdir(folder_of_program)
    return folder_of_program


def python(*arguments: str, folder: Path) -> Ran:
    return Ran(*warm().run(list(arguments), dict(os.environ), folder, timeout_s=120))


def ran(text: str, folder: Path) -> Ran:
    """Run a program that has no file."""
    return python("-c", text, folder=folder)


def interpreted(text: str) -> Ran:
    """Run a program that a new interpreter reads from its standard input."""
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def opened(name: str = "j") -> Job:
    return mops.open_job(name, "mops-storage", local=True)


def command(*words: str, code: int = 0) -> Ran:
    done = Ran(*warm().run(list(words), dict(os.environ), Path.cwd(), timeout_s=60))
    assert done.code == code, done.err
    return done


def test_a_program_without_a_file_runs_its_functions_and_finds_its_job_again(project: Path) -> None:
    """Each interpreter has other hashes, so another order of the set of names."""
    first = interpreted(PROGRAM + SUBMIT.replace("IF", "error"))
    assert first.code == 0, first.err
    assert first.out == "[3.0, 3.0, 5.0, 5.0] 1\n"
    again = interpreted(PROGRAM.replace("growth = ", "# a comment\n\ngrowth = ") + SUBMIT.replace("IF", "resume"))
    assert again.out == "[3.0, 3.0, 5.0, 5.0] 1\n", again.err
    changed = ran(PROGRAM.replace("scale=2.0", "scale=3.0") + SUBMIT.replace("IF", "open"), project)
    assert "what differs: functions of the notebook or program, or variables that they use" in changed.err
    job = opened()
    assert job.record.spec.model == "mops_functions:simulate"
    assert job.best(1).to_arrow()["distance"].to_pylist() == [0.0]


def test_the_job_keeps_the_source_and_the_versions(with_job: Path) -> None:
    with zipfile.ZipFile(with_job / "mops-storage" / bundle_path(opened().record.bundle)) as bundle:
        record = json.loads(bundle.read("mops_functions.json"))
    assert record["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert record["packages"]["pandas"] == pd.__version__
    assert record["functions"] == ["simulate", "distance"]


def test_later_jobs_and_commands_use_the_functions_of_the_submit(with_job: Path) -> None:
    job = opened()
    extended = job.extend(replicates=3, name="longer")
    assert extended.status().counts.simulations_good == 6
    rescored = job.rescore(name="scored")
    assert sorted(rescored.losses().to_arrow()["loss"].to_pylist()) == [0.0, 2.0]
    assert "changed since the submit" not in command("jobs", "rescore", "j", "--name", "by-command", "--local").err
    assert "replicate 1" in command("study", "run", "--job", "j", "--replicate", "1", "--local").out


def test_a_target_of_the_program_is_added(with_job: Path) -> None:
    later = f"""{PROGRAM}
def near(replicates):
    return abs(replicates[0]["output"]["y"][0].as_py() - 3)


job = mops.open_job("j", local=True).extend(targets=[near], name="more")
print(job.best(2, weights={{"distance": 1, "near": 1}}).to_arrow()["near"].to_pylist(), job.record.spec.targets)
"""
    done = ran(later, with_job)
    assert done.code == 0, done.err
    assert done.out == "[0.0, 2.0] ('mops_functions:distance', 'mops_functions_2:near')\n"
    (with_job / "helper.py").write_text("def shifted(y):\n    return y + 2\n")
    refused = ran(later.replace("more", "other"), with_job)
    laid(with_job)
    assert "may have changed since the submit: helper.py" in refused.err


def test_a_mended_target_of_the_program_replaces_the_old_one(with_job: Path) -> None:
    """A notebook could only add the mended function, whose losses then counted twice."""
    mended = f"""{PROGRAM}
def distance(replicates):
    return 10.0


job = mops.open_job("j", local=True)
try:
    job.extend(targets=[distance], name="twice")
except mops.errors.UsageError as error:
    print(error)
again = job.rescore(targets=[distance], name="again")
print(again.status().counts, again.record.spec.targets, again.losses().to_arrow()["loss"].to_pylist())
"""
    done = ran(mended, with_job)
    assert done.code == 0, done.err
    assert "the job has a target 'distance' already" in done.out
    assert "job.rescore(targets=[distance])" in done.out
    assert "('mops_functions_2:distance',) [10.0, 10.0]" in done.out
    assert "changed since the submit" not in done.err
    assert opened("again").verify() == []


FAILING = """
import mops


def simulate(params, seed):
    limit = 1
    if params["x"] > limit:
        raise ValueError("x is too large")
    return {"y": [params["x"]]}


sets = [{"x": 1}, {"x": 2}]
mops.submit(model=simulate, sets=sets, name="j", local=True)
"""


def test_a_failure_names_the_place_and_the_command_reproduces_it(project: Path) -> None:
    (project / "deep").mkdir()
    (project / "deep" / "program.py").write_text(FAILING)
    assert python("program.py", folder=project / "deep").code == 0
    (cause,) = opened().causes().to_arrow().to_pylist()
    assert cause["place"] == "deep/program.py:8 in simulate"
    assert 'raise ValueError("x is too large")' in cause["traceback"]
    shown = command("jobs", "failures", "j", "--local").out
    (line,) = [line for line in shown.splitlines() if "run it alone: " in line]
    _, *words = line.partition("run it alone: ")[2].split()
    assert "ValueError: x is too large" in command(*words, code=1).err
    retried = opened().retry(name="retried")
    assert retried.status().counts.simulations_failed == 1


STOPPED = """
import os
import signal
from pathlib import Path

import mops
from mops.settings import Settings

runner, stopped = os.getpid(), Path("stopped").absolute()


def simulate(params, seed):
    if params["x"] == 2 and not stopped.exists():
        stopped.touch()
        os.kill(runner, signal.SIGKILL)
    return {"y": [params["x"]]}


sets = [{"x": x} for x in range(6)]
mops.submit(model=simulate, sets=sets, name="j", local=True, settings=Settings(slots=1))
"""


def test_a_job_that_was_killed_continues_with_the_functions_of_the_submit(project: Path) -> None:
    assert ran(STOPPED, project).code == -signal.SIGKILL
    assert opened().status().state == "interrupted"
    resumed = command("jobs", "resume", "j", "--local").err
    assert "mops_functions" not in resumed  # the project has no such file, and none was removed
    assert values(opened()) == list(range(6))


def submitted(model: Any, **more: Any) -> Job:
    return mops.submit(model=model, sets=[{"x": 2}], storage="storage", **STORAGE, **more)


def values(job: Job) -> list[float]:
    return sorted(job.outputs("output").to_arrow()["y"].to_pylist())


def scaled_by(scale: float) -> Callable[..., Any]:
    def simulate(params: dict[str, float], seed: int) -> dict[str, list[float]]:
        return {"y": [scale * params["x"]]}

    return simulate


def test_functions_inside_others_lambdas_partials_and_classes_run() -> None:
    class Model:
        def simulate(self, params: dict[str, float], seed: int) -> dict[str, list[float]]:
            return {"y": [-params["x"]]}

    def of_three(scale: float, params: dict[str, float], seed: int) -> dict[str, list[float]]:
        return {"y": [scale * params["x"]]}

    assert values(submitted(scaled_by(3))) == [6]
    assert values(submitted(functools.partial(of_three, 4))) == [8]
    assert values(submitted(Model)) == [-2]
    job = submitted(
        lambda params, seed: {"y": [5]}, targets=[lambda replicates: 1.0, lambda params, replicates: params["x"]]
    )
    assert job.record.spec.targets == ("mops_functions:target", "mops_functions:target_2")
    assert job.losses().to_arrow()["loss"].to_pylist() == [1.0, 2.0]


def test_a_target_gets_pandas_frames_if_its_annotation_says_so() -> None:
    def mean(replicates: list[pd.DataFrame]) -> float:
        return float(pd.concat(replicates)["y"].mean())

    assert submitted(scaled_by(3), targets=[mean]).losses().to_arrow()["loss"].to_pylist() == [6.0]


def test_variables_are_those_of_the_submit() -> None:
    scales = [2.0]

    def simulate(params: dict[str, float], seed: int) -> dict[str, list[float]]:
        return {"y": [scales[0]]}

    job = submitted(simulate, name="j")
    scales[0] = 3.0
    assert values(job) == [2.0]
    with pytest.raises(JobError, match="functions of the notebook or program, or variables"):
        submitted(simulate, name="j", if_exists="open")


def test_what_cannot_travel_is_refused_and_nothing_is_written(project: Path) -> None:
    with (project / "mops.toml").open() as file:

        def simulate(params: dict[str, float], seed: int) -> dict[str, list[str]]:
            return {"y": [file.read()]}

        with pytest.raises(ModelError, match=r"the variable 'file', which .*simulate uses, cannot go to the processes"):
            submitted(simulate)
    assert not (project / "storage").exists()


def test_another_python_is_refused_with_both_versions(with_job: Path, project: Path) -> None:
    with zipfile.ZipFile(with_job / "mops-storage" / bundle_path(opened().record.bundle)) as bundle:
        bundle.extractall(project / "unpacked")
    record = project / "unpacked" / "mops_functions.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"python": "3.8.1"}))
    done = ran("import mops_functions\n", project / "unpacked")
    assert "ImportError: the functions of this job were defined in Python 3.8.1, and this is" in done.err


def test_a_file_of_the_project_with_the_name_is_refused(project: Path) -> None:
    (project / "mops_functions.py").write_text("")
    with pytest.raises(mops.errors.BundleError, match=r"mops_functions\.py: has the name of a file that mops writes"):
        submitted(scaled_by(3))


def test_a_helper_with_a_cache_goes_along() -> None:
    """cloudpickle takes only its name, so the job failed at the first simulation."""
    program = """
import functools

import mops


@functools.cache
def helper(n):
    return n if n < 2 else helper(n - 1) + helper(n - 2)


def simulate(params, seed):
    return {"y": [helper(params["x"])], "hits": [helper.cache_info().hits], "of": [helper.__name__]}


helper(20)
job = mops.submit(model=simulate, sets=[{"x": 30}], name="j", local=True)
print(job.outputs("output").to_arrow().select(["y", "hits", "of"]).to_pylist())
"""
    done = ran(program, Path.cwd())
    assert done.code == 0, done.err
    assert done.out == "[{'y': 832040, 'hits': 28, 'of': 'helper'}]\n"
