"""`mops init` makes studies that run as they are, and replaces no file."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mops.project.new_study import Template, write_study

from .command_lab import CommandLab

TEMPLATES = Path(write_study.__code__.co_filename).with_name("templates")
LIBRARIES = {Template.STARSIM: "starsim", Template.MESA: "mesa"}


@pytest.mark.parametrize("template", Template)
def test_a_new_study_runs_with_the_commands_that_init_prints(lab: CommandLab, template: Template) -> None:
    library = LIBRARIES.get(template)
    if library is not None and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    ran = lab.run("init", "new", "--template", template)
    assert ran.code == 0, ran.err
    assert "not installed" not in ran.err
    written = sorted(path.relative_to(lab.root).as_posix() for path in (lab.root / "new").iterdir())
    assert ran.out.splitlines() == written
    go, *commands = [line.strip() for line in ran.err.partition("next:\n")[2].splitlines()]
    assert go == "cd new"
    assert all(command.startswith("mops ") for command in commands)
    for command in commands[:1] if library else commands:  # the trial runs model and targets; each import takes seconds
        ran = lab.run(*command.split()[1:], cwd=lab.root / "new", MODELOPS_STORAGE=str(lab.storage))
        assert ran.code == 0, ran.err
        assert "warning" not in ran.err
    if not library:
        job = json.loads(lab.run("jobs", "status", "first", "--json").out)
        assert job["state"] == "succeeded"
        assert job["counts"]["simulations_failed"] == job["counts"]["targets_failed"] == 0


def test_the_default_is_a_function_in_the_working_folder(lab: CommandLab) -> None:
    (lab.root / "here").mkdir()
    ran = lab.run("init", cwd=lab.root / "here")
    assert ran.code == 0, ran.err
    assert ran.out == "model.py\nmops.toml\nstudy.json\n"
    assert "cd " not in ran.err
    assert (lab.root / "here" / "model.py").read_text() == (TEMPLATES / "function" / "model.py.txt").read_text()


def test_files_that_exist_are_named_and_nothing_is_written(lab: CommandLab) -> None:
    before = {path: path.read_text() for path in lab.project.iterdir()}
    ran = lab.run("init", lab.project, "--template", "subprocess")
    assert ran.code == 2
    assert ran.out == ""
    assert "error: files exist that the new study would replace: model.py, mops.toml, study.json\n" in ran.err
    assert f"at: {lab.project}" in ran.err
    assert {path: path.read_text() for path in lab.project.iterdir()} == before


def test_a_wrong_argument_is_refused(lab: CommandLab) -> None:
    for arguments, said in {
        "new --template agents": "'agents' is not one of 'function', 'class', 'starsim', 'mesa'",
        "project/model.py": "the folder of the new study cannot be used",
    }.items():
        ran = lab.run("init", *arguments.split())
        assert ran.code == 2
        assert said in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.parametrize(("template", "library"), LIBRARIES.items())
def test_a_missing_library_is_named_as_pip_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: Template, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (requirement,) = write_study(tmp_path, template).missing
    assert requirement.startswith(f"{library}>=")
    assert requirement in (tmp_path / "requirements.txt").read_text()


def test_templates_are_short_and_do_not_import_mops() -> None:
    paths = sorted(TEMPLATES.glob("*/*.py.txt"))
    assert len(paths) >= len(Template)
    for path in paths:
        text = path.read_text()
        assert 20 <= len(text.splitlines()) <= 40, path
        assert max(map(len, text.splitlines())) <= 120, path
        assert not re.search(r"^\s*(import|from) mops", text, re.MULTILINE), path
