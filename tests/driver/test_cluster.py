"""The embedded cluster."""

from __future__ import annotations

from mops.driver.cluster import embedded, embedded_slots
from mops.settings import Settings


def test_slots_are_the_processors_divided_by_threads_and_at_least_one() -> None:
    processors = embedded_slots(Settings())
    assert processors >= 1
    assert embedded_slots(Settings(sim_threads=processors)) == 1
    assert embedded_slots(Settings(sim_threads=10 * processors)) == 1
    assert embedded_slots(Settings(slots=3, sim_threads=10 * processors)) == 3


def test_the_embedded_cluster_queues_on_the_scheduler_and_bounds_no_memory() -> None:
    with embedded("1", 2) as cluster:
        saturation = cluster.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.WORKER_SATURATION)
        ((threads, limit),) = cluster.client.run(
            lambda dask_worker: (dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit)
        ).values()
    assert saturation == 1.0
    assert threads == 2
    assert not limit  # Dask would measure the whole runner and pause its only worker for ever


def test_a_result_of_the_embedded_cluster_is_taken_where_it_lies() -> None:
    with embedded("1", 2) as cluster:
        future = cluster.client.submit(list, "ab", key="ab")
        future.result()  # waits for it
        found = cluster.result(future)
        assert found == ["a", "b"]
        assert cluster.result(future) is found
