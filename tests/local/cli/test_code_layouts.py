"""Projects whose code lies in `src/` or next to the study run without a setting, and a mistake names the right code."""

from __future__ import annotations

import json

import pytest

from soak import spread

from .command_lab import CommandLab
from .test_wrong_input import refused_and_nothing_written

CORE = "STEP = 2.5\n"
SIMULATE = (
    "import sys\nfrom walk.core import STEP\n\n\n"
    "def simulate(params, seed):\n    return {'y': [params['x'] * STEP], 'argv': [sys.argv[0][-17:]]}\n"
)
MEAN = "def mean(replicates):\n    return float(replicates[0]['output']['y'][0].as_py())\n"


@pytest.fixture
def src(lab: CommandLab) -> CommandLab:
    """A project whose package `walk` lies in src/, which is not installed."""
    (lab.project / "model.py").unlink()
    lab.write("pyproject.toml", '[project]\nname = "walk"\nversion = "1"\n')
    lab.write("src/walk/__init__.py", "")
    lab.write("src/walk/core.py", CORE)
    lab.write("src/walk/model.py", SIMULATE)
    lab.write("src/walk/targets.py", MEAN)
    lab.write_study(model="walk.model:simulate", targets=["walk.targets:mean"])
    return lab


def losses(lab: CommandLab, job: str) -> list[float]:
    ran = lab.run("jobs", "results", job, "--best", "2", "--json")
    assert ran.code == 0, ran.err
    return sorted(row["loss"] for row in json.loads(ran.out))


def test_a_package_in_src_runs_without_a_setting(src: CommandLab) -> None:
    """The child processes are spawned. Those of the other tests are forked."""
    ran = src.submit("--name", "job", MODELOPS_JOB_START="spawn")
    assert ran.code == 0, ran.err
    assert losses(src, "job") == [2.5, 5.0]


def test_check_shows_the_folders_from_which_the_code_comes(src: CommandLab) -> None:
    ran = src.run("study", "check", src.study)
    assert ran.code == 0, ran.err
    assert "imports from" in ran.out
    assert " ., src\n" in ran.out


def test_a_function_of_a_package_in_src_is_found_by_child_processes(src: CommandLab) -> None:
    program = (
        "import sys\nsys.path.insert(0, 'src')\nimport mops\nfrom walk.model import simulate\n"
        "job = mops.submit(model=simulate, sets=[{'x': 2}], name='job', local=True)\n"
        "print(job.outputs('output').to_arrow().to_pylist()[0]['y'], job.record.spec.model)\n"
    )
    ran = src.run("-c", program, cwd=src.project)
    assert ran.code == 0, ran.err
    assert ran.out == "5.0 walk.model:simulate\n"


def test_the_installed_package_runs_only_if_the_project_has_no_code_of_this_name(src: CommandLab) -> None:
    """A package that is installed, and edited since, must not run in place of the files that the user sees."""
    installed = src.root / "installed" / "walk"
    installed.mkdir(parents=True)
    for name, text in {"__init__.py": "", "core.py": "STEP = 100\n", "model.py": SIMULATE, "targets.py": MEAN}.items():
        (installed / name).write_text(text)
    variables = {"PYTHONPATH": str(installed.parent)}
    assert src.submit("--name", "project", **variables).code == 0
    assert losses(src, "project") == [2.5, 5.0]
    src.write(".mopsignore", "src/\n")
    assert src.submit("--name", "installed", **variables).code == 0
    assert losses(src, "installed") == [100.0, 200.0]


def test_code_next_to_the_study_is_found_below_the_root_of_the_project(src: CommandLab) -> None:
    src.write("studies/a/helpers.py", "STEP = 7\n")
    src.write("studies/a/sir.py", "import helpers\ndef run(params, seed):\n    return {'y': [helpers.STEP]}\n")
    study = {"model": "sir:run", "targets": ["walk.targets:mean"], "parameter_sets": [{"x": 1}]}
    ran = src.run("jobs", "submit", src.write("studies/a/study.json", json.dumps(study)), "--name", "job")
    assert ran.code == 0, ran.err
    assert losses(src, "job") == [7]


def test_an_error_names_the_code_that_the_user_may_mean(src: CommandLab) -> None:
    src.write("src/walk/wrong.py", "import core\n")
    for code, where, said in [
        ({"model": "model:simulate"}, "model:simulate", ["has src/walk/model.py", "'walk.model:simulate'"]),
        ({"model": "walk.wrong:f"}, "walk.wrong:f", ["No module named 'core'", "import it as walk.core"]),
        ({"targets": ["targets:mean"]}, "targets:mean", ["the target cannot be loaded", "'walk.targets:mean'"]),
    ]:
        src.write_study(**{"model": "walk.model:simulate"} | code)
        refused_and_nothing_written(src, src.submit(), *said, where=f"at: {where}")


@pytest.mark.parametrize("name", spread(["calendar", "queue", "random", "resource"], 2))
def test_code_that_imports_a_file_with_the_name_of_a_module_of_python_is_refused(lab: CommandLab, name: str) -> None:
    """Regression: the model got Python's module, which the child process had imported, and not the file beside it."""
    lab.write(f"{name}.py", "def beds(params):\n    return 1\n")
    lab.write("model.py", f"from {name} import beds\ndef run(params, seed):\n    return {{'y': [beds(params)]}}\n")
    said = f"the project's {name}.py, which model.py imports, has the name of a module of Python; rename {name}.py"
    refused_and_nothing_written(lab, lab.submit(), said)
    refused_and_nothing_written(lab, lab.run("study", "check", lab.study), said)


def test_a_model_with_the_name_of_a_module_of_python_is_refused(lab: CommandLab) -> None:
    lab.write("random.py", "def run(params, seed):\n    return {'y': [1]}\n")
    for model in ("random:run", "random.py:run"):
        lab.write_study(model=model)
        said = f"the project's random.py, which {model!r} names, has the name of a module of Python; rename random.py"
        refused_and_nothing_written(lab, lab.submit(), said)


def test_libraries_do_not_import_files_of_the_project_with_the_name_of_a_module_of_python(lab: CommandLab) -> None:
    """Regression: pandas imported the project's calendar.py, and the error named an attribute that it does not have."""
    lab.write("calendar.py", "raise SystemExit('a script')\n")
    lab.write("test.py", "import calendar\n")
    code = "import pandas\ndef run(params, seed):\n    return pandas.DataFrame({'y': pandas.Series([1, 2])})\n"
    lab.write("model.py", code)
    ran = lab.submit(MODELOPS_JOB_START="spawn")
    assert ran.code == 0, ran.err
