"""Which changed files may change what a model computes."""

from __future__ import annotations

import pytest

from mops.jobs.new_code import model_files
from mops.project.project import ModelSpec

SPEC = ModelSpec("walk:simulate", "baseline", ("targets.ends:end", "targets/peaks.py:peak"), None)
SOURCES = {
    "walk.py": "import tools\n",
    "tools.py": "",
    "targets/__init__.py": "",
    "targets/ends.py": "from targets import means\n",
    "targets/peaks.py": "import tools\n",
    "targets/means.py": "",
    "submit.py": "import walk\nfrom targets import ends, peaks\n",
    "tests/test_ends.py": "from targets import ends\n",
    "study.json": '{"model": "walk:simulate", "parameter_sets": []}',
    "rates.json": "[1, 2]",
}


NOT_NAMED = ("targets/ends.py", "targets/means.py", "tests/test_ends.py", "submit.py", "study.json")
NO_CODE = ("README.md", "run.log", "walks.ipynb", "mops.toml", ".mopsignore", ".modelops-bundle/registry.yaml")


def test_files_that_no_model_reads(subtests: pytest.Subtests) -> None:
    for name in [*NOT_NAMED, *NO_CODE]:
        with subtests.test(name):
            assert model_files({name: "changed"}, SOURCES, SPEC) == []


def test_files_that_a_model_may_read(subtests: pytest.Subtests) -> None:
    for name in ["walk.py", "tools.py", "rates.json", "data.csv", "requirements.txt"]:
        with subtests.test(name):
            assert model_files({name: "changed"}, SOURCES, SPEC) == [name]


@pytest.mark.parametrize("name", ["data/test_positivity.csv", "data/tests/2020.csv", "more.csv"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_data_files_belong_to_the_model(name: str, how: str) -> None:
    assert model_files({name: how}, SOURCES, SPEC) == [name]


def test_added_data_counts_if_the_model_may_find_it(subtests: pytest.Subtests) -> None:
    for code in [
        "read_csv('data/cases.csv')",
        "open(f'{name}.csv')",
        "dataset('sets')",
        "exists('more')",
        "Path().glob('m?re')",
        "scan('m*')",
    ]:
        with subtests.test(str(code)):
            added = {"sets/more.csv": "added"}
            assert model_files(added, SOURCES, SPEC) == []
            assert model_files(added, SOURCES | {"tools.py": code}, SPEC) == ["sets/more.csv"]
            assert model_files(added, SOURCES | {"targets/ends.py": code}, SPEC) == [], "no code of the model"


def test_a_target_that_the_model_names_belongs_to_the_model() -> None:
    sources = SOURCES | {"tools.py": "from targets.ends import end\n"}
    changed = dict.fromkeys(["targets/ends.py", "targets/means.py", "targets/peaks.py"], "changed")
    assert model_files(changed, sources, SPEC) == ["targets/ends.py", "targets/means.py"]


def test_a_test_that_the_model_names_belongs_to_the_model() -> None:
    sources = SOURCES | {"walk.py": "from tests.helpers import growth\n", "tests/helpers.py": ""}
    changed = {"tests/helpers.py": "changed", "tests/test_ends.py": "changed"}
    assert model_files(changed, sources, SPEC) == ["tests/helpers.py"]


def test_a_package_of_the_model_belongs_to_the_model() -> None:
    sources = {
        "pkg/__init__.py": "SCALE = 2\n",
        "pkg/model.py": "from . import SCALE\n",
        "pkg/score.py": "from pkg import util\n",
        "pkg/util.py": "",
    }
    spec = ModelSpec("pkg.model:run", "baseline", ("pkg.score:end",), None)
    assert model_files(dict.fromkeys(sources, "changed"), sources, spec) == ["pkg/__init__.py", "pkg/model.py"]


def test_a_model_with_computed_imports_may_use_every_file() -> None:
    sources = SOURCES | {"walk.py": "import importlib\nimportlib.import_module('v_' + 'a')\n"}
    changed = {"targets/ends.py": "changed", "more.csv": "added"}
    assert model_files(changed, sources, SPEC) == ["targets/ends.py", "more.csv"]


def test_a_model_outside_of_the_project_may_use_every_file() -> None:
    spec = ModelSpec("library.walk:simulate", "baseline", SPEC.targets, None)
    assert model_files({"targets/ends.py": "changed"}, SOURCES, spec) == ["targets/ends.py"]


def test_an_added_module_may_hide_one_that_the_model_imports() -> None:
    sources = SOURCES | {"numpy.py": "", "walk.py": "import numpy\n"}
    assert model_files({"numpy.py": "added"}, sources, SPEC) == ["numpy.py"]


def test_a_target_in_the_file_of_the_model_belongs_to_the_model() -> None:
    spec = ModelSpec("walk:simulate", "baseline", ("walk:end",), None)
    assert model_files({"walk.py": "changed"}, SOURCES, spec) == ["walk.py"]


def test_folders_above_the_module_do_not_matter() -> None:
    sources = {f"src/{name}": text for name, text in SOURCES.items()}
    found = model_files(dict.fromkeys(sources, "changed"), sources, SPEC)
    assert found == [f"src/{name}" for name in ("walk.py", "tools.py", "rates.json")]
