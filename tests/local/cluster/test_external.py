"""A connection to a cluster that others run, and what is made of its loss. The scheduler is real, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster, get_worker

from mops.cluster.base import RunsAgain
from mops.cluster.dask_calls import DaskCalls, new_client
from mops.cluster.external import _MOST_SILENCES, ExternalCluster, connect_external
from mops.errors import ClusterError, NoAnswer
from mops.k8s.pod_ends import Pods
from mops.settings import Settings
from mops.worker.dask_worker import topic_of
from programs import free_port
from waiting import until


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    here: dict[str, Any] = {"processes": False, "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=2, memory_limit=0, **here) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def cluster(address: str) -> Iterator[ExternalCluster]:
    with connect_external(address, "run", Settings()) as connected:
        yield connected


@pytest.mark.parametrize(
    ("pods", "hint"),
    [
        (None, "start the cluster, or correct MODELOPS_SCHEDULER"),
        (Pods(""), "see what the service lacks: mops cluster status"),
    ],
    ids=["own cluster", "service"],
)
def test_a_scheduler_that_is_not_there_is_waited_for_as_long_as_asked(
    pods: Pods | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each attempt to connect took 10 s, whatever MODELOPS_JOB_CLUSTER_TIMEOUT said."""
    limits: list[float] = []

    def limited(address: str, timeout_s: float, **named: Any) -> Client:
        limits.append(timeout_s)
        return new_client(address, timeout_s, **named)

    monkeypatch.setattr("mops.cluster.external.new_client", limited)
    settings = Settings(cluster_timeout=0.5)
    with (
        pytest.raises(ClusterError) as refused,
        connect_external(f"tcp://127.0.0.1:{free_port()}", "run", settings, pods=pods),
    ):
        pass
    assert (refused.value.hint, set(limits)) == (hint, {0.5})


def test_a_look_at_a_cluster_whose_client_is_closed_says_nothing_and_raises_nothing(cluster: ExternalCluster) -> None:
    """The thread that watches died of an AttributeError: slots stayed as they were, departures were unseen."""
    slots = cluster.slots
    assert slots == 2
    cluster.client.close()
    cluster._look(ask_sources=True)
    assert cluster.slots == slots
    assert not cluster.is_connected
    cluster.reconnect()
    assert cluster.is_connected
    cluster._look(ask_sources=True)


def test_the_thread_that_watches_outlives_a_look_that_fails(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mops.cluster.external._WATCH_SECONDS", 0.01)
    n_looks, seen = 0, threading.Event()

    def looks(self: ExternalCluster, *, ask_sources: bool) -> None:
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            raise ZeroDivisionError("an unexpected error")
        seen.set()

    monkeypatch.setattr(ExternalCluster, "_look", looks)
    with connect_external(address, "run", Settings()):
        assert seen.wait(60)
    assert "cannot look at the Dask cluster" in caplog.text


@pytest.mark.parametrize("fault", [OSError("Timed out trying to connect"), AttributeError("'NoneType' object")])
def test_a_connection_that_is_lost_before_it_has_its_plugin_is_made_anew(
    cluster: ExternalCluster, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """The runner ended with a raw OSError."""
    register, n_asked = Client.register_plugin, 0

    def once_lost(self: Client, *arguments: Any, **named: Any) -> Any:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            self.status = "closed"
            raise fault
        return register(self, *arguments, **named)

    monkeypatch.setattr(Client, "register_plugin", once_lost)
    cluster.reconnect()
    assert n_asked == 2
    assert cluster.is_connected
    assert cluster.slots == 2


def test_a_defect_while_it_connects_is_none_of_the_cluster(
    cluster: ExternalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Client, "register_plugin", broken)
    with pytest.raises(ZeroDivisionError):
        cluster.reconnect()


def test_a_scheduler_that_answers_nothing_for_long_is_a_lost_connection(
    cluster: ExternalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a frozen scheduler keeps its connections open, and the job waited for it without end."""

    def silent(*_: object) -> None:
        raise NoAnswer("the scheduler is frozen")

    with monkeypatch.context() as frozen:
        frozen.setattr(DaskCalls, "run", silent)
        for _ in range(_MOST_SILENCES - 1):
            cluster.count_slots()
        assert cluster.is_connected
        cluster.count_slots()
        assert not cluster.is_connected
    cluster.reconnect()
    assert (cluster.is_connected, cluster.slots) == (True, 2)


def test_a_line_of_a_worker_reaches_the_log_of_the_job_at_once(
    cluster: ExternalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_of(cluster.pool_id)
    cluster.client.submit(lambda: get_worker().log_event(topic, {"line": "the import is slow"}), pure=False).result()
    until(lambda: "the import is slow" in caplog.text)


def test_a_result_that_is_being_computed_again_is_not_waited_for(cluster: ExternalCluster) -> None:
    """Dask's own gathering waits, and holds up the results of all other tasks."""
    go = threading.Event()
    _held["go"] = go
    future = cluster.client.submit(_waits, key="sim-job-1-1", pure=False)
    try:
        ((_, outcome),) = next(cluster.results([future], lambda _: False))
        assert isinstance(outcome, RunsAgain)
    finally:
        go.set()
    future.result()
    assert next(cluster.results([future], lambda _: False)) == [(future, 7)]


_held: dict[str, threading.Event] = {}


def _waits() -> int:
    _held["go"].wait(60)
    return 7
