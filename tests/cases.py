"""Cases of one test that need a folder each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def case_folder(subtests: pytest.Subtests, parent: Path, case: object) -> Iterator[Path]:
    """Run the body as a subtest, with an empty folder."""
    with subtests.test(str(case)):
        yield Path(tempfile.mkdtemp(dir=parent))
