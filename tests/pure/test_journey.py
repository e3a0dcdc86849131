"""Every function and class that docs/internals/journey.md names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

JOURNEY = Path(__file__).parents[2] / "docs" / "internals" / "journey.md"
NAMES = sorted(set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", JOURNEY.read_text())) - {"study.json", "job.json"})


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith((".json", ".parquet", ".py", ".md"))])
def test_every_name_in_the_journey_exists(name: str) -> None:
    parts = f"mops.{name.removeprefix('mops.')}".split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    pytest.fail(f"nothing is called {name}")
