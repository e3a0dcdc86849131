"""Kubernetes and Dask report on the same workers; mops joins the reports, and shows one if the other is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from distributed import LocalCluster

from mops.cluster.dask_calls import connect_to_look
from mops.cluster.doctor import ConnectedWorker, Scheduler, Worker, connected
from mops.cluster.doctor import versions as own_versions
from mops.errors import ClusterError, MopsError, ServiceError
from mops.k8s.job_phase import Phase
from mops.k8s.pod_state import PodState
from mops.service.overview import Dask, ServiceOverview, WorkerView, joined, overview_of

NEW, OLD = {"mops": "2", "Python": "3.13"}, {"mops": "1", "Python": "3.11"}
A, B = PodState("running", name="worker-a", ready=True), PodState("unschedulable", "no room", name="worker-b")
DASK_A = ConnectedWorker("worker-a", "tcp://10.0.0.1:1", 2, 100, 50)
WORKER = Worker("tcp://10.0.0.1:1", 2, 100, 200, 40, False, False, "65536", NEW)


def test_pods_and_workers_are_joined_by_name() -> None:
    stranger = replace(DASK_A, name="somebody", address="tcp://10.0.0.9:1")
    assert joined([A, B], [stranger, DASK_A]) == [
        WorkerView("worker-a", A, DASK_A),
        WorkerView("worker-b", B, None),
        WorkerView("somebody", None, stranger),
    ]


def of(*workers: Worker) -> ServiceOverview:
    return ServiceOverview((), (), {}, Dask(Scheduler("tcp://s:1", 1.0, OLD), [], workers, []), (), [], {})


def test_equal_versions_of_workers_are_one_line() -> None:
    assert list(of(WORKER, replace(WORKER, address="tcp://10.0.0.2:1")).versions.items()) == [
        ("here", own_versions()),
        ("scheduler", OLD),
        ("workers", NEW),
    ]


def test_different_versions_of_workers_are_one_line_each() -> None:
    """Versions differ during an upgrade."""
    other = replace(WORKER, address="tcp://10.0.0.2:1", versions=OLD)
    found = of(WORKER, other, replace(other, address="tcp://10.0.0.3:1")).versions
    assert list(found)[2:] == ["1 like tcp://10.0.0.1:1", "2 like tcp://10.0.0.2:1"]


def test_without_workers_there_are_no_versions() -> None:
    assert list(of().versions) == ["here", "scheduler"]
    assert list(replace(of(), dask=None).versions) == ["here"]


class Partly:
    """A service that refuses some requests."""

    profile = SimpleNamespace(service=SimpleNamespace(autoscaler=None, network_policy=True))

    def __init__(self, address: str = "", *, refuses: tuple[str, ...] = ()):
        self._address, self._refuses = address, refuses

    def _ask(self, part: str) -> None:
        if part in self._refuses:
            raise ServiceError(f"you may not see {part}", where="there", hint="ask")

    def renewed(self) -> Partly:
        return self

    def certificate(self) -> None:
        return None

    def pods(self, component: str) -> list[PodState]:
        self._ask("pods")
        return [A, B] if component == "worker" else [PodState("running", name="scheduler")]

    def refused(self) -> dict[str, str]:
        self._ask("events")
        return {}

    def phases(self) -> dict[str, Phase]:
        self._ask("jobs")
        return {"one": Phase("running"), "two": Phase("running"), "three": Phase("ended")}

    @contextmanager
    def scheduler(self) -> Iterator[str]:
        self._ask("dask")
        yield self._address


def surveyed(service: Any) -> ServiceOverview:
    return overview_of(service, 1)


def said(faults: Any) -> list[str]:
    return [fault.what for fault in faults]


def test_kubernetes_facts_are_shown_if_dask_cannot_be_reached() -> None:
    now = surveyed(Partly(refuses=("dask",)))
    assert now.workers == [WorkerView("worker-a", A), WorkerView("worker-b", B)]
    assert now.runners == {"running": 2, "ended": 1}
    assert now.dask is None
    assert said(now.faults) == ["you may not see dask"]


def test_a_refused_request_gives_unknown_and_not_empty() -> None:
    """Regression: mops reported that a service has no pods if the user may not list them."""
    now = surveyed(Partly(refuses=("pods", "jobs", "dask")))
    assert (now.scheduler, now.workers, now.runners, now.dask) == (None, None, None, None)
    assert said(now.faults) == ["you may not see pods", "you may not see jobs", "you may not see dask"]


def test_a_scheduler_that_does_not_answer(monkeypatch: Any) -> None:
    monkeypatch.setattr("mops.cluster.dask_calls.connect_to_look.__defaults__", (1.0,))
    now = surveyed(Partly("tcp://127.0.0.1:1"))
    (fault,) = now.faults
    assert isinstance(fault, ClusterError)
    assert fault.what.startswith("the Dask scheduler does not answer (")


def test_a_real_scheduler_reports_its_workers_without_running_code() -> None:
    """This works with any version of mops on the workers, and for more than the five that Dask reports by default."""
    with (
        LocalCluster(
            n_workers=6, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", memory_limit=1 << 30
        ) as cluster,
        connect_to_look(cluster.scheduler_address) as client,
    ):
        found = connected(client)
    assert len(found) == 6
    assert all(worker.threads == 1 and worker.limit_bytes == 1 << 30 for worker in found)
    assert all(worker.tree_bytes > 0 for worker in found)


def test_an_error_in_the_body_is_not_reported_as_a_lost_scheduler() -> None:
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        raised: list[BaseException] = []
        try:
            with connect_to_look(cluster.scheduler_address):
                raise MopsError("ours")
        except MopsError as error:
            raised.append(error)
    assert [type(one) for one in raised] == [MopsError]
