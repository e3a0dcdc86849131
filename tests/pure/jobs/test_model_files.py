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
    assert model_files({name: "changed"}, SOURCES, SPEC) == []


@pytest.mark.parametrize("name", ["walk.py", "tools.py", "loose.py", "rates.json", "data.csv", "requirements.txt"])
def test_files_that_a_model_may_read(name: str) -> None:
    assert model_files({name: "changed"}, SOURCES, SPEC) == [name]


def test_a_target_that_the_model_names_belongs_to_the_model() -> None:
    sources = SOURCES | {"tools.py": "from targets.ends import end\n"}
    changed = {"targets/ends.py": "changed", "targets/means.py": "changed", "targets/peaks.py": "changed"}
    assert model_files(changed, sources, SPEC) == ["targets/ends.py", "targets/means.py"]


def test_added_data_counts_if_the_code_lists_a_folder() -> None:
    added = {"more.csv": "added", "helper.py": "added"}
    assert model_files(added, SOURCES | {"helper.py": ""}, SPEC) == ["helper.py"]
    sources = SOURCES | {"helper.py": "", "tools.py": "Path('data').glob('*.csv')"}
    assert model_files(added, sources, SPEC) == ["more.csv", "helper.py"]


def test_a_target_in_the_file_of_the_model_belongs_to_the_model() -> None:
    spec = ModelSpec("walk:simulate", "baseline", ("walk:end",), None)
    assert model_files({"walk.py": "changed"}, SOURCES, spec) == ["walk.py"]


def test_folders_above_the_module_do_not_matter() -> None:
    sources = {f"src/{name}": text for name, text in SOURCES.items()}
    found = model_files(dict.fromkeys(sources, "changed"), sources, SPEC)
    assert found == [f"src/{name}" for name in ("walk.py", "tools.py", "loose.py", "rates.json")]
