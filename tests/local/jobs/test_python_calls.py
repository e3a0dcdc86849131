"""A study run by `mops.submit`, as a notebook does."""

from __future__ import annotations

from pathlib import Path

import pytest

import mops
from mops.attempt.reporting.progress import Snapshot
from mops.settings import Settings


def test_a_path_names_the_storage_and_an_error_in_on_progress_reaches_the_caller(tmp_path: Path) -> None:
    """A Path raised an AttributeError; what on_progress raised was in the job's log only."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    (tmp_path / "study.json").write_text('{"model": "model:run", "parameter_sets": [{"x": 1}, {"x": 2}]}')

    def broken(_: Snapshot) -> None:
        raise ZeroDivisionError("a bar without a width")

    storage, settings = tmp_path / "storage", Settings(slots=1)
    with pytest.warns(RuntimeWarning, match=r"job 'waves' continues(.|\n)*in broken(.|\n)*a bar without a width"):
        job = mops.submit(
            tmp_path / "study.json", storage=storage, name="waves", settings=settings, local=True, on_progress=broken
        )
    assert job.status().state == "succeeded"
    assert mops.open_job("waves", storage).outputs("output").count_rows() == 2


def test_a_job_with_many_small_parts_has_few_after_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text("def run(params, seed):\n    return {'y': [params['x']]}\n")
    sets = ", ".join(f'{{"x": {x}}}' for x in range(40))
    (tmp_path / "study.json").write_text(f'{{"model": "model:run", "parameter_sets": [{sets}]}}')
    settings = Settings(slots=1, checkpoint_seconds=0, batch_size=1)
    with caplog.at_level("INFO"):
        job = mops.submit(tmp_path / "study.json", storage="memory://many", name="many", settings=settings, local=True)
    assert "many: merged small parts: 40 parts are now 1" in caplog.text
    assert len(job.paths("output")) == 1
    assert sorted(job.outputs("output").to_table()["y"].to_pylist()) == list(range(40))
    assert job.verify() == []
