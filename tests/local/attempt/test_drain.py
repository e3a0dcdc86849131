"""The drain check finds what is left of committed groups, on real clusters with real leaks."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import mops
from mops.attempt import drain
from mops.attempt.drain import Batch
from mops.child.channel import anonymous_file
from mops.cluster.dask_calls import DaskCalls
from mops.cluster.embedded import start_embedded
from mops.cluster.external import DaskConnection
from mops.settings import Settings
from mops.worker.results import buffers_in, take_buffer

KEY = "sim-job-1"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def is_clean(client: Client, number: int = 1, **limits: float) -> bool:
    return drain.check(DaskConnection(DaskCalls(client)), "job", "1", Batch(number, [KEY]), **limits)


def test_a_clean_batch_is_logged_at_debug_only(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mops")
    future = client.submit(int, 7, key=KEY, pure=False)
    assert future.result() == 7
    future.release()
    assert is_clean(client)
    assert warnings_of(caplog) == []
    assert "batch 1 is drained" in caplog.text


def test_a_future_that_another_client_holds_is_named(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    future = client.submit(int, 7, key=KEY, pure=False)
    future.result()
    with Client(client.cluster, set_as_default=False) as other:
        pinned = other.submit(int, 7, key=KEY, pure=False)
        pinned.result()
        future.release()
        assert not is_clean(client, 3, leak_s=0.5)
        pinned.release()
    (warning,) = warnings_of(caplog)
    assert f"key {KEY} on the scheduler (memory, wanted by 1 clients)" in warning
    assert "after batch 3" in warning


def test_a_key_that_stays_on_a_worker_is_named(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def pin(dask_worker: Any) -> None:
        dask_worker.data[KEY] = b"left"

    client.run(pin)
    assert not is_clean(client, leak_s=0.5)
    (warning,) = warnings_of(caplog)
    assert f"key {KEY} on worker inproc://" in warning


def test_a_buffer_that_the_worker_keeps_is_named(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    fd = anonymous_file("part")
    os.write(fd, b"rows")
    buffer = take_buffer(fd, f"mops-part-{KEY}.")
    assert not is_clean(client, leak_s=0.5)
    (warning,) = warnings_of(caplog)
    assert f"a buffer of {KEY} in worker inproc://" in warning
    del buffer


@pytest.mark.parametrize("size", [4, 2 << 20])
def test_a_buffer_that_the_runner_keeps_is_named_once(size: int, caplog: pytest.LogCaptureFixture) -> None:
    """On one machine the runner's process is the worker. Large buffers are mapped, so /proc has them too."""
    fd = anonymous_file(f"mops-part-{KEY}.")
    os.write(fd, bytes(size))
    buffer = take_buffer(fd, f"mops-part-{KEY}.")
    with start_embedded("1", 2) as cluster:
        assert not drain.check(cluster, "job", "1", Batch(1, [KEY]), leak_s=0.5)
    (warning,) = warnings_of(caplog)
    assert warning.endswith(f"found: a buffer of {KEY} in the runner")
    del buffer


def test_keys_of_other_jobs_are_ignored(client: Client) -> None:
    future = client.submit(int, 7, key="sim-other-1", pure=False)
    future.result()
    assert is_clean(client, leak_s=0.5)


def test_a_worker_that_does_not_answer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        address, pid = next(iter(client.run(os.getpid).items()))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert not is_clean(client, leak_s=0.5, answer_s=1.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert any(f"{address} does not answer" in warning for warning in warnings_of(caplog))


LEAKY_MODEL = """
import os
from mops.child import buffers

kept = []
made = buffers.anonymous_file


def keeping(name):
    fd = made(name)
    kept.append(os.dup(fd))  # so the buffer outlives its delivery
    return fd


buffers.anonymous_file = keeping


def simulate(params, seed):
    return {"x": [seed]}
"""


def run(folder: Path, model: str) -> mops.Job:
    (folder / "model.py").write_text(model)
    study = folder / "study.json"
    study.write_text(json.dumps({"model": "model:simulate", "parameter_sets": [{"a": i} for i in range(6)]}))
    return mops.submit(study, settings=Settings(batch_size=6, slots=1))


def test_a_child_process_that_keeps_its_buffers_is_named_and_the_job_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = run(tmp_path, LEAKY_MODEL)
    assert job.status().state == "succeeded"
    (warning,) = warnings_of(caplog)
    assert re.search(rf"a buffer of sim-{job.name}-\d+-1 in child", warning)


def test_files_that_close_during_the_look_do_not_hide_a_buffer() -> None:
    """Regression: a file that was closed between the list of files and the look at it ended the look."""
    kept = anonymous_file(f"mops-part-{KEY}.")
    child = subprocess.Popen(
        [sys.executable, "-c", "import os\nwhile True: [os.close(fd) for fd in [os.open('/', 0) for _ in range(9)]]"],
        pass_fds=[kept],
    )
    try:
        looks = [list(buffers_in("child", child.pid, frozenset({KEY}))) for _ in range(300)]
    finally:
        child.kill()
        child.wait()
        os.close(kept)
    assert looks.count([f"a buffer of {KEY} in child"]) == len(looks)
