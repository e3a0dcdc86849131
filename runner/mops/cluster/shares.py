"""Divides the slots of a cluster among its jobs, by priority. Pure.

:mod:`mops.cluster.other_jobs` exchanges the requests between runners, and :mod:`mops.cluster.fair_queue` orders their
tasks. docs/internals/shares.md has the rule and its reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WEIGHTS = {"low": 1, "normal": 4, "high": 16}
"""The weight of a job in the division, by its MODELOPS_JOB_PRIORITY."""

TASKS_PER_SHARED_SLOT = 2
"""Tasks in flight for each slot of a share: one runs, and the next one waits on the cluster."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class ShareRequest:
    """A request of a job for a share of the slots.

    Parameters
    ----------
    weight
        The weight of its priority.
    wants
        The fraction of all slots that the job could use now: above 0 and at most 1.
    """

    weight: int
    wants: float


@dataclass(frozen=True)
class Share:
    """The part of a cluster that a job may use.

    Parameters
    ----------
    slots, workers
        Simulations that the job may run at once, and the workers that run them; at least one each.
    tasks
        The most tasks in flight; None: no limit, because no other job is there.
    """

    slots: int
    workers: int
    tasks: int | None = None


def fractions(requests: Sequence[ShareRequest]) -> list[float]:
    """Return the fraction of all slots for each request: by weight, and at most what it wants (max-min fairness)."""
    left, weights = 1.0, sum(request.weight for request in requests)
    given: dict[int, float] = {}
    for i in sorted(range(len(requests)), key=lambda i: requests[i].wants / requests[i].weight):
        given[i] = min(requests[i].wants, left * requests[i].weight / weights)
        left, weights = left - given[i], weights - requests[i].weight
    return [given[i] for i in range(len(requests))]


def share_of(slots: int, workers: int, mine: ShareRequest, others: Sequence[ShareRequest]) -> Share:
    """Return a job's share of a cluster.

    Parameters
    ----------
    slots, workers
        Simulations that the cluster can run at once, and its workers.
    """
    if not others:
        return Share(slots, workers)
    fraction, *_ = fractions([mine, *others])
    own_slots = max(math.ceil(fraction * slots - _ROUNDING), 1)
    own_workers = max(int(fraction * workers + _ROUNDING), 1)
    tasks = max(int(TASKS_PER_SHARED_SLOT * fraction * slots + _ROUNDING), 1)
    return Share(own_slots, own_workers, tasks)
