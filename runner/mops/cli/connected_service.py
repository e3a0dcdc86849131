"""Finds the connected service for commands that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mops.errors import UsageError
from mops.jobs.location import service_of
from mops.service.profile import load, path

if TYPE_CHECKING:
    from mops.service.service import Service


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
    return service_of(profile)
