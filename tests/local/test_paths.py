"""A path that the system refuses is a usage error of mops, wherever a user gives the path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mops.errors import UsageError
from mops.jobs.prepare import prepare
from mops.jobs.table import _translated
from mops.storage.files import Files
from mops.study.sampling.draw import Method
from mops.study.sampling.write import sample
from mops.worker.environment import child_environment

BAD = {
    "a long name": "x" * 300,
    "a long path": "x/" * 3000 + "x",
    "a null character": "a\0b",
    "a circle of links": "circle/x",
    "an unknown home": "~nobody-has-this-name/x",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed): ...\n")
    write_study(tmp_path, [{"x": 1}])
    (tmp_path / "space.json").write_text('{"parameters": {"x": {"min": 0, "max": 1}}}')
    return tmp_path


def write_study(folder: Path, sets: object) -> None:
    (folder / "study.json").write_text(json.dumps({"model": "model:run", "parameter_sets": sets}))


def parameter_sets(name: str) -> None:
    write_study(Path(), f"{name}.csv")
    prepare("study.json")


def to(path: str) -> None:
    with _translated(Path(path)):
        (Path(path) / "daily.csv").exists()
        Path(path).mkdir(parents=True)


GIVEN: dict[str, Callable[[str], object]] = {
    "study": prepare,
    "project": lambda path: prepare("study.json", project=path),
    "parameter_sets": parameter_sets,
    "storage": Files.open,
    "storage URL": lambda path: Files.open(f"file://{Path.cwd() / path}"),
    "storage of a study": lambda path: prepare("study.json", storage=path),
    "--python": lambda path: child_environment(None, path),
    "--to": to,
    "space": lambda path: sample(path, "sets.csv", n=2, method=Method.LHS),
    "sets": lambda path: sample("space.json", f"{path}.csv", n=2, method=Method.LHS),
}


def test_an_invalid_path_is_a_usage_error_and_no_traceback(folder: Path, subtests: pytest.Subtests) -> None:
    """A name of 300 characters for the file of parameter sets ended in a raw OSError."""
    for given in GIVEN:
        with subtests.test(given=given):
            for bad, path in BAD.items():
                try:
                    GIVEN[given](path)
                except UsageError as error:
                    said = str(error)
                else:
                    said = ""  # a storage may have this name
                    assert bad == "an unknown home"
                assert all(len(line) < 500 for line in said.splitlines()), bad
