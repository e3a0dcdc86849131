"""A project's own module never takes the place of a module of Python, and code that wants it is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cases import case_folder
from mops.child.modules import PythonModules, refusal, shadowing_files


def refused(root: Path, files: dict[str, str], *entries: str, folders: tuple[str, ...] = (".",)) -> str | None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    paths = [root / folder for folder in folders]
    return refusal(entries, shadowing_files(paths), paths, root)


def test_a_module_of_the_project_with_the_name_of_a_module_of_python_is_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for imports, own in [
        ("import queue", "queue.py"),
        ("import os, queue as q", "queue.py"),
        ("from queue import Queue", "queue.py"),
        ("def run(params, seed):\n    import queue", "queue.py"),
        ("import queue", "queue/__init__.py"),
        ("import email.message", "email.py"),
        ("import time", "time.py"),  # built into Python
    ]:
        with case_folder(subtests, tmp_path, (imports, own)) as folder:
            named = own.removesuffix("/__init__.py")
            said = f"the project's {named}, which model.py imports, has the name of a module of Python; rename {named}"
            assert refused(folder, {"model.py": imports, own: ""}, "model:run") == said


def test_imports_are_followed_through_the_project(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for files in [
        {"model.py": "import helpers", "helpers.py": "import queue"},
        {"model.py": "from walk import helpers", "walk/__init__.py": "", "walk/helpers.py": "import queue"},
        {"model.py": "from walk.helpers import f", "walk/__init__.py": "import queue", "walk/helpers.py": ""},
        {"model.py": "import walk", "walk/__init__.py": "from . import a", "walk/a.py": "import queue"},
        {"model.py": "import walk.b.c", "walk/b/c.py": "from ..a import *", "walk/a.py": "import queue"},
    ]:
        with case_folder(subtests, tmp_path, files) as folder:
            (importer,) = (name for name, text in files.items() if text == "import queue")
            said = refused(folder, files | {"queue.py": ""}, "model:run")
            assert said is not None
            assert said.startswith(f"the project's queue.py, which {importer} imports, ")


def test_targets_and_other_folders_count_too(tmp_path: Path) -> None:
    files = {"model.py": "", "src/score.py": "import queue", "src/queue.py": ""}
    said = refused(tmp_path, files, "model:run", "score:target", folders=(".", "src"))
    assert said is not None
    assert said.startswith("the project's src/queue.py, which src/score.py imports")


def test_a_model_or_a_target_with_such_a_name_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for entry, own in [
        ("queue:run", "queue.py"),
        ("queue.py:run", "queue.py"),
        ("./queue.py:run", "queue.py"),
        ("models/queue.py:run", "models/queue.py"),
        ("queue.walk:run", "queue/__init__.py"),
    ]:
        with case_folder(subtests, tmp_path, (entry, own)) as folder:
            named = own.removesuffix("/__init__.py")
            said = f"the project's {named}, which {entry!r} names, has the name of a module of Python; rename {named}"
            files = {own: "", "model.py": "", "queue/walk.py": ""} if "walk" in entry else {own: "", "model.py": ""}
            assert refused(folder, files, entry) == said
            assert refused(folder, files, "model:run", entry) == said


def test_other_projects_are_not_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for files in [
        {"model.py": "import random"},  # the project has no such file
        {"model.py": "", "queue.py": "import queue", "profile.py": "import model"},  # scripts
        {"model.py": "from walk import queue", "walk/__init__.py": "", "walk/queue.py": ""},
        {"model.py": "import walk", "walk/__init__.py": "from . import queue", "walk/queue.py": ""},
        {"model.py": "import queue", "queue/data.csv": ""},  # a folder without __init__.py is no module for Python
        {"model.py": "import test", "test.py": ""},  # Python's tests are no module that a library imports
        {"model.py": "import winreg", "winreg.py": ""},  # Windows has it, not this Python
        {"model.py": "import queue\n(", "queue.py": ""},  # the import tells what is wrong
        {"model.py": "from .... import queue", "queue.py": ""},
    ]:
        with case_folder(subtests, tmp_path, files) as folder:
            assert refused(folder, files, "model:run", "sklearn.base:clone") is None


def test_libraries_get_the_module_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: pandas imported the project's calendar.py, and ended with an error about a missing attribute."""
    (tmp_path / "calendar.py").write_text("own = True")
    (tmp_path / "walks.py").write_text("own = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [PythonModules(shadowing_files([tmp_path])), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "calendar", raising=False)
    monkeypatch.delitem(sys.modules, "walks", raising=False)
    import calendar

    import walks  # type: ignore[import-not-found]

    assert hasattr(calendar, "monthrange")
    assert walks.own
