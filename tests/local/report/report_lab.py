"""Real jobs of a small model, their reports as files, and what a browser shows of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mops
from mops.jobs.job import Job
from mops.report.content import Figure
from mops.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODEL = """
import os, random, time

def run(params, seed):
    while os.path.exists(params.get("gate", "")):
        time.sleep(0.02)
    rng = random.Random(seed)
    beta, rate = params["beta"], params.get("rate", 1.0)
    if beta > 0.7:
        raise ValueError(f"beta {beta} is too large")
    days = list(range(20))
    return {"daily": {"day": days, "cases": [(beta * day + rng.random()) * rate for day in days]}}

def fit(params, replicates):
    last = [replicate["daily"]["cases"][-1].as_py() for replicate in replicates]
    return {"last": abs(sum(last) / len(last) - 8), "beta": abs(params["beta"] - 0.4)}
"""
ODD_MODEL = """
from datetime import date

def run(params, seed):
    if params["long" * 75] > 0.7:
        raise ValueError("too large")
    days = [date(2024, 1, day) for day in (1, 2, 3)]
    return {"daily": {"date": days, "cases": [params["rank"] * i for i in range(3)]}, "summary": {"peak": [seed % 7]}}

def rank(params, replicates):
    return 2.0

def summary(params, replicates):
    return {"peak": 1.0, "low": 0.0}
"""
ODD_TARGETS = ["model:rank", "model:summary"]
WEIGHTS = {"fit.last": 1.0, "fit.beta": 1.0}
ODD_WEIGHTS = {"rank": 1.0, "summary.peak": 1.0, "summary.low": 1.0}
SETTINGS = Settings(slots=2, batch_size=20, retries=0)


def submit(folder: Path, sets: list[dict[str, Any]], name: str = "waves", **options: Any) -> Job:
    """Run a job of the model, with its storage in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mops.toml").touch()
    if not (folder / "model.py").exists():
        (folder / "model.py").write_text(MODEL)
    fields = options.pop("fields", {})
    study = {"model": "model:run", "targets": ["model:fit"], "n_replicates": 2, "parameter_sets": sets} | fields
    where = {"project": folder, "storage": folder / "storage", "local": True}
    return mops.submit(study, name=name, **where, **({"settings": SETTINGS} | options))


def odd_design(n: int) -> list[dict[str, Any]]:
    """Return sets of the odd model: parameters called as columns of figures, a long name; all losses are equal."""
    return [{"rank": n - i, "is_best": i % 3, "long" * 75: (i + 0.5) / n, "policy": "ab"[i % 2]} for i in range(n)]


def design(n: int) -> list[dict[str, Any]]:
    """Return sets of which about 30 % fail."""
    return [
        {"beta": round((i + 0.5) / n, 6), "rate": round(0.5 + (i * 0.618) % 1, 6), "policy": "ab"[i % 2]}
        for i in range(n)
    ]


class Opened:
    """A report in a browser, and each address that the page asked for."""

    def __init__(self, page: Page, path: Path):
        self.page, self.requests = page, []
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        self.path = path

    @property
    def foreign(self) -> list[str]:
        """Return the addresses beyond the file itself."""
        return [url for url in self.requests if url != self.path.as_uri()]

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def empty_figures(self) -> list[str]:
        """Return the titles of visible figures without marks."""
        return list(
            self.page.evaluate(
                """[...document.querySelectorAll("figure")].filter((figure) => {
                  const svg = [...figure.querySelectorAll("svg")].find((one) => one.checkVisibility());
                  const marks = svg ? [...svg.querySelectorAll("path, rect, line")] : [];
                  return !marks.some((mark) => mark.getBBox().width + mark.getBBox().height > 4);
                }).map((figure) => figure.querySelector("h3").textContent)"""
            )
        )


def layers_of(figure: Figure) -> list[dict[str, Any]]:
    """Return the layers of a figure, each with its rows."""
    rows, around = figure.spec["datasets"], figure.spec.get("data")  # the rows of all layers
    return [layer | {"rows": rows[layer.get("data", around)["name"]]} for layer in figure.spec["layer"]]


def saved(job: Job, folder: Path, weights: dict[str, float] | None = None) -> Path:
    return job.report(weights=weights).save(folder / f"{job.name}.html")
