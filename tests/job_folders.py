"""The folder of a job in a storage that is a folder."""

from __future__ import annotations

import json
from pathlib import Path


def folder_of(storage: str | Path, job: str) -> Path:
    """Return the folder with the files of a job."""
    folder = Path(storage, "jobs", job)
    return folder / json.loads((folder / "job.json").read_bytes())["id"]
