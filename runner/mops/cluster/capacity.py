"""The cluster's slots as they come and go, and the job's share of them.

Says what is too few, gives up where nothing comes any more. What a share is, is :mod:`mops.cluster.shares`'s.
"""

from __future__ import annotations

import logging
import time

from mops.cluster.base import Cluster
from mops.cluster.shares import WEIGHTS, Share, ShareRequest, share_of
from mops.errors import ClusterError
from mops.settings import Settings

logger = logging.getLogger(__name__)


class ClusterCapacity:
    """Slots that come and go.

    Parameters
    ----------
    job
        For messages.
    n_groups
        How many groups the job has.
    """

    def __init__(self, cluster: Cluster, settings: Settings, job: str, n_groups: int):
        self._cluster, self._settings, self._job, self._n_groups = cluster, settings, job, n_groups
        self._seen_at = time.monotonic()
        self._said_empty = False
        self._n_others = 0
        self.slots = max(cluster.slots, 1)
        self._warn_if_starved()

    def look(self, wants: int) -> Share:
        """Return what to plan for now, at least one slot: without workers, tasks wait for the first that comes.

        Parameters
        ----------
        wants
            Simulations that the job could run at once.

        Raises
        ------
        ClusterError
            There was no worker for MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
        """
        counted = self._cluster.slots
        if counted:
            self._seen_at = time.monotonic()
        else:
            self._wait()
        self._said_empty = not counted
        if counted and counted != self.slots:
            logger.info("%s: %d simulations at once, %d before", self._job, counted, self.slots)
            self.slots = counted
            self._warn_if_starved()
        return self._share(wants)

    def _share(self, wants: int) -> Share:
        mine = ShareRequest(WEIGHTS[self._settings.priority], min(max(wants, 1) / self.slots, 1.0))
        others = self._cluster.others(mine)
        share = share_of(self.slots, max(self._cluster.workers, 1), mine, others)
        if len(others) != self._n_others:
            self._n_others = len(others)
            message = "%s: other jobs on this cluster: %d; this one's share is %d of %d simulations at once"
            logger.info(message, self._job, len(others), share.slots, self.slots)
        return share

    def rest(self) -> None:
        """Count the time without workers from now: the connection was lost, which is another wait."""
        self._seen_at = time.monotonic()

    def _wait(self) -> None:
        patience_s = self._settings.cluster_timeout
        if time.monotonic() - self._seen_at > patience_s:
            raise ClusterError(
                f"the Dask cluster has had no workers for {patience_s:g} s",
                where=self._settings.scheduler,
                hint="start workers; mops jobs resume goes on from what is committed",
            )
        if not self._said_empty:
            logger.warning("%s: all workers are gone; waiting up to %g s for one", self._job, patience_s)

    def _warn_if_starved(self) -> None:
        enough = 2 * self.slots
        batch_size = self._settings.batch_size_or(enough)
        if batch_size < min(enough, self._n_groups):
            message = "%s: MODELOPS_JOB_BATCH_SIZE=%d cannot keep %d slots busy; %d would"
            logger.warning(message, self._job, batch_size, self.slots, enough)
