"""``mops ui`` over a real Azure Blob server: the list, a job that runs, its report, and its cancellation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import azurite
import httpx
import pytest

from mops.jobs.status import JobState
from mops.storage.files import Files
from programs import environment
from waiting import until

MOPS = Path(sys.executable).with_name("mops")
MODEL = """
import os, time

def run(params, seed):
    while params["x"] and os.path.exists(os.environ["MOPS_TEST_GATE"]):
        time.sleep(0.02)
    return {"out": {"y": [params["x"]]}}
"""

pytestmark = pytest.mark.azurite


@pytest.fixture
def variables(tmp_path: Path, azure) -> Iterator[dict[str, str]]:
    """The environment of commands in a project whose simulations wait while the file ``gate`` exists."""
    gate = tmp_path / "gate"
    gate.touch()
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    study = {"model": "model:run", "parameter_sets": [{"x": 0}, {"x": 1}], "n_replicates": 1}
    (tmp_path / "study.json").write_text(json.dumps(study))
    yield environment() | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string(azure.port),
        "MODELOPS_STORAGE": azure.url,
        "MODELOPS_JOB_SLOTS": "2",
        "MODELOPS_JOB_CHECKPOINT_SECONDS": "1",
        "MOPS_TEST_GATE": str(gate),
    }
    gate.unlink(missing_ok=True)


@contextmanager
def started(tmp_path: Path, variables: dict[str, str], *command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [MOPS, *command], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_job_is_listed_followed_cancelled_and_reported(tmp_path: Path, azure, variables: dict[str, str]) -> None:
    files = Files.open(azure.url)

    def has_committed() -> bool:
        return bool(files.get_many(["jobs/held/job.json"])[0]) and JobState(files, "held").status().groups == 1

    with (
        started(tmp_path, variables, "jobs", "submit", "study.json", "--name", "held") as runner,
        started(tmp_path, variables, "ui", "--no-open", "--port", "0") as page,
    ):
        until(lambda: has_committed() or runner.poll() is not None)
        assert runner.poll() is None, runner.communicate()[1]
        assert page.stdout is not None
        url = page.stdout.readline().strip()
        here = url.partition("/?")[0]
        with httpx.Client(base_url=here, trust_env=False, timeout=60) as client:
            client.get(url)
            assert "1 of 2" in client.get("/").text
            assert "running" in client.get("/jobs/held").text
            assert "1 good" in client.get("/jobs/held/parts").json()["head"]
            form = client.get("/jobs/held/cancel").text
            fields = dict(re.findall(r'name="(\w+)" value="([\w-]+)"', form))
            assert JobState(files, "held").status().state == "running"
            answer = client.post("/jobs/held/cancel", data=fields, headers={"Origin": here})
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/held")
            until(lambda: JobState(files, "held").status().state == "cancelled")
            assert "cancelled" in client.get("/").text
            report = client.get("/jobs/held/report")
            assert report.status_code == 200
            assert "held" in report.text
        (tmp_path / "gate").unlink()
        runner.wait(60)
