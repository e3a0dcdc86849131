"""Orders the tasks of several jobs in the scheduler's queue: start-time fair queuing. Pure.

Each task gets a tag on arrival, and the scheduler takes the lowest tag first. The tags of a job are as far apart as its
tasks cost, so two jobs get the same time on the slots however long their tasks are. A job that was idle starts where
the others are (Goyal, Vin and Cheng 1996). :mod:`mops.cluster.scheduler_plugin` makes Dask order its queue by tags.
"""

from __future__ import annotations


class FairQueue:
    """The tags of one job's tasks."""

    def __init__(self) -> None:
        self.highest_taken = 0.0
        """The highest tag of this job that the scheduler has taken from the queue."""
        self._next = 0.0
        self._waiting: dict[str, float] = {}

    def tag(self, key: str, cost: float, highest_taken: float) -> float:
        """Return the tag of a task that has arrived.

        Parameters
        ----------
        cost
            The time of the task on the slots, divided by the weight of its job.
        highest_taken
            The highest tag of any job that the scheduler has taken from the queue.
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
