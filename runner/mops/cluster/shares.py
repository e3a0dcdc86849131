"""Divides the slots of a cluster among its jobs, by priority. Pure.

How jobs hear of each other is :mod:`mops.cluster.other_jobs`'s; whose task is next is :mod:`mops.cluster.fair_queue`'s.
docs/internals/shares.md has the rule and its reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WEIGHTS = {"low": 1, "normal": 4, "high": 16}
"""What a job's share is measured by, for MODELOPS_JOB_PRIORITY."""

TASKS_PER_SHARED_SLOT = 2
"""Tasks in flight for each slot of a share: one that runs, and one that is there when it has ended."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class ShareRequest:
    """What a job asks for.

    Parameters
    ----------
    weight
        Of its priority.
    wants
        The part of all slots that it could use now: above 0 and at most 1.
    """

    weight: int
    wants: float


@dataclass(frozen=True)
class Share:
    """What a job has to plan with.

    Parameters
    ----------
    slots, workers
        Simulations that it may run at once, on so many workers; at least one each.
    tasks
        Its most tasks in flight; None: as many as it likes, for it is by itself.
    """

    slots: int
    workers: int
    tasks: int | None = None


def parts(claims: Sequence[ShareRequest]) -> list[float]:
    """Return the part of all slots that each claim gets: by weight, but none more than it wants (max-min fairness)."""
    left, weights = 1.0, sum(claim.weight for claim in claims)
    given: dict[int, float] = {}
    for i in sorted(range(len(claims)), key=lambda i: claims[i].wants / claims[i].weight):
        given[i] = min(claims[i].wants, left * claims[i].weight / weights)
        left, weights = left - given[i], weights - claims[i].weight
    return [given[i] for i in range(len(claims))]


def tasks_in_flight(slots: int, mine: ShareRequest, others: Sequence[ShareRequest]) -> int:
    """Return how many tasks a job may have in flight: two for each slot of its share, and at least one."""
    part, *_ = parts([mine, *others])
    return max(int(TASKS_PER_SHARED_SLOT * part * slots + _ROUNDING), 1)


def share_of(slots: int, workers: int, mine: ShareRequest, others: Sequence[ShareRequest]) -> Share:
    """Return a job's share of a cluster.

    Parameters
    ----------
    slots, workers
        Simulations that could run at once if nobody else were there, on so many workers.
    """
    if not others:
        return Share(slots, workers)
    part, *_ = parts([mine, *others])
    own_slots = max(math.ceil(part * slots - _ROUNDING), 1)
    own_workers = max(int(part * workers + _ROUNDING), 1)
    return Share(own_slots, own_workers, tasks_in_flight(slots, mine, others))
