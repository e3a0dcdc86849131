"""Entry points: how a study names code."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mops.attempt.display import best_losses
from mops.errors import ModelError
from mops.jobs.ranking import scored_sets
from mops.storage.progress_record import BestLoss
from mops.study.entry_point import EntryPoint, loss_labels

FORMS = "write 'package.module', 'module:name' or 'path/file.py:name', relative to the project root"


def test_every_form_is_read(subtests: pytest.Subtests) -> None:
    for text, module, path, name in [
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
    ]:
        with subtests.test(str((text, module, path, name))):
            assert EntryPoint.parse(text) == EntryPoint(module, path, name)


def test_anything_else_is_refused_and_the_hint_lists_the_forms(subtests: pytest.Subtests) -> None:
    for text, what, hint in [
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
    ]:
        with subtests.test(str((text, what, hint))):
            with pytest.raises(ModelError) as raised:
                EntryPoint.parse(text)
            assert raised.value.what == what
            assert raised.value.where == text
            if hint:
                assert raised.value.hint == hint


def test_a_loss_has_one_label_wherever_it_is_shown() -> None:
    """The page showed two losses as ``fit.sse`` if two files had a target ``fit``, and a ranking gave other labels."""
    losses = [("a.py:fit", "sse"), ("b.py:fit", "sse"), ("b.py:fit", "mae"), ("m:peak", "peak"), ("m:loss", "x")]
    labels = ["a.py:fit", "b.py:fit.sse", "b.py:fit.mae", "peak", "m:loss"]
    assert loss_labels([*losses, losses[0]]) == dict(zip(losses, labels, strict=True))
    best = best_losses([BestLoss(*pair, 1.0, "3f2a9c0d1b7e" * 5) for pair in losses])
    assert [text.partition(" (")[0] for _, text in best] == labels[: len(best)]
    table = pa.table(
        {
            "param_id": ["3f2a"] * len(losses),
            "group": pa.array([0] * len(losses), pa.int32()),
            "target": [target for target, _ in losses],
            "name": [name for _, name in losses],
            "loss": [1.0] * len(losses),
        }
    )
    assert scored_sets(table).labels == tuple(labels)
