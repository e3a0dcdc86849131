"""``mops ui`` of a user who is connected to a service: phases of runners, and changes that go to the service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from mops.jobs.job import open_job
from waiting import until

from .command_lab import CommandLab
from .test_calibrate_on_service import Jobs, calls, service

__all__ = ["service"]  # the fixture


@pytest.fixture
def page(lab: CommandLab, service: Jobs) -> Iterator[httpx.Client]:
    """The page, with a job ``fit`` that runs on the service."""
    Path(lab.environment["HOLD"]).touch()
    lab.write_study(parameter_sets=[{"x": 1}, {"x": 2}], n_replicates=1)
    ran = lab.run("jobs", "submit", "study.json", "--name", "fit", cwd=lab.project)
    assert ran.code == 0, ran.err
    until(lambda: calls(lab), said=service.log.read_text)
    with lab.start("ui", "--no-open", "--port", 0, cwd=lab.project) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(base_url=url.partition("/?")[0], trust_env=False, timeout=60) as client:
                client.get(url)
                yield client
        finally:
            process.kill()


def change(page: httpx.Client, verb: str) -> None:
    """Confirm a change of the job."""
    path = f"/jobs/fit/{verb}"
    form = page.get(path)
    assert form.status_code == 200, form.text
    fields = dict(re.findall(r'name="(\w+)" value="([\w-]+)"', form.text))
    answer = page.post(path, data=fields, headers={"Origin": str(page.base_url).rstrip("/")})
    assert answer.status_code == 303, answer.text


def shows(page: httpx.Client, path: str, text: str) -> Callable[[], bool]:
    return lambda: re.search(text, page.get(path).text) is not None


def test_a_killed_runner_shows_with_its_phase_and_the_page_resumes_it_on_the_service(
    lab: CommandLab, service: Jobs, page: httpx.Client
) -> None:
    until(shows(page, "/", ">running</span>"))
    service.processes["fit-1"].kill()
    service.processes["fit-1"].wait()
    until(shows(page, "/jobs/fit", "Kubernetes: failed"))
    until(shows(page, "/", ">interrupted</span><small>Kubernetes: failed"))
    change(page, "resume")
    assert list(service.manifests)[-1] == "fit-2"
    until(shows(page, "/jobs/fit", "Attempt 2"), said=service.log.read_text)
    Path(lab.environment["HOLD"]).unlink()
    until(lambda: open_job("fit", str(lab.storage)).status().state == "succeeded", said=service.log.read_text)
    assert "Kubernetes" not in page.get("/").text


def test_the_page_works_without_an_answer_of_kubernetes_and_its_cancel_stops_the_runner(
    lab: CommandLab, service: Jobs, page: httpx.Client
) -> None:
    assert json.loads(lab.run("jobs", "list", "--json").out)[0]["job"] == "fit"
    service.refuses = True
    until(shows(page, "/", 'role="alert"'))
    text = page.get("/").text
    assert "fit" in text
    assert "running" in text
    assert page.get("/jobs/fit").status_code == 200
    service.refuses = False
    change(page, "cancel")
    until(lambda: open_job("fit", str(lab.storage)).status().state == "cancelled", said=service.log.read_text)
    assert service.processes["fit-1"].wait(60) is not None
    until(shows(page, "/jobs/fit", "cancelled"))
