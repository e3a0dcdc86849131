"""How the owners of jobs, and the jobs of each, divide the slots of a cluster: docs/internals/shares.md.

Runners tell one another through the scheduler what they could use (:class:`OtherJobs`), and each computes its share
(:class:`ClusterCapacity`). The scheduler orders the tasks of all jobs (:class:`FairQueue`), and removes the record of a
runner that disconnects (scheduler_plugin.py).
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from mops.cluster.base import Cluster, ShareRequest
from mops.errors import ClusterError
from mops.settings import Settings

if TYPE_CHECKING:
    from mops.cluster.dask_calls import DaskCalls

logger = logging.getLogger(__name__)

WEIGHTS = {"low": 1, "normal": 4, "high": 16}  # of a job in the division, by its MODELOPS_JOB_PRIORITY

TASKS_PER_SHARED_SLOT = 2  # in flight for each slot of a share: one runs, and the next one waits on the cluster

METADATA = "mops-jobs"  # in the scheduler's metadata; below it, each record by its runner's pool_id

# A runner whose record has not changed for this time does not count, because it may be out of reach. A runner renews
# its record several times as often.
SILENT_SECONDS = 15.0

_FORMAT = 3

_POOL_RESOURCE = "pool-"

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Share:
    """The part of a cluster that a job may use: at least one slot and one worker."""

    slots: int
    workers: int
    tasks: int | None = None  # at most in flight; None: no limit, because no other job is there


def fractions(requests: Sequence[ShareRequest]) -> list[float]:
    """Return the fraction of all slots for each request: as :func:`_rates`, and at most what it wants."""
    # Max-min fairness: all fractions grow at once until nothing is left, and each stops at what its job wants.
    given, left, growing = [0.0] * len(requests), 1.0, list(range(len(requests)))
    while growing and left > _ROUNDING:
        rates = _rates([requests[i] for i in growing])
        until_full = (requests[i].wants - given[i] for i in growing)
        time_s = min(left / sum(rates), *(wanted / rate for wanted, rate in zip(until_full, rates, strict=True)))
        for i, rate in zip(growing, rates, strict=True):
            given[i] += time_s * rate
        left -= time_s * sum(rates)
        growing = [i for i in growing if given[i] < requests[i].wants - _ROUNDING]
    return given


def _rates(requests: Sequence[ShareRequest]) -> list[float]:
    """Return the shares of jobs that all want more, relative to each other.

    The jobs of an owner together have the highest of their weights, however many they are, and divide it by weight.
    """
    owners = [request.owner or i for i, request in enumerate(requests)]
    weights = defaultdict[str | int, list[int]](list)
    for owner, request in zip(owners, requests, strict=True):
        weights[owner].append(request.weight)
    return [
        max(weights[owner]) * request.weight / sum(weights[owner])
        for owner, request in zip(owners, requests, strict=True)
    ]


def queue_weight(mine: ShareRequest, others: Sequence[ShareRequest]) -> float:
    """Return the weight of a job's tasks in the fair queue: that of its priority, if its owner has no other job."""
    # What the jobs can use now does not count. Else the last tasks of a job would wait for those of all other jobs.
    return _rates([mine, *others])[0]


def share_of(slots: int, workers: int, mine: ShareRequest, others: Sequence[ShareRequest]) -> Share:
    """Return a job's share of all slots and workers of a cluster."""
    if not others:
        return Share(slots, workers)
    fraction, *_ = fractions([mine, *others])
    own_slots = max(math.ceil(fraction * slots - _ROUNDING), 1)
    own_workers = max(int(fraction * workers + _ROUNDING), 1)
    tasks = max(int(TASKS_PER_SHARED_SLOT * fraction * slots + _ROUNDING), 1)
    return Share(own_slots, own_workers, tasks)


class OtherJobs:
    """The other jobs on a cluster, as one runner knows them."""

    def __init__(
        self,
        job: str,
        run_id: str,  # names the attempt on the cluster
        priority: str,  # MODELOPS_JOB_PRIORITY, for people
        clock: Callable[[], float] = time.monotonic,
    ):
        self._card, self._clock = {"job": job, "run": run_id, "priority": priority}, clock
        self._n_records = 0
        self._last_new: dict[str, tuple[int, float]] = {}  # the number of each job's record, and when it was new

    def exchange(self, calls: DaskCalls, name: str, request: ShareRequest) -> list[ShareRequest]:
        """Publish what this job asks for under its pool_id; return the others' requests."""
        self._n_records += 1
        record = {"format": _FORMAT, "n": self._n_records} | self._card | asdict(request)
        calls.set_metadata([METADATA, name], record)
        return self.requests(calls.metadata([METADATA]), name)

    def requests(self, records: Mapping[str, Mapping[str, Any]], own: str) -> list[ShareRequest]:
        """Return the requests of jobs whose records are still renewed; ``own`` is the name of the own record."""
        now, before = self._clock(), self._last_new
        others = {name: record for name, record in records.items() if name != own and record.get("format") == _FORMAT}
        last_new = {}
        for name, record in others.items():
            n, since = before.get(name, (None, now))
            last_new[name] = record["n"], since if n == record["n"] else now
        self._last_new = last_new  # at once, because two threads of a runner ask
        renewed = [name for name, (_, since) in last_new.items() if now - since <= SILENT_SECONDS]
        fields = [field.name for field in dataclass_fields(ShareRequest)]
        return [ShareRequest(*(others[name][field] for field in fields)) for name in renewed]


class ClusterCapacity:
    """The slots that a job may plan for. Logs when they change, and gives up when no worker comes."""

    def __init__(self, cluster: Cluster, settings: Settings, job: str, owner: str = ""):
        self._cluster, self._settings, self._job, self._owner = cluster, settings, job, owner
        self._last_worker_at = time.monotonic()
        self._is_empty = False
        self._n_others = 0
        self.slots = max(cluster.slots, 1)
        self.pool = pool_of(settings, alone=False)

    def share(self, wanted_slots: int, useful_slots: int, *, alone: bool = False) -> Share:
        """Return what to plan for now, for a job that could use ``wanted_slots`` at once.

        ``useful_slots`` is for how many slots an autoscaler should start workers. Simulations that run ``alone`` on a
        worker use those of MODELOPS_JOB_MEMORY_POOL, if it is set. The share has at least one slot, so that tasks wait
        for the first worker that comes. ClusterError: no worker was there for
        MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
        """
        counted, timeout_s = self._cluster.slots, self._cluster.timeout_s
        if counted:
            self.reset_timeout()
        elif time.monotonic() - self._last_worker_at > timeout_s:
            what = f"the Dask cluster has had no workers{of_pool(self.pool)} for {timeout_s:g} s"
            hint = f"start workers, then continue the job: mops jobs resume {self._job}"
            raise ClusterError(what, where=self._settings.scheduler, hint=hint)
        elif not self._is_empty:
            message = "%s: no workers%s are there; waiting%s for one"
            logger.warning(message, self._job, of_pool(self.pool), at_most(timeout_s))
        self._is_empty = not counted
        if counted and counted != self.slots:
            logger.info("%s: slots: %d (before: %d)", self._job, counted, self.slots)
            self.slots = counted
        fraction = min(max(wanted_slots, 1) / self.slots, 1.0)
        weight, sim_threads = WEIGHTS[self._settings.priority], self._settings.sim_threads
        self.pool = pool_of(self._settings, alone=alone)
        request = ShareRequest(weight, fraction, self._owner, useful_slots, sim_threads, self.pool)
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


def pool_of(settings: Settings, *, alone: bool) -> str:
    """Return the pool of workers for tasks that run alone on a worker, or for the others; empty: all workers."""
    return (settings.memory_pool if alone else None) or settings.pool or ""


def of_pool(pool: str) -> str:
    """Return which workers are meant, for people; empty: all."""
    return f" of pool {pool}" if pool else ""


def resource_of(pool: str) -> str:
    """Return the name of the Dask resource that the workers of a pool have."""
    return f"{_POOL_RESOURCE}{pool}"


def pool_with(resources: Iterable[str]) -> str:
    """Return the pool of a worker with these Dask resources; empty: it belongs to none."""
    return next((one.removeprefix(_POOL_RESOURCE) for one in resources if one.startswith(_POOL_RESOURCE)), "")


def at_most(seconds: float) -> str:
    """Return the end of a wait, for people; empty: it has none."""
    return "" if math.isinf(seconds) else f" up to {seconds:.0f} s"


class FairQueue:
    """The tags of one job's tasks."""

    def __init__(self) -> None:
        self.highest_taken = 0.0  # tag of this job that the scheduler has taken from the queue
        self._next = 0.0
        self._waiting: dict[str, float] = {}

    def tag(self, key: str, cost: float, highest_taken: float) -> float:
        """Return the tag of a task that has arrived.

        ``cost`` is its time on the slots, divided by the weight of its job (:func:`queue_weight`). ``highest_taken`` is
        the highest tag of any job that the scheduler has taken from the queue.
        """
        tag = max(self._next, highest_taken)
        self._next = tag + cost
        self._waiting[key] = tag
        return tag

    def taken(self, key: str) -> None:
        """Note that the scheduler has taken a task from the queue."""
        self.highest_taken = max(self.highest_taken, self._waiting.pop(key, 0.0))

    def removed(self, key: str) -> None:
        """Note that a task has left the queue without being run."""
        self._waiting.pop(key, None)
