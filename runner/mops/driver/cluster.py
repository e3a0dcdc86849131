"""The Dask cluster of a job. Today: the embedded one, in the runner's own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
from dask.system import cpu_count
from distributed import Client, Scheduler, SpecCluster, Worker

from mops.settings import Settings

# One process and no memory limit: the simulations' own child processes are the isolation, and Dask's limits
# measure the worker's own process only, which here is the whole runner.
_CONFIG = {
    "distributed.scheduler.worker-saturation": 1.0,  # what does not run waits on the scheduler, not on a worker
    "distributed.scheduler.work-stealing": False,  # there is one worker
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # How Dask watches itself: with its defaults its loop took 3.6 % of a core from 10 ms simulations, with these 1.5 %.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.scheduler.http.routes": [],  # nobody asks an embedded cluster over HTTP
    "distributed.worker.http.routes": [],
}
# Dask starts HTTP servers in any case. By default they listen on every interface, and the scheduler's on port 8787,
# with a warning where another job has it: LocalCluster(dashboard_address=None) leaves that as it is.
_QUIET_HTTP = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


def embedded_slots(settings: Settings) -> int:
    """Return how many simulations run at once on an embedded worker.

    As set, else the processors that this process may use (its affinity and its container's quota count) divided by
    the threads of a simulation.
    """
    return settings.slots or max(cpu_count() // settings.sim_threads, 1)


@contextmanager
def embedded(slots: int) -> Iterator[Client]:
    """Start an in-process scheduler and worker with a thread for each slot; yield a client.

    Parameters
    ----------
    slots
        Simulations that run at once.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it knows of our tasks, our own errors say
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc://", **_QUIET_HTTP}}
    worker = {
        "cls": Worker,
        "options": {"protocol": "inproc://", "nthreads": slots, "memory_limit": 0, **_QUIET_HTTP},
    }
    with (
        dask.config.set(_CONFIG),
        SpecCluster({0: worker}, scheduler, silence_logs=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
