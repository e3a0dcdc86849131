"""Children with the interpreter and the variables of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mops
from mops.errors import ModelError
from mops.task import JobContext
from mops.worker.environment import child_environment
from mops.worker.pool import Pool


@pytest.fixture
def context() -> JobContext:
    return JobContext("job", "1", "bundle", "storage", "model:run", "baseline", (), None, slots=1)


def refusal(
    context: JobContext, project: Path, code: str = "import sys\nraise RuntimeError(sys.modules['mops'].__file__)\n"
) -> ModelError:
    (project / "model.py").write_text(code)
    pool = Pool(context, str(project), 1)
    try:
        with pytest.raises(ModelError) as raised:
            pool.check()
    finally:
        pool.close()
    return raised.value


def test_a_missing_interpreter_is_reported_and_leaves_nothing(context: JobContext, tmp_path: Path) -> None:
    """The path may not exist on a machine other than that of the submit."""
    given = child_environment(None, sys.executable).of(context)
    refused = refusal(JobContext(**{**vars(given), "python": "/nowhere/python"}), tmp_path)
    assert str(refused) == (
        "the interpreter of the simulations cannot be started: No such file or directory\n"
        "  at: /nowhere/python\n"
        "hint: give --python a path that exists on every machine that runs simulations"
    )


def test_a_removed_environment_is_reported(context: JobContext, tmp_path: Path) -> None:
    refused = refusal(JobContext(**{**vars(context), "python": "/nowhere/python", "install_s": 1.0}), tmp_path)
    assert refused.hint == "the environment that mops made was removed; mops jobs resume makes a new one"


def test_a_library_that_is_missing_where_mops_installs_is_to_be_named_as_a_dependency(
    context: JobContext, tmp_path: Path
) -> None:
    refused = refusal(JobContext(**{**vars(context), "install_s": 60.0}), tmp_path, "import tiny\n")
    assert "ModuleNotFoundError: No module named 'tiny'" in refused.what
    assert "if it is a library, name it in requirements.txt, uv.lock or pyproject.toml" in str(refused.hint)


def test_a_child_runs_the_workers_mops_even_if_its_environment_has_another(context: JobContext, tmp_path: Path) -> None:
    """The worker and the child must use the same protocol, but the environment may contain an older mops."""
    (tmp_path / "other" / "mops").mkdir(parents=True)
    (tmp_path / "other" / "mops" / "__init__.py").write_text("raise RuntimeError('the wrong one')\n")
    given = child_environment({"PYTHONPATH": str(tmp_path / "other")}, sys.executable)
    assert f"RuntimeError: {mops.__file__}" in str(refusal(given.of(context), tmp_path))


def test_no_repr_contains_values_of_variables(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask logs the arguments of a task that raises."""
    monkeypatch.setenv("API_TOKEN", "c2VjcmV0")
    given = child_environment({"API_TOKEN": None}, None)
    assert given.of(context).env == {"API_TOKEN": "c2VjcmV0"}
    assert "c2VjcmV0" not in repr(given) + repr(given.of(context))
