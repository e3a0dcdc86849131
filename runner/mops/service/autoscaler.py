"""Starts and stops workers as the jobs of a service need them: ``python -m mops.service.autoscaler`` in a pod.

Runners tell the scheduler for how many slots they have enough work (:class:`mops.cluster.base.ShareRequest`). Every
few seconds this program adds that up, asks which workers are busy, and sets the replicas of the workers' Deployment. It
keeps nothing that its successor would need. docs/internals/autoscaling.md has the reasons and the alternatives.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mops.cluster.base import ShareRequest
from mops.cluster.dask_calls import DaskCalls, connect_to_look
from mops.cluster.shares import METADATA, SILENT_SECONDS, OtherJobs, pool_with
from mops.errors import MopsError, ServiceError
from mops.k8s import names
from mops.k8s.pod_ends import of_this_pod

if TYPE_CHECKING:
    from mops.k8s.client import Kubernetes

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0

# Kubernetes removes pods with a lower cost first, if they are ready (docs: ReplicaSet, pod deletion cost).
_COST = "controller.kubernetes.io/pod-deletion-cost"
_REMOVE_FIRST, _DEFAULT = "-1", "0"


@dataclass(frozen=True)
class Limits:
    """The numbers of workers of a pool that the chart allows."""

    least: int
    most: int
    threads: int  # of a worker
    idle_s: float  # for which workers must have been unnecessary before they are removed


def wanted_workers(requests: Sequence[ShareRequest], limits: Limits) -> int:
    """Return how many workers the jobs can use: at least one while a runner is connected."""
    wanted = math.ceil(sum(one.slots / max(limits.threads // one.sim_threads, 1) for one in requests))
    return min(max(wanted, limits.least), limits.most)


def next_replicas(present: int, wanted: int, most_wanted: int, n_busy: int) -> int:
    """Return the next number of workers: up at once; down to the most that was wanted lately, and to no busy worker."""
    return wanted if wanted >= present else min(present, max(most_wanted, n_busy))


class Recent:
    """The numbers that were wanted within some time."""

    def __init__(self, within_s: float, first: int, now: float):
        # What is there at the start counts as wanted, because nothing is known of the time before.
        self._within_s, self._wanted = within_s, deque([(now, first)])

    def most(self, wanted: int, now: float) -> int:
        """Add what is wanted now; return the most that was wanted lately."""
        self._wanted.append((now, wanted))
        while now - self._wanted[0][0] > self._within_s:
            self._wanted.popleft()
        return max(n for _, n in self._wanted)


class Workers:
    """The Deployment of a pool of a service's workers."""

    def __init__(self, kubernetes: Kubernetes, release: str, pool: str):
        self._kubernetes, self._name = kubernetes, names.workers_name(release, pool)
        self._labels = names.of_component(release, names.WORKER) | {names.POOL: pool}

    def replicas(self) -> int:
        """Return how many workers there should be."""
        return self._kubernetes.replicas(self._name)

    def keep(self, busy: Sequence[str]) -> None:
        """Let Kubernetes remove pods that do not run yet, then pods that are not busy, and these only if it must."""
        for pod in self._kubernetes.pods(self._labels):
            name, annotations = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
            cost = _DEFAULT if name in busy else _REMOVE_FIRST
            if annotations.get(_COST, _DEFAULT) != cost:
                self._kubernetes.annotate_pod(name, {_COST: cost})

    def scale(self, n: int) -> None:
        """Set how many workers there should be."""
        self._kubernetes.scale(self._name, n)


def busy_workers(dask_scheduler: Any) -> dict[str, str]:
    """Return the pools of the workers that have tasks, or results that no runner has fetched, by the workers' names.

    Runs on the scheduler.
    """
    busy = (one for one in dask_scheduler.workers.values() if one.processing or one.has_what)
    return {str(one.name): pool_with(one.resources) for one in busy}


class Autoscaler:
    """Follows the jobs in one pool of a service, over any number of connections to its scheduler."""

    def __init__(self, pool: str, workers: Workers, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self._pool, self._workers, self._limits, self._clock = pool, workers, limits, clock
        self._jobs = OtherJobs("", "", "", clock)
        self._recent, self._looked_at = Recent(limits.idle_s, 0, clock()), -math.inf

    def look(self, records: Mapping[str, Mapping[str, Any]], busy_pools: Mapping[str, str]) -> None:
        """Compare the workers with what the jobs need, and start or stop workers."""
        now, pool = self._clock(), self._pool
        requests = [one for one in self._jobs.requests(records, own="") if (one.pool or names.DEFAULT_POOL) == pool]
        busy = [name for name, of_pool in busy_pools.items() if (of_pool or names.DEFAULT_POOL) == pool]
        present, wanted = self._workers.replicas(), wanted_workers(requests, self._limits)
        if now - self._looked_at > SILENT_SECONDS:  # runners may not have connected again after a break
            self._recent = Recent(self._limits.idle_s, present, now)
        self._looked_at = now
        n = next_replicas(present, wanted, self._recent.most(wanted, now), len(busy))
        if n < present:
            self._workers.keep(busy)
        if n != present:
            message = "workers of pool %s: %d (before: %d); connected runners: %d; they can use: %d; busy now: %d"
            logger.info(message, pool, n, present, len(requests), wanted, len(busy))
            self._workers.scale(n)


def follow(calls: DaskCalls, autoscalers: Sequence[Autoscaler]) -> NoReturn:
    """Look every few seconds, until the connection breaks: then Dask's client may raise any error."""
    while True:
        records, busy = calls.metadata([METADATA]), calls.on_scheduler(busy_workers)
        for autoscaler in autoscalers:
            try:
                autoscaler.look(records, busy)
            except ServiceError as fault:
                logger.warning("cannot change the number of workers: %s", fault)
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Follow the jobs without end."""
    parser = argparse.ArgumentParser(prog="mops.service.autoscaler", description="Start and stop workers as jobs need.")
    parser.add_argument("scheduler", help="the address of the Dask scheduler: tls://host:8786")
    parser.add_argument("--release", required=True, help="the release of the chart, in the namespace of this pod")
    parser.add_argument(
        "--pool",
        action="append",
        required=True,
        metavar="NAME,LEAST,MOST,THREADS",
        help="a pool of workers, the numbers of workers that it may have, and the threads of a worker; repeatable",
    )
    parser.add_argument("--idle-seconds", type=float, required=True, help="time before unnecessary workers are removed")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    limits = {}
    for text in options.pool:
        pool, least, most, threads = text.split(",")
        limits[pool] = Limits(int(least), int(most), int(threads), options.idle_seconds)
    autoscalers: list[Autoscaler] = []
    while True:
        try:
            if not autoscalers:
                kubernetes = of_this_pod()
                workers = {pool: Workers(kubernetes, options.release, pool) for pool in limits}
                autoscalers = [Autoscaler(pool, workers[pool], allowed) for pool, allowed in limits.items()]
            with connect_to_look(options.scheduler) as calls:
                logger.info("connected to %s", options.scheduler)
                follow(calls, autoscalers)
        except MopsError as fault:  # it passes, or an operator reads it here
            logger.warning("the number of workers stays as it is: %s", fault)
        except Exception:
            logger.warning("the number of workers stays as it is", exc_info=True)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
