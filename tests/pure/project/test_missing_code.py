"""An error about missing code names the file that the user may mean."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from mops.project.missing_code import Advice, advice_for_entry, advice_for_import, advice_for_imported

FOLDERS = [".", "src"]


def test_an_entry_point_that_was_not_found(subtests: pytest.Subtests) -> None:
    for entry, files, found, hint in [
        ("walk:run", ["models/walk.py"], "; the project has models/walk.py", "write 'models.walk:run' in the study"),
        ("walk", ["models/walk.py"], "; the project has models/walk.py", "write 'models.walk' in the study"),
        ("walk.py:run", ["models/walk.py"], "; the project has models/walk.py", "write 'models.walk:run' in the study"),
        ("walk:run", ["my-code/walk.py"], "; the project has my-code/walk.py", "write 'my-code/walk.py:run' in the"),
        ("walk:run", ["src/a/walk.py"], "; the project has src/a/walk.py", "write 'a.walk:run' in the study"),
        ("walk:run", ["a/walk/__init__.py"], "; the project has a/walk/__init__.py", "write 'a.walk:run' in the study"),
        ("b.walk:run", ["a/b/walk.py", "walk.py"], "; the project has a/b/walk.py", "write 'a.b.walk:run' in the"),
        ("walk:run", ["b/c/walk.py", "z/walk.py"], "; the project has z/walk.py, b/c/walk.py", "write 'z.walk:run'"),
        ("modle:run", ["model.py", "walk.py"], "; did you mean 'model'?", "write 'model:run' in the study"),
        ("models.wlak:run", ["models/walk.py"], "; did you mean 'models.walk'?", "write 'models.walk:run' in the"),
        ("walk.run", ["walk.py"], "; did you mean 'walk:run'?", "write 'walk:run' in the study"),
        ("m.run", ["src/m/__init__.py"], "; did you mean 'm:run'?", "write 'm:run' in the study"),
        ("a.walk.run", ["a/walk.py"], "; did you mean 'a.walk:run'?", "write 'a.walk:run' in the study"),
        ("a.wlak", ["a/walk.py", "a/__init__.py"], "; did you mean 'a.walk'?", "write 'a.walk'"),
        ("modle.py:run", ["model.py"], "; did you mean 'model.py'?", "write 'model.py:run' in the study"),
    ]:
        with subtests.test(str((entry, files, found, hint))):
            advice = advice_for_entry(entry, files, FOLDERS)
            assert advice is not None
            assert advice.found == found
            assert advice.hint is not None
            assert advice.hint.startswith(hint)


def test_many_files_of_one_name_are_counted() -> None:
    advice = advice_for_entry("walk:run", [f"{name}/walk.py" for name in "abcde"], FOLDERS)
    assert advice is not None
    assert advice.found == "; the project has a/walk.py, b/walk.py, c/walk.py and 2 more"


def test_a_module_that_the_code_imports(subtests: pytest.Subtests) -> None:
    for module, files, expected in [
        ("helpers", ["models/helpers.py"], "the project has models/helpers.py: import it as models.helpers"),
        ("walk.helper", ["src/walk/helpers.py"], "did you mean 'walk.helpers'?"),
        ("helpers", ["my-code/helpers.py"], None),
        ("numpyy", ["numpyx.py"], None),
        ("nothing", [], None),
    ]:
        with subtests.test(str((module, files, expected))):
            assert advice_for_import(module, files, FOLDERS) == (Advice("", expected) if expected else None)


def test_there_may_be_nothing_like_it() -> None:
    assert advice_for_entry("starsim:Sim", ["model.py"], FOLDERS) is None


def test_a_module_that_this_program_has_from_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("walk")
    monkeypatch.setitem(sys.modules, "walk", module)
    assert advice_for_imported("walk:run", ["model.py"]) is None  # a module without a file
    for file, files, is_named in [
        ("/home/lib/walk.py", ["model.py", "talk.py"], True),
        ("/home/project/models/walk.py", ["models/walk.py"], False),  # the entry point names it wrongly
        ("/usr/lib/python3/site-packages/walk/__init__.py", ["model.py"], False),
    ]:
        module.__file__ = file
        for missing in ("walk", "walk:run"):
            advice = advice_for_imported(missing, files)
            assert (advice is not None) == is_named
            assert advice is None or (advice.hint or "").startswith(f"walk is {file}, which the bundle")
    assert advice_for_imported("not_imported_anywhere:run", ["model.py"]) is None
