"""Data outside the project is checked before a job exists on this machine, and by each worker of a cluster."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from .command_lab import CommandLab
from .test_wrong_input import refused_and_nothing_written


@pytest.fixture
def data(lab: CommandLab) -> Path:
    """A path that the project declares, and that does not exist yet. The model reads the file."""
    path = lab.root / "outside" / "factor.txt"
    lab.write("mops.toml", f'[data]\npaths = ["{path}"]\n')
    lab.write(
        "reads.py", f"def run(params, seed):\n    return {{'y': [params['x'] * int(open({str(path)!r}).read())]}}\n"
    )
    lab.write_study(model="reads:run")
    return path


def test_missing_data_is_refused_with_the_machine_and_the_path(lab: CommandLab, data: Path) -> None:
    for command in ("jobs submit", "study check", "jobs submit --detach"):
        ran = lab.run(*command.split(), lab.study)
        where = f"{socket.gethostname()}: {data}"
        refused_and_nothing_written(lab, ran, "the data that mops.toml declares", where=where)


def test_a_job_runs_when_the_data_is_there(lab: CommandLab, data: Path) -> None:
    data.parent.mkdir()
    data.write_text("3")
    ran = lab.submit("--name", "job")
    assert ran.code == 0, ran.err


def test_a_mistake_in_observed_is_refused_before_a_job_exists(lab: CommandLab) -> None:
    """Regression: the job ran, and only its report said that the data was missing, or nothing did."""
    for text, said in [
        ("[[observe]]\n", "did you mean [[observed]]?"),
        ('[[observed]]\noutput = "daily"\n', "write [[observed]], and below it the texts output, x, y, file"),
        ('[[observed]]\noutput = "daily"\nx = "day"\ny = "y"\nfile = "n.csv"\n', "the project has no file 'n.csv'"),
        ("observed = 3\n", "'observed' in mops.toml is not a list of tables"),
    ]:
        lab.write("mops.toml", text)
        for command in ("jobs submit", "study check --no-run"):
            refused_and_nothing_written(lab, lab.run(*command.split(), lab.study), said, where="mops.toml\n")


def test_exported_results_are_not_in_the_bundle_of_the_next_job(lab: CommandLab) -> None:
    assert lab.submit("--name", "one").code == 0
    ran = lab.run("jobs", "results", "one", "--to", lab.project / "out", "--format", "csv")
    assert ran.code == 0, ran.err
    assert lab.submit("--name", "two").code == 0
    one, two = (json.loads((lab.storage / "jobs" / job / "job.json").read_text())["bundle"] for job in ("one", "two"))
    assert one == two
