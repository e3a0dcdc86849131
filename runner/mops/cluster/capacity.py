"""The slots of the cluster as workers come and go, and the job's share of them, which shares.py computes."""

from __future__ import annotations

import logging
import time

from mops.cluster.base import Cluster
from mops.cluster.shares import WEIGHTS, Share, ShareRequest, share_of
from mops.errors import ClusterError
from mops.settings import Settings

logger = logging.getLogger(__name__)


class ClusterCapacity:
    """The slots that a job may plan for. Logs when they change, and gives up when no worker comes."""

    def __init__(self, cluster: Cluster, settings: Settings, job: str):
        self._cluster, self._settings, self._job = cluster, settings, job
        self._last_worker_at = time.monotonic()
        self._is_empty = False
        self._n_others = 0
        self.slots = max(cluster.slots, 1)

    def share(self, wanted_slots: int) -> Share:
        """Return what to plan for now, for a job that could use ``wanted_slots`` at once.

        It has at least one slot, so that tasks wait for the first worker that comes. ClusterError: no worker was there
        for MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
        """
        counted, timeout_s = self._cluster.slots, self._settings.cluster_timeout
        if counted:
            self.reset_timeout()
        elif time.monotonic() - self._last_worker_at > timeout_s:
            raise ClusterError(
                f"the Dask cluster has had no workers for {timeout_s:g} s",
                where=self._settings.scheduler,
                hint=f"start workers, then continue the job: mops jobs resume {self._job}",
            )
        elif not self._is_empty:
            logger.warning("%s: no workers are left; waiting up to %g s for one", self._job, timeout_s)
        self._is_empty = not counted
        if counted and counted != self.slots:
            logger.info("%s: slots: %d (before: %d)", self._job, counted, self.slots)
            self.slots = counted
        fraction = min(max(wanted_slots, 1) / self.slots, 1.0)
        request = ShareRequest(WEIGHTS[self._settings.priority], fraction)
        others = self._cluster.other_jobs(request)
        share = share_of(self.slots, max(self._cluster.workers, 1), request, others)
        if len(others) != self._n_others:
            self._n_others = len(others)
            message = "%s: other jobs on this cluster: %d; share of this job: %d of %d slots"
            logger.info(message, self._job, len(others), share.slots, self.slots)
        return share

    def reset_timeout(self) -> None:
        """Count MODELOPS_JOB_CLUSTER_TIMEOUT from now."""
        self._last_worker_at = time.monotonic()
