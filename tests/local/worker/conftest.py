"""Fixtures for the tests of child processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_lab import PoolLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PoolLab]:
    made = PoolLab(tmp_path)
    yield made
    made.close()
