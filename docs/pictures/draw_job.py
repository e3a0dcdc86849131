"""Draws the pictures of real jobs: ``python docs/pictures/draw_job.py`` runs examples and writes PNG files.

It takes about a minute, and needs mops with the extras ``demo``, ``examples``, ``plots`` and ``ui``, and Chromium with
the extra ``browser``.
Run it after a change of a plot, the report or the web page, look at the pictures, and commit them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import mops
from mops.figures.charts import Chart
from mops.jobs.job import Job

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
MOST_BYTES = 150_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = mops.submit(copy_of("sir", folder) / "study.json", name="sir", local=True)
        for name, draw in PLOTS.items():
            draw(job).save(HERE / name, ppi=110)
        report = job.report(weights=WEIGHTS).save(Path(folder) / "report.html").as_uri()
        take_picture([report], "#losses figure", HERE / "report-losses.png")
        show_job(job, HERE / "page-job.png")
        show_sobol(copy_of("sobol", folder), HERE / "report-sobol.png")
    for path in sorted(HERE.glob("*.png")):
        size = path.stat().st_size
        assert size <= MOST_BYTES, f"{path.name} has {size:,} bytes"


def copy_of(example: str, folder: str) -> Path:
    ignored = shutil.ignore_patterns("mops-storage")
    return Path(shutil.copytree(EXAMPLES / example, Path(folder) / example, ignore=ignored))


def show_sobol(project: Path, picture: Path) -> None:
    """Write the Sobol indices of a report."""
    subprocess.run([sys.executable, "sample.py"], cwd=project, check=True)
    job = mops.submit(project / "study.json", name="sobol", local=True)
    take_picture([job.report().save(project / "report.html").as_uri()], "#sensitivity figure", picture)


def show_job(job: Job, picture: Path) -> None:
    """Write how ``mops ui`` shows a job."""
    options = ["--no-open", "--read-only", "--port", "0", "--storage", job.files.url, "--local"]
    command = [sys.executable, "-m", "mops.cli.start", "ui", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own command
        try:
            url = server.stdout.readline().strip()
            take_picture([url, f"{url.partition('?')[0]}jobs/{job.name}"], "main", picture)
        finally:
            server.terminate()


def take_picture(pages: list[str], selector: str, picture: Path) -> None:
    """Open pages one after the other, and write how Chromium shows a part of the last one."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
        for page in pages:
            opened.goto(page)
        opened.locator(selector).first.screenshot(path=picture)
        browser.close()
    Image.open(picture).convert("RGB").quantize(64).save(picture, optimize=True)


WEIGHTS = {"daily_cases": 1.0, "survey": 1.0}
PLOTS: dict[str, Callable[[Job], Chart]] = {
    "plot-fan.png": lambda job: job.plot.fan("daily", x="day", y=["cases", "infected"], best=5, weights=WEIGHTS),
    "plot-pairs.png": lambda job: job.plot.pairs(weights=WEIGHTS),
}
"""Each picture of a plot, by its file."""

if __name__ == "__main__":
    main()
