"""The part of an attempt that its child processes do not wait for: the cluster, the main loop and its metrics.

:mod:`mops.attempt.attempt` imports it when the child processes have started, which import the model meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mops.attempt.main_loop import Runner
from mops.attempt.metrics import serving_metrics
from mops.cluster.base import Cluster
from mops.cluster.embedded import start_embedded
from mops.cluster.worker_losses import Pods
from mops.errors import UsageError
from mops.settings import Settings
from mops.task import JobContext

__all__ = ["Runner", "connected_cluster", "serving_metrics"]


@contextmanager
def connected_cluster(context: JobContext, settings: Settings, pods: Pods | None = None) -> Iterator[Cluster]:
    """Connect to the cluster of MODELOPS_SCHEDULER, or start one in this process, while the body runs."""
    if settings.scheduler is None:
        assert context.slots is not None
        with start_embedded(context.run_id, context.slots) as embedded:
            yield embedded
        return
    if context.storage.startswith("memory:"):
        raise UsageError(
            "workers in other processes cannot reach memory:// storage",
            where=context.storage,
            hint="use a shared folder or abfs://container/prefix, or unset MODELOPS_SCHEDULER",
        )
    from mops.cluster import doctor, external  # noqa: PLC0415 - they import Dask, which the embedded cluster does without

    with external.connect_external(settings.scheduler, context.run_id, settings, context.job, pods) as cluster:
        doctor.warn(cluster.calls, context.job, settings.sim_threads)
        yield cluster
