"""`mops jobs report` writes one file."""

from __future__ import annotations

import pytest

from .command_lab import CommandLab


def test_the_command_writes_a_file_named_after_the_job(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "report", job)
    assert (ran.code, ran.name) == (0, f"report-{job}.html")
    assert (lab.root / ran.name).read_text().startswith("<!DOCTYPE html>")


def test_the_path_can_be_chosen_and_json_names_it(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "report", job, "--to", "of.html", "--json")
    assert ran.json == {"job": job, "file": "of.html", "bytes": (lab.root / "of.html").stat().st_size}


@pytest.mark.parametrize(
    ("out", "fault", "hint", "code"),
    [
        ("missing/of.html", "No such file or directory", "create the folder, or name another file with --to", 2),
        (".", "Is a directory", "name another file with --to", 2),
        ("/dev/full", "No space left on device", "name another file with --to", 4),
    ],
)
def test_a_path_that_cannot_be_written_is_an_error(
    finished: tuple[CommandLab, str], out: str, fault: str, hint: str, code: int
) -> None:
    """Regression: a wrong path was an error of the storage, exit code 4."""
    lab, job = finished
    ran = lab.run("jobs", "report", job, "--to", out)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == f"error: the report cannot be written: {fault}\n  at: {out}\nhint: {hint}\n"


def test_an_unknown_job_is_an_error(finished: tuple[CommandLab, str]) -> None:
    lab, _ = finished
    ran = lab.run("jobs", "report", "dome")
    assert ran.code == 2
    assert "dome" in ran.err
