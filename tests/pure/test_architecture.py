"""docs/internals/architecture.md and its picture agree with the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from test_imports import FLOORS

import mops

INTERNALS = Path(__file__).parents[2] / "docs" / "internals"
PACKAGE = Path(mops.__file__).parent


def test_the_picture_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("draw", INTERNALS / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert tuple(reversed(FLOORS)) == draw.FLOORS, "the floors of draw.py in reverse order"
    drawn = (INTERNALS / "architecture.svg").read_text()
    assert drawn == draw.drawing(), "run: python docs/internals/draw.py"


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*(?:\.py|/))`", (INTERNALS / "architecture.md").read_text()))
    assert len(named) > 30
    there = (PACKAGE, INTERNALS.parents[1])
    missing = sorted(name for name in named if not any((of / name).exists() for of in there) and not _below(name))
    assert missing == []


def _below(name: str) -> bool:
    """Whether any package has a file or folder of this name: rows of the table use short names."""
    return any(path.name == name.rstrip("/") for path in PACKAGE.rglob("*"))
