"""Small jobs with failures, missing parameters, missing values and several losses, for tests of figures and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import mops
from mops.jobs.job import Job
from mops.settings import Settings

MODEL = """
import math
import random


def run(params, seed, scenario):
    rng = random.Random(seed)
    if params["beta"] > 0.8:
        raise ValueError(f"beta {params['beta']} is too large")
    infected, daily = 10.0, []
    for day in range(6):
        infected *= 1 + params["beta"] * rng.random()
        daily.append(infected)
    share = [math.nan if value > 30 else value / 100 for value in daily]
    share[0] = None
    table = {"day": list(range(6)), "infected": daily, "share": share, "same": [1] * 6}
    return {"summary": {"peak": [max(daily)]}, "daily": table}


def ages(params, seed):
    n = random.Random(seed).random()
    return {"people": {"age": [20, 0, 10], "n": [n, 5.0, 7.0]}, "output": {"mean": [n]}}


def fit(params, replicates):
    last = [replicate["daily"]["infected"][-1].as_py() for replicate in replicates]
    return abs(sum(last) / len(last) - 40)


def shape(params, replicates):
    if params["kind"] == "b" and params["beta"] < 0.1:
        raise ValueError("no shape")
    return {"low": params["beta"], "high": -len(replicates[0]["daily"]) * params["beta"]}
"""


def sets() -> list[dict[str, Any]]:
    """Return 30 sets: a number, a constant, a text, and a parameter that only some have."""
    rng = np.random.default_rng(5)
    found: list[dict[str, Any]] = []
    for i, beta in enumerate(rng.random(30).round(6).tolist()):
        one = {"beta": beta, "gamma": 0.1, "kind": "ab"[i % 2], "rate": float(10 ** rng.uniform(-3, 1))}
        found.append(one | ({"extra": i} if i % 3 == 0 else {}))
    return found


def submitted(folder: Path, name: str = "figures", **study: Any) -> Job:
    """Run a job in a new project; ``study`` replaces keys of the study."""
    folder.mkdir(exist_ok=True)
    if not (folder / "mops.toml").exists():
        (folder / "mops.toml").touch()
    (folder / "model.py").write_text(MODEL)
    whole = {
        "model": "model:run",
        "targets": ["model:fit", "model:shape"],
        "n_replicates": 3,
        "parameter_sets": sets(),
    } | study
    settings = Settings(slots=1)
    return mops.submit(whole, project=folder, storage=folder / "s", name=name, settings=settings, local=True)
