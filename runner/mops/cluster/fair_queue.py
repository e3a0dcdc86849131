"""In which order tasks of several jobs are taken from the scheduler's queue: start-time fair queuing. Pure.

Each task gets a tag when it arrives, and the lowest tag is next. A job's tags are as far apart as its tasks cost, so
that two jobs have the same time on the slots however long their tasks are; a job that was idle begins where the others
are (Goyal, Vin and Cheng 1996). That Dask orders its queue by tags is :mod:`mops.cluster.external`'s doing.
"""

from __future__ import annotations


class FairQueue:
    """The tags of one job."""

    def __init__(self) -> None:
        self.reached = 0.0
        self._next = 0.0
        self._waiting: dict[str, float] = {}

    def tag(self, key: str, cost: float, reached: float) -> float:
        """Return the tag of a task that has arrived.

        Parameters
        ----------
        cost
            Its time on the slots, over the weight of its job.
        reached
            The highest tag that has been taken from the queue so far, of any job.
        """
        tag = max(self._next, reached)
        self._next = tag + cost
        self._waiting[key] = tag
        return tag

    def taken(self, key: str) -> None:
        """Note that a task has been taken from the queue."""
        self.reached = max(self.reached, self._waiting.pop(key, 0.0))

    def gone(self, key: str) -> None:
        """Note that a task will not be taken."""
        self._waiting.pop(key, None)
