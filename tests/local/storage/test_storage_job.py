"""A whole job on each storage: submitted, interrupted, resumed, read and verified."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made import ID, N_GROUPS, claimed, commit, created, ended, lives

import mops
from mops.errors import (
    ClusterError,
    CorruptRecord,
    ImportTimeout,
    JobError,
    JobFailed,
    ModelError,
    MopsError,
    RunnerEnded,
    StorageError,
    Terminated,
)
from mops.jobs.job import open_job
from mops.jobs.status import JobState
from mops.jobs.summary import summary_of
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths
from mops.storage.progress_record import Progress, write_error

MODEL = """
import os
import time

import numpy as np


def simulate(params, seed):
    time.sleep(float(os.environ.get("PAUSE", 0)))
    rng = np.random.default_rng(seed)
    return {"daily": {"day": np.arange(5), "cases": rng.poisson(params["rate"], 5)}, "final": {"total": [rng.random()]}}


def mean(params, replicates):
    return float(np.mean([r["daily"]["cases"].to_numpy().mean() for r in replicates]))
"""
N_SETS, N_REPLICATES = 12, 3


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    path = tmp_path / "study.json"
    sets = [{"rate": 1.0 + i} for i in range(N_SETS)]
    fields = {
        "model": "model:simulate",
        "n_replicates": N_REPLICATES,
        "targets": ["model:mean"],
        "parameter_sets": sets,
    }
    path.write_text(json.dumps(fields))
    return path


def rows(job: mops.Job, output: str) -> pl.DataFrame:
    return pl.from_arrow(job.outputs(output).to_arrow()).sort("group", "replicate", maintain_order=True)


def test_a_job_is_written_read_and_verified(study: Path, storage: Any) -> None:
    job = mops.submit(study, storage=storage.url, settings=Settings(slots=1, batch_size=5))
    assert job.status().state == "succeeded"
    assert rows(job, "daily").height == N_SETS * N_REPLICATES * 5
    assert rows(job, "final").columns == ["group", "replicate", "total", "seed", "param_id"]
    losses = job.losses(params=True).to_arrow()
    assert losses["rate"].to_pylist() == [1.0 + i for i in range(N_SETS)]
    assert job.failures().to_arrow().num_rows == 0
    files = Files.open(storage.url)
    assert verify(files, job.record.paths, N_SETS) == []
    with pytest.raises(JobError, match="complete"):
        mops.resume(mops.open_job(job.name, storage.url))


def test_a_missing_or_damaged_part_is_an_error_with_its_path(study: Path, tmp_path: Path) -> None:
    job = mops.submit(study, storage=str(tmp_path / "storage"), settings=Settings(slots=1))
    part = min((tmp_path / "storage").rglob("losses/*.parquet"))
    part.write_bytes(b"no Parquet")
    with pytest.raises(CorruptRecord, match="is damaged: it is not a Parquet file") as raised:
        job.losses().to_arrow()
    assert f"mops jobs verify {job.name}" in str(raised.value.hint)
    part.unlink()
    with pytest.raises(CorruptRecord, match="is missing") as raised:
        job.losses().to_arrow()
    assert str(raised.value.where) == str(part)


def test_a_runner_that_ends_its_job_while_the_state_is_read_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: `job.wait()` raised RunnerEnded for a job that had succeeded."""
    files = Files.open(str(tmp_path))
    record = created(files)
    log = claimed(files)
    lives(files, "job", 1)
    commit(files, log, "job", *range(N_GROUPS))

    def ends(*_: Any, here: bool) -> bool:
        monkeypatch.undo()
        ended(files, log, record, "succeeded")
        return here

    monkeypatch.setattr("mops.jobs.status.is_alive", ends)
    assert JobState(files, "job").status().state == "succeeded"


@pytest.mark.parametrize(
    ("error", "is_failed", "raised"),
    [
        (JobFailed("2 have failed", where="job", hint="look"), True, JobFailed),
        (ImportTimeout("too slow", where="model.py", hint="wait"), True, ModelError),
        (ClusterError("the scheduler is gone", where="tcp://x", hint="start it"), False, ClusterError),
        (StorageError("the disk is full", where="here", hint="free it"), False, RunnerEnded),
        (Terminated("job", signal.SIGTERM, where="here"), False, RunnerEnded),
        (ZeroDivisionError("a defect"), False, RunnerEnded),
        (None, False, RunnerEnded),
        (None, True, JobFailed),
    ],
)
def test_wait_raises_the_error_that_the_runner_has_stored(
    tmp_path: Path, error: Exception | None, is_failed: bool, raised: type[MopsError]
) -> None:
    """The text and the class were read from the job's log by a regular expression, and most errors had none."""
    files = Files.open(str(tmp_path))
    record, log = created(files), claimed(files)
    lives(files, "job", 1, host=os.uname().nodename, pid=2**22 + 1)  # no process has this number
    if error is not None:
        write_error(files, record.paths, 1, 1.0, error)
    if is_failed:
        ended(files, log, record, "failed")
    status = JobState(files, "job").status()
    assert status.state == ("failed" if is_failed else "interrupted")
    with pytest.raises(raised) as caught:
        open_job("job", str(tmp_path)).wait(lambda _: None)
    assert type(caught.value) is raised
    if isinstance(error, MopsError):
        assert error.what in caught.value.what
        assert error.what in summary_of(status, 0.0).headline
    elif error is not None:
        assert "ZeroDivisionError: a defect" in caught.value.what
    elif not is_failed:
        assert "its storage does not say why, as after a kill" in caught.value.what


class PulledPlug(BaseException):
    """Interrupts a runner, which survives plain exceptions of on_progress."""


def test_an_interrupted_job_is_resumed_to_the_same_rows(study: Path, storage: Any) -> None:
    whole = mops.submit(study, storage=storage.url, settings=Settings(slots=1))

    def break_off(now: Progress) -> None:
        if now.durable.simulations >= N_REPLICATES:
            raise PulledPlug

    one_by_one = Settings(slots=1, batch_size=1, checkpoint_seconds=0)
    slow = {"PAUSE": "0.1"}  # progress comes four times a second
    with pytest.raises(PulledPlug):
        mops.submit(study, name="broken-off", storage=storage.url, settings=one_by_one, on_progress=break_off, env=slow)
    job = mops.open_job("broken-off", storage.url)
    assert 0 < job.status().groups < N_SETS
    assert mops.resume(job, settings=one_by_one) is job
    assert (job.status().state, job.status().attempt) == ("succeeded", 2)
    assert rows(job, "daily").equals(rows(whole, "daily"))
    assert job.losses().to_arrow().sort_by("group").equals(whole.losses().to_arrow().sort_by("group"))
    assert verify(Files.open(storage.url), job.record.paths, N_SETS) == []


def test_a_study_is_written_without_a_copy_in_memory(tmp_path: Path) -> None:
    study = json.dumps({"text": "a" * (32 << 20)})
    files = Files.open(str(tmp_path))
    created(files, "first")  # imports are done
    tracemalloc.start()
    try:
        created(files, study=study)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(study) / 4
    assert json.loads(files.get(JobPaths("job", ID).study))["study"] == json.loads(study)
