"""Notebooks in JupyterLab, in a real browser: progress moves, tables show, an interrupt keeps the job.

The pages here are not those of the fixture `page`, which fails at each error on the console: JupyterLab itself reports
some, such as the missing icon of a kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

import mops
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}  # else a dialog lies over the notebook
PATIENCE_MS = 120_000

GATED = """
import time
from pathlib import Path

import mops

gate = Path("gate").absolute()


def simulate(params, seed):
    if params["x"] > 0:
        while not gate.exists():
            time.sleep(0.02)
    return {"y": [params["x"]]}
"""
SUBMIT = "mops.submit(model=simulate, sets=[{'x': x} for x in range(4)], name='gated', local=True)"
RESUME = """
job = mops.open_job('gated', local=True)
job.resume()
job.outputs('output', params=True)
"""


@dataclass
class Lab:
    """A running JupyterLab."""

    folder: Path
    url: str
    token: str

    @contextmanager
    def opened(self, browser: Browser, name: str) -> Iterator[Page]:
        """Open a notebook, and wait until its kernel is ready."""
        page = browser.new_page(viewport={"width": 1200, "height": 1600})  # only visible cells are in the page
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{self.url}lab/tree/{name}?token={self.token}&reset")
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
        yield page
        page.close()

    def write(self, name: str, *cells: str) -> None:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    (folder / "mops.toml").touch()
    news = home / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True)
    (news / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
    env = (
        os.environ
        | {f"JUPYTER_{kind.upper()}_DIR": str(home / kind) for kind in ("config", "data", "runtime")}
        | {"IPYTHONDIR": str(home / "ipython"), "JUPYTER_TOKEN": "secret"}
    )
    options = ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], cwd=folder, env=env, stdout=log, stderr=log
        ) as server,
    ):
        try:
            said = (home / "log").read_text
            file = until(lambda: next((home / "runtime").glob("jpserver-*.json"), None), 120, said=said)
            info = until(lambda: json.loads(file.read_text() or "null"), said=said)
            yield Lab(folder, info["url"], info["token"])
        finally:
            (folder / "gate").touch()  # after a failure too, no simulation waits on
            server.terminate()  # it ends its kernels first


def choose(page: Page, menu: str, command: str) -> None:
    """Choose an entry of JupyterLab's menu bar."""
    page.locator(f'.lm-MenuBar-item:has-text("{menu}")').click()
    page.locator(f'.lm-Menu-item[data-command="{command}"]').click()


def run(cell: Locator) -> None:
    cell.locator(".cm-content").click()
    cell.page.keyboard.press("Shift+Enter")


@pytest.mark.timeout(600)
def test_progress_moves_and_an_interrupted_job_resumes(lab: Lab, browser: Browser) -> None:
    lab.write("gated.ipynb", GATED, SUBMIT, RESUME)
    with lab.opened(browser, "gated.ipynb") as page:
        model, submit, resume = (page.locator(".jp-CodeCell").nth(number) for number in range(3))
        run(model)
        run(submit)
        submit.get_by_text("1 of 4 simulations").wait_for()  # the cell still runs: the gate is closed
        assert submit.locator(".jp-InputPrompt").inner_text() == "[*]:"

        choose(page, "Kernel", "kernelmenu:interrupt")
        submit.get_by_text("KeyboardInterrupt: job 'gated' was stopped").wait_for()
        job = mops.open_job("gated", lab.folder / "mops-storage", local=True)
        assert job.status().state == "cancelled"

        run(resume)
        resume.get_by_text("1 of 4 simulations").wait_for()
        (lab.folder / "gate").touch()
        resume.get_by_text("4 of 4 simulations").wait_for()
        table = resume.locator("table")
        table.wait_for()
        assert table.locator("thead").inner_text().split()[:2] == ["group", "replicate"]
        assert table.locator("tbody tr").count() == 4
        assert job.status().state == "succeeded"
