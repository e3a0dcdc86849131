"""What a program or a notebook does with a job: wait, watch, read its log, stop, resume, retry, delete."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mops
from mops.errors import JobError, JobFailed, RunnerEnded, UsageError
from mops.jobs.job import Job
from mops.settings import Settings
from mops.storage.progress_record import Progress
from waiting import until
from warm import warm

MODEL = """
import os, time

def run(params, seed):
    while os.path.exists(params["gate"]):
        time.sleep(0.02)
    print("the model says", params["x"])
    if params["x"] > 1:
        raise ValueError("too large")
    return {"y": [params["x"]]}
"""
SETTINGS = Settings(slots=1, batch_size=1)


class Lab:
    """A study whose simulations wait while the gate is closed."""

    def __init__(self, folder: Path):
        self.folder, self.gate, self.pids = folder, folder / "gate", []
        (folder / "mops.toml").touch()
        (folder / "model.py").write_text(MODEL)
        self.gate.touch()

    def submit(self, *values: int, wait: bool = False, settings: Settings = SETTINGS) -> Job:
        study = {"model": "model:run", "parameter_sets": [{"x": x, "gate": str(self.gate)} for x in values]}
        return mops.submit(
            study,
            project=self.folder,
            storage=self.folder / "s",
            name="job",
            settings=settings,
            local=True,
            wait=wait,
            on_detach=lambda _job, runner: self.pids.append(runner.pid),
        )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    found = Lab(tmp_path / "project")
    yield found
    for pid in found.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_job_without_wait_runs_in_another_process_and_can_be_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    job, seen = lab.submit(0, 1), []
    assert job.status().state == "running"
    assert "<strong>job</strong>" in job._repr_html_()
    assert "running: 0 of 2 simulations, 0 failed" in job._repr_html_()

    def show(now: Progress) -> None:
        lab.gate.unlink(missing_ok=True)
        seen.append(now)

    assert job.wait(show) is job
    assert (seen[0].job, seen[0].total, seen[-1].finished.simulations) == ("job", 2, 2)
    assert len(job.outputs("output")) == 2
    assert "succeeded: 2 of 2 simulations" in job._repr_html_()
    assert "the model says 1" in job.logs()
    assert job.logs(tail=0) == ""
    assert job.watch().state == "succeeded"
    (output,) = (path for path in (lab.folder.parent / "state").rglob("*") if path.is_file())
    assert "\x1b" not in job.logs() + output.read_text(), "a detached runner writes no control codes"


def test_failures_are_retried_and_a_job_is_deleted_from_its_object(lab: Lab) -> None:
    lab.gate.unlink()
    job = lab.submit(1, 2, wait=True)
    assert job.status().state == "partial"
    assert "1 failed, 1 error" in job._repr_html_()
    again = job.retry(name="again", settings=SETTINGS)
    assert (again.name, again.status().state, again.status().parent) == ("again", "partial", "job")
    with pytest.raises(JobError, match="again"):
        job.delete()
    again.delete()
    job.delete()
    with pytest.raises(JobError, match="no job"):
        mops.open_job("job", lab.folder / "s")
    assert "job" in job._repr_html_()  # an error in place of the state, because a notebook shows no exception here


def test_a_cancelled_job_resumes_from_its_object(lab: Lab) -> None:
    job = lab.submit(0, 1)
    assert job.cancel()
    assert job.wait().status().state == "cancelled"
    lab.gate.unlink()
    assert job.resume(settings=SETTINGS).status().state == "succeeded"
    assert not job.cancel()


def test_wait_raises_the_cause_of_a_failed_job(lab: Lab) -> None:
    lab.gate.unlink()
    cause = "2 simulations have failed, more than MODELOPS_JOB_MAX_FAILURES=1"
    with pytest.raises(JobFailed, match=cause):
        lab.submit(0, 2, 3, 4, wait=True, settings=Settings(slots=1, batch_size=1, max_failures="1"))
    job = mops.open_job("job", lab.folder / "s")
    with pytest.raises(JobFailed, match=cause):
        job.wait()
    assert job.watch().state == "failed"
    assert job.outputs("output").to_arrow()["y"].to_pylist() == [0], "the rows before stay"


def test_wait_raises_the_class_of_the_error_that_submit_raises(lab: Lab) -> None:
    lab.gate.unlink()
    study = {"model": "model:run", "parameter_sets": [{"x": 1, "gate": str(lab.gate)}], "outputs": ["z"]}
    where = {"project": lab.folder, "storage": lab.folder / "s", "settings": SETTINGS, "local": True}
    with pytest.raises(UsageError, match="the model has no output 'z'") as of_submit:
        mops.submit(study, name="here", **where)
    job = mops.submit(study, name="there", wait=False, **where)
    with pytest.raises(UsageError, match="the model has no output 'z'") as of_wait:
        job.wait()
    assert type(of_wait.value) is type(of_submit.value)


def test_wait_raises_if_the_runner_was_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed before its first sign of life, so its job counts as running for a while after its claim."""
    monkeypatch.setattr("mops.jobs.status.SILENT_SECONDS", 3.0)
    job = lab.submit(0)
    os.kill(lab.pids[0], signal.SIGKILL)
    with pytest.raises(RunnerEnded, match="the runner ended before the end of the job") as raised:
        job.wait()
    assert raised.value.hint == "run the rest: mops jobs resume job"


def test_an_error_before_the_job_exists_is_raised_at_once(lab: Lab) -> None:
    (lab.folder / "model.py").write_text("raise ImportError('not here')")
    with pytest.raises(UsageError, match="not here"):
        lab.submit(0)


WAIT = """
import mops

def show(now):
    print("shown", flush=True)

mops.open_job("job", {storage!r}).wait(show)
"""


def test_ctrl_c_stops_the_wait_and_not_the_job(lab: Lab) -> None:
    job = lab.submit(0)
    program = WAIT.format(storage=str(lab.folder / "s"))
    waits = warm().start_with_pipes(["-c", program], dict(os.environ), lab.folder)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "shown\n"
    waits.send_signal(signal.SIGINT)
    _, said = waits.communicate(timeout=60)
    assert "Interrupted: stopped waiting; job 'job' continues: job.wait() waits again" in said
    assert job.status().state == "running"
    lab.gate.unlink()
    until(lambda: job.status().state == "succeeded")
