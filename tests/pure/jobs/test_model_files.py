"""Which changed files may change what a model computes."""

from __future__ import annotations

import pytest

from mops.jobs.derived.model_files import model_files
from mops.project.project import ModelSpec

SPEC = ModelSpec("walk:simulate", "baseline", ("targets.ends:end", "targets/peaks.py:peak"), None)
SOURCES = {
    "walk.py": "import tools\n",
    "tools.py": "",
    "targets/__init__.py": "",
    "targets/ends.py": "from targets import means\n",
    "targets/peaks.py": "import tools\n",
    "targets/means.py": "",
    "loose.py": "",
    "tests/test_ends.py": "from targets import ends\n",
    "study.json": '{"model": "walk:simulate", "parameter_sets": []}',
    "rates.json": "[1, 2]",
}


NOT_READ = ("targets/ends.py", "targets/peaks.py", "targets/means.py", "tests/test_ends.py", "study.json")
NO_CODE = ("README.md", "walks.ipynb", "mops.toml", ".modelops-bundle/registry.yaml")


@pytest.mark.parametrize("name", [*NOT_READ, *NO_CODE])
def test_files_that_no_model_reads(name: str) -> None:
    assert model_files([name], SOURCES, SPEC) == []


@pytest.mark.parametrize("name", ["walk.py", "tools.py", "loose.py", "rates.json", "data.csv", "requirements.txt"])
def test_files_that_a_model_may_read(name: str) -> None:
    assert model_files([name], SOURCES, SPEC) == [name]


def test_a_target_that_the_model_names_belongs_to_the_model() -> None:
    sources = SOURCES | {"tools.py": "from targets.ends import end\n"}
    changed = ["targets/ends.py", "targets/means.py", "targets/peaks.py"]
    assert model_files(changed, sources, SPEC) == ["targets/ends.py", "targets/means.py"]


@pytest.mark.parametrize("name", ["data/test_positivity.csv", "data/tests/2020.csv", "more.csv"])
def test_data_files_belong_to_the_model(name: str) -> None:
    assert model_files([name], SOURCES, SPEC) == [name]


def test_a_test_that_the_model_names_belongs_to_the_model() -> None:
    sources = SOURCES | {"walk.py": "from tests.helpers import growth\n", "tests/helpers.py": ""}
    assert model_files(["tests/helpers.py", "tests/test_ends.py"], sources, SPEC) == ["tests/helpers.py"]


def test_a_package_of_the_model_belongs_to_the_model() -> None:
    sources = {
        "pkg/__init__.py": "SCALE = 2\n",
        "pkg/model.py": "from . import SCALE\n",
        "pkg/score.py": "from pkg import util\n",
        "pkg/util.py": "",
    }
    spec = ModelSpec("pkg.model:run", "baseline", ("pkg.score:end",), None)
    assert model_files(sources, sources, spec) == ["pkg/__init__.py", "pkg/model.py"]


def test_a_model_with_computed_imports_may_use_every_file() -> None:
    sources = SOURCES | {"walk.py": "import importlib\nimportlib.import_module('v_' + 'a')\n"}
    changed = ["targets/ends.py", "tests/test_ends.py"]
    assert model_files(changed, sources, SPEC) == changed


def test_a_target_in_the_file_of_the_model_belongs_to_the_model() -> None:
    spec = ModelSpec("walk:simulate", "baseline", ("walk:end",), None)
    assert model_files(["walk.py"], SOURCES, spec) == ["walk.py"]


def test_folders_above_the_module_do_not_matter() -> None:
    sources = {f"src/{name}": text for name, text in SOURCES.items()}
    found = model_files(sources, sources, SPEC)
    assert found == [f"src/{name}" for name in ("walk.py", "tools.py", "loose.py", "rates.json")]
