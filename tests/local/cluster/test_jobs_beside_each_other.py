"""What runners on one cluster say to each other, and whom they believe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from distributed import Client, LocalCluster

from clocks import Clock
from mops.cluster.base import ShareRequest
from mops.cluster.dask_calls import DaskCalls
from mops.cluster.shares import METADATA, SILENT_SECONDS, OtherJobs

REQUEST = ShareRequest(4, 0.5, slots=8, sim_threads=2)


def record(n: int, **more: Any) -> dict[str, Any]:
    return {"format": 3, "n": n, "job": "other", "run": "2", **asdict(REQUEST), **more}


def test_another_job_counts_until_it_has_been_silent_for_long() -> None:
    clock = Clock(100.0)
    other_jobs = OtherJobs("mine", "1", "high", clock)
    assert other_jobs.requests({"own": record(1), "a": record(7)}, "own") == [REQUEST]
    clock.now += SILENT_SECONDS
    assert other_jobs.requests({"a": record(7)}, "own") == [REQUEST]
    clock.now += 1.0
    assert other_jobs.requests({"a": record(7)}, "own") == []
    assert other_jobs.requests({"a": record(8, wants=1.0)}, "own") == [replace(REQUEST, wants=1.0)]


def test_a_record_of_another_format_is_left_alone() -> None:
    assert OtherJobs("mine", "1", "high", Clock(100.0)).requests({"a": {"format": 4, "claims": []}}, "own") == []


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_two_jobs_exchange_their_requests_through_the_scheduler(client: Client) -> None:
    calls = DaskCalls(client)
    one, two = (OtherJobs(job, "1", "normal", Clock(100.0)) for job in ("one", "two"))
    assert one.exchange(calls, "1.1", ShareRequest(4, 1.0, "ada")) == []
    assert two.exchange(calls, "2.1", ShareRequest(1, 0.25)) == [ShareRequest(4, 1.0, "ada")]
    assert one.exchange(calls, "1.1", ShareRequest(4, 1.0)) == [ShareRequest(1, 0.25)]
    names = {name: (it["job"], it["priority"]) for name, it in client.get_metadata([METADATA]).items()}
    assert names == {"1.1": ("one", "normal"), "2.1": ("two", "normal")}
