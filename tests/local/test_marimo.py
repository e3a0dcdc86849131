"""A notebook of marimo, in a real browser: the cell shows the progress of its job, then the table of the next cell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from programs import free_port
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 120_000

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import time
    from pathlib import Path

    import mops

    gate = Path("gate").absolute()
    return gate, mops, time


@app.cell
def _(gate, time):
    def simulate(params, seed):
        while params["x"] > 0 and not gate.exists():
            time.sleep(0.02)
        return {"y": [params["x"]]}

    return (simulate,)


@app.cell
def _(mops, simulate):
    job = mops.submit(model=simulate, sets=[{"x": x} for x in range(4)], name="gated", local=True)
    return (job,)


@app.cell
def _(job):
    job.outputs("output", params=True)
    return
"""


def answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Serve the notebook as an app: marimo runs it for each page that opens."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    port = free_port()
    command = [sys.executable, "-m", "marimo", "run", "notebook.py", "--headless", "--no-token", "--port", str(port)]
    env = os.environ | {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log) as server,
    ):
        try:
            until(lambda: answers(("127.0.0.1", port)), 120, said=(tmp_path / "log").read_text)
            yield f"http://127.0.0.1:{port}"
        finally:
            (tmp_path / "gate").touch()  # after a failure too, no simulation waits on
            server.terminate()


@pytest.mark.timeout(400)
def test_progress_moves_and_the_table_shows(url: str, page: Page, tmp_path: Path) -> None:
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.get_by_text("1 of 4 simulations").wait_for()
    (tmp_path / "gate").touch()
    page.get_by_text("4 of 4 simulations").wait_for()
    page.get_by_text("output 'output' of job 'gated': 4 rows").wait_for()
    assert page.locator("table tbody tr").count() == 4
