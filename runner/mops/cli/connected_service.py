"""Finds the connected service for commands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mops.errors import UsageError
from mops.jobs.location import locate
from mops.service.profile import Profile, load, path
from mops.storage.files import Files

if TYPE_CHECKING:
    from mops.service.service import Service


def service_with(files: Files, *, local: bool) -> Service | None:
    """Return the connected service if its runners reach this storage; None: there is none."""
    location = locate(local=local)
    if location.profile is None or not location.reached_from_pods(files.url):
        return None
    return replace(_service_of(location.profile), results=files.url)


def connected() -> Service:
    """Return the connected service.

    Raises
    ------
    UsageError
        No service is connected.
    ServiceError
        The service is out of reach.
    """
    profile = load()
    if profile is None:
        raise UsageError(
            "no cluster service is connected",
            where=str(path()),
            hint="connect to a service: mops connect --namespace NAME",
        )
    return _service_of(profile)


def _service_of(profile: Profile) -> Service:
    from mops.service.service import Service  # noqa: PLC0415 - 0.013 s

    return Service.of(profile)
