"""The embedded cluster."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from mops.attempt.attempt import embedded_slots, started_children
from mops.cluster.embedded import start_embedded
from mops.settings import Settings
from mops.task import JobContext


def test_slots_are_the_processors_divided_by_threads_and_at_least_one() -> None:
    processors = embedded_slots(Settings())
    assert processors >= 1
    assert embedded_slots(Settings(sim_threads=processors)) == 1
    assert embedded_slots(Settings(sim_threads=10 * processors)) == 1
    assert embedded_slots(Settings(slots=3, sim_threads=10 * processors)) == 3


def test_the_embedded_cluster_queues_on_the_scheduler_and_bounds_no_memory() -> None:
    with start_embedded("1", 2) as cluster:
        saturation = cluster.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.WORKER_SATURATION)
        ((threads, limit),) = cluster.client.run(
            lambda dask_worker: (dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit)
        ).values()
    assert saturation == 1.0
    assert threads == 2
    assert not limit  # Dask would measure the whole runner and pause its only worker until the end


def test_a_result_of_the_embedded_cluster_is_taken_where_it_lies() -> None:
    with start_embedded("1", 2) as cluster:
        future = cluster.client.submit(list, "ab", key="ab")
        future.result()  # waits for it
        assert list(cluster.results([future], lambda _: False)) == [[(future, ["a", "b"])]]


def test_an_attempt_that_is_done_has_its_children_ended_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digest = "ab" * 32
    project = tmp_path / "mops" / "bundles" / digest
    project.mkdir(parents=True)
    (project / "model.py").write_text("def run(p, s):\n    return {'x': s}\n")
    context = JobContext("job", "done", digest, "storage", "model:run", "baseline", targets=(), outputs=None, slots=2)
    with started_children(context) as pool, start_embedded(context.run, 2) as cluster:
        pool.check()
        (child,) = map(psutil.Process, pool.pids())
        cluster.finish()
        child.wait(30)
