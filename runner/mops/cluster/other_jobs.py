"""Exchanges with the other runners on a cluster, through its scheduler, how many slots each job asks for.

The scheduler removes the record of a runner that disconnects (scheduler_plugin.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mops.cluster.dask_calls import DaskCalls
from mops.cluster.shares import ShareRequest

METADATA = "mops-jobs"  # in the scheduler's metadata; below it, each record by the name of the connection's pools

# A runner whose record has not changed for this time does not count, because it may be out of reach. A runner renews
# its record several times as often.
SILENT_SECONDS = 15.0

_FORMAT = 1


@dataclass(frozen=True)
class JobCard:
    """How a runner introduces its job to the others."""

    job: str
    run: str  # the name of the attempt on the cluster
    priority: str  # MODELOPS_JOB_PRIORITY, for people


class OtherJobs:
    """The other jobs on a cluster, as one runner knows them."""

    def __init__(self, card: JobCard, clock: Callable[[], float] = time.monotonic):
        self._card, self._clock = card, clock
        self._n_records = 0
        self._last_new: dict[str, tuple[int, float]] = {}  # the number of each job's record, and when it was new

    def exchange(self, calls: DaskCalls, name: str, request: ShareRequest) -> list[ShareRequest]:
        """Publish what this job asks for under the name of this connection's pools; return the others' requests."""
        self._n_records += 1
        record = {"format": _FORMAT, "n": self._n_records} | asdict(self._card) | asdict(request)
        calls.set_metadata([METADATA, name], record)
        return self.requests(calls.metadata([METADATA]), name)

    def requests(self, records: Mapping[str, Mapping[str, Any]], own: str) -> list[ShareRequest]:
        """Return the requests of jobs whose records are still renewed; ``own`` is the name of the own record."""
        now, before = self._clock(), self._last_new
        others = {name: record for name, record in records.items() if name != own and record.get("format") == _FORMAT}
        self._last_new = {}
        for name, record in others.items():
            n, since = before.get(name, (None, now))
            self._last_new[name] = record["n"], since if n == record["n"] else now
        renewed = [name for name, (_, since) in self._last_new.items() if now - since <= SILENT_SECONDS]
        return [ShareRequest(others[name]["weight"], others[name]["wants"]) for name in renewed]
