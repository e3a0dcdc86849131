"""Where mops looks for the code that a study names, and which code it refuses to guess."""

from __future__ import annotations

import pytest

from mops.errors import ModelError
from mops.project.import_folders import with_import_folders
from mops.project.project import ModelSpec


def folders(
    model: str,
    *files: str,
    study: str | None = ".",
    targets: tuple[str, ...] = (),
    registered: tuple[str, ...] = (),
    imported: dict[str, str] | None = None,
) -> tuple[str, ...]:
    spec = ModelSpec(model, "baseline", targets, None)
    found = with_import_folders(spec, files, study, registered, imported)
    assert (found.model, found.targets) == (model, targets), "mops does not change what the study says"
    return found.import_folders


def test_code_is_found_in_the_root_in_src_and_in_the_folder_of_the_study(subtests: pytest.Subtests) -> None:
    for model, files, study, expected in [
        ("walk:run", ["walk.py"], ".", (".",)),
        ("walk:run", ["walk.py", "src/other.py"], ".", (".", "src")),
        ("walk.model:run", ["src/walk/model.py"], ".", (".", "src")),
        ("walk:run", ["src/walk/__init__.py"], "studies", (".", "src")),
        ("walk/model.py:run", ["src/walk/model.py"], ".", (".", "src")),
        ("src.walk:run", ["src/walk.py"], ".", (".",)),
        ("src/walk.py:run", ["src/walk.py"], ".", (".", "src")),
        ("walk:run", ["walk.py", "src/main.c"], ".", (".",)),
        ("src.walk:run", ["src/__init__.py", "src/walk.py"], ".", (".",)),
        ("walk:run", ["src/__init__.py", "src/walk.py"], ".", (".",)),
        ("walk:run", ["studies/a/walk.py"], "studies/a", (".", "studies/a")),
        ("walk.py:run", ["studies/a/walk.py"], "studies/a", (".", "studies/a")),
        ("walk.model:run", ["studies/a/src/walk/model.py"], "studies/a", (".", "studies/a/src")),
        ("walk:run", ["walk.py", "studies/a/other.py"], "studies/a", (".",)),
        ("starsim:Sim", ["walk.py"], "studies/a", (".",)),
        ("walk:run", ["studies/a/walk.py"], None, (".",)),
        ("./walk.py:run", ["walk.py", "studies/a/walk.py"], "studies/a", (".",)),
        ("studies/a/walk.py:run", ["walk.py", "studies/a/walk.py"], "studies/a", (".",)),
    ]:
        with subtests.test(str((model, files, study, expected))):
            assert folders(model, *files, study=study) == expected


def test_a_target_may_lie_in_another_folder_than_the_model() -> None:
    files = ("src/walk.py", "studies/targets.py")
    assert folders("walk:run", *files, study="studies", targets=("targets:score",)) == (".", "src", "studies")


def test_entry_points_of_the_registry_are_not_relative_to_the_study() -> None:
    assert folders("walk:run", "a/walk.py", study="a", registered=("walk:run",)) == (".",)
    assert folders("walk:run", "walk.py", "a/walk.py", study="a", registered=("walk:run",)) == (".",)


def test_a_package_comes_before_a_module_of_its_name_as_in_python() -> None:
    files = ("walk.py", "walk/__init__.py")
    assert folders("walk:run", *files, imported={"walk:run": "walk/__init__.py"}) == (".",)
    assert folders("walk.py:run", *files, imported={"walk.py:run": "walk.py"}) == (".",)


def test_two_files_of_one_name_are_refused(subtests: pytest.Subtests) -> None:
    for model, files, hint in [
        ("walk:run", ["walk.py", "src/walk.py"], "write './walk.py:run' or 'src/walk.py:run'"),
        ("walk:run", ["walk.py", "a/walk.py"], "write './walk.py:run' or 'a/walk.py:run'"),
        ("walk.py:run", ["walk.py", "a/walk.py"], "write './walk.py:run' or 'a/walk.py:run'"),
        ("walk", ["src/walk/__init__.py", "a/walk.py"], "write 'src/walk/__init__.py:name' or 'a/walk.py:name'"),
    ]:
        with subtests.test(str((model, files, hint))):
            with pytest.raises(ModelError) as raised:
                folders(model, *files, study="a")
            assert raised.value.what == f"the project has two files of this name: {files[0]} and {files[1]}"
            assert raised.value.where == model
            assert raised.value.hint == f"{hint}, or list one file in .mopsignore"


def test_an_object_runs_only_if_child_processes_import_its_own_file() -> None:
    both = ("walk.py", "src/walk.py")
    assert folders("walk:run", *both, imported={"walk:run": "walk.py"}) == (".", "src")
    with pytest.raises(ModelError, match=r"the program has imported src/walk.py, .* would import walk.py"):
        folders("walk:run", *both, imported={"walk:run": "src/walk.py"})
    installed = {"walk:run": "/venv/lib/site-packages/walk.py"}
    assert folders("walk:run", "model.py", imported=installed) == (".",)
    with pytest.raises(ModelError, match=r"imported /venv/.* would import src/walk.py of the project"):
        folders("walk:run", "src/walk.py", imported=installed)
