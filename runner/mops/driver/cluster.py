"""The Dask cluster of a job. Today: the embedded one, in the runner's own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
from distributed import Client, LocalCluster

# One process and no memory limit: the simulations' own child processes are the isolation, and Dask's limits
# measure the worker's own process only, which here is the whole runner.
_CONFIG = {
    "distributed.scheduler.worker-saturation": 1.0,  # what does not run waits on the scheduler, not on a worker
    "distributed.scheduler.work-stealing": False,  # there is one worker
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


@contextmanager
def embedded(slots: int) -> Iterator[Client]:
    """Start an in-process scheduler and worker with a thread for each slot; yield a client.

    Parameters
    ----------
    slots
        Simulations that run at once.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with (
        dask.config.set(_CONFIG),
        LocalCluster(
            n_workers=1,
            threads_per_worker=slots,
            processes=False,
            memory_limit=0,
            dashboard_address=None,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
