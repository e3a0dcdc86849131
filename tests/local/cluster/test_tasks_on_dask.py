"""What a runner asks of Dask, on a real cluster of processes; errors that depend on timing come from a stub."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, KilledWorker, LocalCluster

from mops.cluster.base import WorkersDied
from mops.cluster.dask_calls import DaskCalls
from mops.cluster.external import DaskConnection
from mops.errors import NoAnswer
from mops.task import JobContext, Task, TaskRequest
from mops.waiting import polls

CONTEXT = JobContext("job", "1", "ab" * 32, "storage", "model:run", "baseline", targets=("t:t",), outputs=None, slots=1)
TARGETS = TaskRequest(CONTEXT, 1, (), None, 1.0, 1, replicates=())


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_a_worker_that_never_confirms_its_input_is_a_lost_connection(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thread that sends input waited without end, and so did all targets."""
    monkeypatch.setattr("mops.cluster.dask_calls.FETCH_SECONDS", 0.5)
    connection = DaskConnection(DaskCalls(client))
    (pid,) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(connection.errors):
            connection.send_input(TARGETS, [])
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("error", [KeyError("tcp://gone:1"), RuntimeError("closed")], ids=repr)
def test_a_worker_that_leaves_while_it_gets_input_is_a_lost_connection(error: Exception) -> None:
    """The scheduler raises these if the worker has just left. The KeyError killed the runner."""

    class LeavingClient:
        def sync(self, *_: object, **__: object) -> None:
            raise error

    stub: Any = LeavingClient()
    connection = DaskConnection(DaskCalls(stub))
    with pytest.raises(connection.errors, match=type(error).__name__):
        connection.send_input(TARGETS, [])


@pytest.mark.parametrize("alone", [True, False])
def test_the_scheduler_is_asked_about_the_death_of_a_task_only_if_the_task_ran_alone(*, alone: bool) -> None:
    """It has noted nothing of the others, and is busy when many workers die."""

    last: Any = SimpleNamespace(address="tcp://gone:1")

    class BusyScheduler:
        client = None

        def error_of(self, _: object) -> Exception:
            return KilledWorker("k", last, 2)

        def metadata(self, _: object) -> dict[str, bool]:
            raise NoAnswer("the scheduler is busy")

    stub: Any = BusyScheduler()
    dead: Any = SimpleNamespace(key="k", status="error")
    connection, task = DaskConnection(stub), Task(1, (0,), alone=alone)
    if alone:
        with pytest.raises(connection.errors):
            connection.error_of(dead, task)
        return
    error = connection.error_of(dead, task)
    assert isinstance(error, WorkersDied)
    assert error.last == "tcp://gone:1"


def test_a_task_that_raised_has_its_error_and_is_forgotten_when_released(client: Client) -> None:
    connection = DaskConnection(DaskCalls(client))
    future: Any = client.submit(int, "x", key="sim-job-1-1", pure=False)
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()
    task: Any = None  # the error is not a death
    assert isinstance(connection.error_of(future, task), ValueError)
    connection.release([future])
    keys = frozenset({"sim-job-1-1"})
    left = (connection.leftovers(keys, "1", 10.0) for _ in polls(0.05, 30.0))  # the scheduler hears of it later
    assert any(not each for each in left)
