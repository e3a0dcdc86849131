"""System tests: real runners in separate processes, real signals, and a storage in the test's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from study_lab import StudyLab, lab_in


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[StudyLab]:
    with lab_in(tmp_path) as found:
        yield found
