"""`mops jobs report` writes one file."""

from __future__ import annotations

from .command_lab import CommandLab


def test_the_command_writes_a_file_named_after_the_job(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "report", job)
    assert (ran.code, ran.name) == (0, f"report-{job}.html")
    assert (lab.root / ran.name).read_text().startswith("<!DOCTYPE html>")


def test_the_path_can_be_chosen_and_json_names_it(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "report", job, "--out", "of.html", "--json")
    assert ran.json == {"job": job, "file": "of.html", "bytes": (lab.root / "of.html").stat().st_size}


def test_a_path_that_cannot_be_written_is_an_error(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    ran = lab.run("jobs", "report", job, "--out", "missing/of.html")
    assert ran.code == 4
    assert "the report cannot be written: No such file or directory" in ran.err
    assert "choose another path with --out" in ran.err


def test_an_unknown_job_is_an_error(finished: tuple[CommandLab, str]) -> None:
    lab, _ = finished
    ran = lab.run("jobs", "report", "dome")
    assert ran.code == 2
    assert "dome" in ran.err
