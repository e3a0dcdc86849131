"""`mops jobs report` writes one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mops.errors import MopsError, StorageError, UsageError
from mops.report.render import Report

from .command_lab import CommandLab

OTHER = "name another file with --to"


def test_the_command_writes_a_file_named_after_the_job(finished: tuple[CommandLab, str]) -> None:
    """`--to` and `--json` are checked in test_calibrate.py: a report takes 3 s."""
    lab, job = finished
    ran = lab.run("jobs", "report", job)
    assert (ran.code, ran.name) == (0, f"report-{job}.html")
    assert (lab.root / ran.name).read_text().startswith("<!DOCTYPE html>")


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a wrong path was an error of the storage, exit code 4."""
    monkeypatch.chdir(tmp_path)
    wrong: list[tuple[str, str, str, type[MopsError]]] = [
        ("missing/of.html", "No such file or directory", f"create the folder, or {OTHER}", UsageError),
        (".", "Is a directory", OTHER, UsageError),
        ("/dev/full", "No space left on device", OTHER, StorageError),
    ]
    for out, fault, hint, kind in wrong:
        with pytest.raises(kind) as raised:
            Report("done", "<!DOCTYPE html>").save(out)
        assert str(raised.value) == f"the report cannot be written: {fault}\n  at: {out}\nhint: {hint}"
