"""The example notebook runs in a real kernel: progress, results, a second run."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import mops

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "notebook"))


def run(notebook: nbformat.NotebookNode, folder: Path) -> list[nbformat.NotebookNode]:
    """Return the code cells of a notebook after a run."""
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode, kind: str) -> list[str]:
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.timeout(240)
def test_the_example_shows_progress_and_results_and_runs_twice(folder: Path) -> None:
    notebook = nbformat.read(folder / "walks.ipynb", as_version=4)
    _, submitted, table = run(notebook, folder)
    (progress,) = shown(submitted, "text/html")
    assert "<strong>walks</strong>" in progress
    assert "120 of 120 simulations, 0 failed, 0 left" in progress
    assert shown(submitted, "text/plain")[-1] == "'succeeded'"
    assert "0.1" in shown(table, "text/html")[0]  # a drift of 0.1 comes to 10 after 100 days
    assert not [output for output in submitted.outputs if output.output_type == "stream"]
    _, again, _ = run(notebook, folder)
    assert shown(again, "text/plain") == ["'succeeded'"]
    assert mops.open_job("walks", folder / "mops-storage", local=True).status().attempt == 1


FAILING = """
import mops

limit = 1


def simulate(params, seed):
    if params["x"] > limit:
        raise ValueError("x is too large")
    return {"y": [params["x"]]}
"""
RUN = (
    "job = mops.submit(model=simulate, sets=[{'x': 1}, {'x': 2}], name='j', if_exists='open', local=True)\njob.causes()"
)


@pytest.mark.timeout(240)
def test_a_failure_in_a_cell_names_the_cell_and_shows_the_line(tmp_path: Path) -> None:
    (tmp_path / "mops.toml").touch()
    cells = [nbformat.v4.new_code_cell(text) for text in (FAILING, RUN)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    _, ran = run(notebook, tmp_path)
    assert "ValueError: x is too" in shown(ran, "text/html")[-1]
    (cause,) = mops.open_job("j", tmp_path / "mops-storage", local=True).causes().to_arrow().to_pylist()
    assert cause["place"] == "cell of simulate:8 in simulate"
    assert 'raise ValueError("x is too large")' in cause["traceback"]
