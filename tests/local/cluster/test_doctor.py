"""What is off in a cluster, by the rules of docs/reference/doctor.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.config
import pytest
from distributed import Client, LocalCluster

from mops.cluster.dask_calls import DaskCalls
from mops.cluster.doctor import Scheduler, Worker, examine, findings, versions

GIB = 1 << 30
OWN = {"mops": "1", "Python": "3.11", "dask": "2", "distributed": "2"}
SCHEDULER = Scheduler("tcp://s:1", 1.0, OWN)
WORKER = Worker(
    address="tcp://w:1",
    threads=2,
    limit_bytes=6 * GIB,
    host_bytes=16 * GIB,
    own_bytes=GIB // 4,
    target=False,
    spill=False,
    trim_threshold="65536",
    versions=OWN,
)


def found(*workers: Worker, scheduler: Scheduler = SCHEDULER, threads: int = 1) -> list[tuple[str, str, str]]:
    return [(one.where, one.what, one.fix) for one in findings(scheduler, workers, OWN, threads)]


def test_of_a_sound_cluster_nothing_is_off() -> None:
    assert found(WORKER, replace(WORKER, address="tcp://w:2")) == []
    assert found() == []


def test_the_schedulers_saturation() -> None:
    ((where, what, fix),) = found(WORKER, scheduler=replace(SCHEDULER, saturation=1.1))
    assert (where, fix) == (
        "scheduler",
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION=1.0 in the scheduler's environment",
    )
    assert what.startswith("worker-saturation is 1.1:")


def test_a_workers_settings(subtests: pytest.Subtests) -> None:
    for change, what, fix in [
        ({"target": 0.6}, "memory.target is 0.6", "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False"),
        ({"spill": 0.7}, "memory.spill is 0.7", "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False"),
        ({"trim_threshold": None}, "its heap keeps freed memory", "MALLOC_TRIM_THRESHOLD_=65536"),
        ({"limit_bytes": GIB}, "a simulation gets 128 MiB: 1.0 GiB, less", "a lower --nthreads"),
        ({"limit_bytes": GIB, "threads": 8}, "its memory is enough for 2 of 8 slots: 1.0 GiB", "a lower --nth"),
        ({"threads": 16}, "a simulation gets 112 MiB: 6.0 GiB, less", "a lower --nthreads"),
        ({"versions": OWN | {"mops": "0"}}, "mops is 0, and 1 here", "the same version of mops on both"),
        ({"versions": {}}, "mops is None, and 1 here", "the same version of mops on both"),
    ]:
        with subtests.test(str((change, what, fix))):
            (where, said, set_), *_ = found(replace(WORKER, **change))
            assert where == "worker tcp://w:1"
            assert said.startswith(what)
            assert set_.startswith(fix)


def test_workers_that_are_alike_are_one_line() -> None:
    alike = [replace(WORKER, address=f"tcp://w{i}:1", spill=0.7, own_bytes=i) for i in range(5)]
    ((where, _, _),) = found(*alike)
    assert where == "worker tcp://w0:1 and 4 more"


def test_threads_of_a_simulation_make_fewer_of_them() -> None:
    many = replace(WORKER, threads=16)
    assert found(many)
    assert found(many, threads=8) == []


def test_what_is_in_effect_is_read_where_it_is() -> None:
    config = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    options: dict[str, Any] = {"processes": False, "memory_limit": 0, "dashboard_address": None}
    with (
        dask.config.set({"distributed.scheduler.worker-saturation": 1.0, **config}),
        LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        scheduler, (worker,), _ = examine(DaskCalls(client), 1)
    assert (scheduler.saturation, scheduler.versions) == (1.0, versions())
    assert (worker.threads, worker.limit_bytes, worker.target, worker.spill) == (2, 0, False, False)
    assert worker.own_bytes > 10 << 20
    assert worker.host_bytes > 1 << 30
