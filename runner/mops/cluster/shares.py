"""How the jobs of a cluster divide its slots, by priority: docs/internals/shares.md.

Runners tell one another what they could use, and each computes its share. The scheduler orders the tasks of all jobs
(:class:`FairQueue`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WEIGHTS = {"low": 1, "normal": 4, "high": 16}  # of a job in the division, by its MODELOPS_JOB_PRIORITY

TASKS_PER_SHARED_SLOT = 2  # in flight for each slot of a share: one runs, and the next one waits on the cluster

_ROUNDING = 1e-9


@dataclass(frozen=True)
class ShareRequest:
    """A request of a job for a share of the slots."""

    weight: int  # of its priority
    wants: float  # the fraction of all slots that the job could use now: above 0 and at most 1


@dataclass(frozen=True)
class Share:
    """The part of a cluster that a job may use: at least one slot and one worker."""

    slots: int
    workers: int
    tasks: int | None = None  # at most in flight; None: no limit, because no other job is there


def fractions(requests: Sequence[ShareRequest]) -> list[float]:
    """Return the fraction of all slots for each request: by weight, and at most what it wants (max-min fairness)."""
    left, weights = 1.0, sum(request.weight for request in requests)
    given: dict[int, float] = {}
    for i in sorted(range(len(requests)), key=lambda i: requests[i].wants / requests[i].weight):
        given[i] = min(requests[i].wants, left * requests[i].weight / weights)
        left, weights = left - given[i], weights - requests[i].weight
    return [given[i] for i in range(len(requests))]


def share_of(slots: int, workers: int, mine: ShareRequest, others: Sequence[ShareRequest]) -> Share:
    """Return a job's share of all slots and workers of a cluster."""
    if not others:
        return Share(slots, workers)
    fraction, *_ = fractions([mine, *others])
    own_slots = max(math.ceil(fraction * slots - _ROUNDING), 1)
    own_workers = max(int(fraction * workers + _ROUNDING), 1)
    tasks = max(int(TASKS_PER_SHARED_SLOT * fraction * slots + _ROUNDING), 1)
    return Share(own_slots, own_workers, tasks)


class FairQueue:
    """The tags of one job's tasks."""

    def __init__(self) -> None:
        self.highest_taken = 0.0  # tag of this job that the scheduler has taken from the queue
        self._next = 0.0
        self._waiting: dict[str, float] = {}

    def tag(self, key: str, cost: float, highest_taken: float) -> float:
        """Return the tag of a task that has arrived.

        ``cost`` is its time on the slots, divided by the weight of its job. ``highest_taken`` is the highest tag of any
        job that the scheduler has taken from the queue.
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
