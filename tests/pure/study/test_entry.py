"""Entry points: how a study names code."""

from __future__ import annotations

import pytest

from mops.errors import ModelError
from mops.study.entry_point import EntryPoint

FORMS = "write 'package.module', 'module:name' or 'path/file.py:name', relative to the project root"


@pytest.mark.parametrize(
    ("text", "module", "path", "name"),
    [
        ("sir", "sir", None, None),
        ("models.sir", "models.sir", None, None),
        ("sir:run", "sir", None, "run"),
        ("models.sir:SIR", "models.sir", None, "SIR"),
        ("modèles.été:lance", "modèles.été", None, "lance"),
        ("_private._m:_f", "_private._m", None, "_f"),
        ("sir.py:run", None, "sir.py", "run"),
        ("models/sir.py:SIR", None, "models/sir.py", "SIR"),
        ("my models/sir-2.py:run", None, "my models/sir-2.py", "run"),
        ("models/sir.py", None, "models/sir.py", None),
    ],
)
def test_every_form_is_read(text: str, module: str | None, path: str | None, name: str | None) -> None:
    assert EntryPoint.parse(text) == EntryPoint(module, path, name)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "'' is not a module", FORMS),
        (":run", "'' is not a module", FORMS),
        ("sir:", "'' after the colon is not a Python name", FORMS),
        ("sir:run()", "'run()' after the colon is not a Python name", FORMS),
        ("sir:SIR.run", "'SIR.run' after the colon is not a Python name", FORMS),
        ("sir:a:b", "'a:b' after the colon is not a Python name", FORMS),
        ("sir:a b", "'a b' after the colon is not a Python name", FORMS),
        ("models..sir", "'models..sir' is not a module", FORMS),
        (".sir:run", "'.sir' is not a module", FORMS),
        ("1sir", "'1sir' is not a module", FORMS),
        ("sir run", "'sir run' is not a module", FORMS),
        (" sir", "' sir' is not a module", FORMS),
        ("sir\n", "'sir\\n' is not a module", FORMS),
        (
            "models/sir:run",
            "'models/sir' is not a module",
            "write the file with slashes and its ending: 'models/sir.py:name'",
        ),
        (
            "models\\sir.py:run",
            "'models\\\\sir.py' is not a file's path",
            "write the file with slashes and its ending: 'models/sir.py:name'",
        ),
        ("models/.py:run", "'models/.py' is not a file's path", None),
        ("/home/me/sir.py:run", "'/home/me/sir.py' is outside the project", FORMS),
        ("../sir.py:run", "'../sir.py' is outside the project", FORMS),
        ("models/../../sir.py:run", "'models/../../sir.py' is outside the project", FORMS),
        ("..\\sir.py:run", "'..\\\\sir.py' is outside the project", FORMS),
        ("C:\\models\\sir.py:run", "'\\\\models\\\\sir.py:run' after the colon is not a Python name", FORMS),
    ],
)
def test_anything_else_is_refused_and_the_hint_lists_the_forms(text: str, what: str, hint: str | None) -> None:
    with pytest.raises(ModelError) as raised:
        EntryPoint.parse(text)
    assert raised.value.what == what
    assert raised.value.where == text
    if hint:
        assert raised.value.hint == hint
