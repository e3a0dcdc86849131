"""Exchanges with other runners on the cluster how many slots each asks for, through the scheduler.

Who leaves is taken out of it by the scheduler (:class:`mops.cluster.scheduler_plugin.AttemptPlugin`). Who is out of
reach without the scheduler's notice says nothing new: after a while it does not count either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client

from mops.cluster.shares import ShareRequest

METADATA = "mops-jobs"
"""Where it stands in the scheduler's metadata, by the name of each connection's pools."""

SILENT_SECONDS = 15.0
"""Without anything new, after which a job does not count: several times what it takes to say it."""

_FORMAT = 1


@dataclass(frozen=True)
class JobCard:
    """What a runner says of itself, beside its claim.

    Parameters
    ----------
    run
        Names the attempt on the cluster.
    priority
        In words, for people.
    """

    job: str
    run: str
    priority: str


class OtherJobs:
    """The other jobs, as one runner sees them.

    Parameters
    ----------
    clock
        Seconds.
    """

    def __init__(self, card: JobCard, clock: Callable[[], float] = time.monotonic):
        self._card, self._clock = card, clock
        self._n_said = 0
        self._heard: dict[str, tuple[int, float]] = {}  # what each said last, and when that was new

    def meet(self, client: Client, name: str, claim: ShareRequest) -> list[ShareRequest]:
        """Say what this job asks for, and return what others do.

        Parameters
        ----------
        name
            Of this connection's pools.

        Raises
        ------
        OSError, TimeoutError, ValueError
            What Dask raises where the connection is lost.
        """
        client.set_metadata([METADATA, name], self.said(claim))
        return self.heard(client.get_metadata([METADATA], {}), name)

    def said(self, claim: ShareRequest) -> dict[str, Any]:
        """Return what is to be said now."""
        self._n_said += 1
        return {"format": _FORMAT, "n": self._n_said} | asdict(self._card) | asdict(claim)

    def heard(self, said: Mapping[str, Mapping[str, Any]], own: str) -> list[ShareRequest]:
        """Return the claims of those who live, of what all say."""
        now = self._clock()
        others = {name: it for name, it in said.items() if name != own and it.get("format") == _FORMAT}
        before = self._heard
        self._heard = {name: _heard(before.get(name), it["n"], now) for name, it in others.items()}
        living = [name for name, (_, at) in self._heard.items() if now - at <= SILENT_SECONDS]
        return [ShareRequest(others[name]["weight"], others[name]["wants"]) for name in living]


def _heard(before: tuple[int, float] | None, n: int, now: float) -> tuple[int, float]:
    return before if before is not None and before[0] == n else (n, now)
