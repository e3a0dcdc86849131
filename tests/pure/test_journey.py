"""Every function and class that docs/internals/journey.md names exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

JOURNEY = Path(__file__).parents[2] / "docs" / "internals" / "journey.md"
NAMES = set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", JOURNEY.read_text()))
FILES = (".json", ".parquet", ".py", ".md")


def test_every_name_in_the_journey_exists() -> None:
    names = [f"mops.{name.removeprefix('mops.')}" for name in NAMES if not name.endswith(FILES)]
    assert len(names) > 100
    assert [name for name in names if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or a name of a module."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
