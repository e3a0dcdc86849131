"""The connected service, for commands that ask it something."""

from __future__ import annotations

from dataclasses import replace

from mops.errors import UsageError
from mops.jobs.location import locate
from mops.service.profile import load, path
from mops.service.service import Service
from mops.storage.files import Files


def service_with(files: Files, *, local: bool) -> Service | None:
    """Return the service that may know of runners of the jobs in this storage; None: there is none."""
    location = locate(local=local)
    if location.profile is None or not location.reached_from_pods(files.url):
        return None
    return replace(Service.of(location.profile), results=files.url)


def connected() -> Service:
    """Return the connected service.

    Raises
    ------
    UsageError
        There is none.
    ServiceError
        It is out of reach.
    """
    profile = load()
    if profile is None:
        raise UsageError(
            "no cluster service is connected", where=str(path()), hint="connect to one: mops connect --namespace NAME"
        )
    return Service.of(profile)
