"""``mops.connect()`` and ``mops.disconnect()``: the service on which jobs run."""

from __future__ import annotations

from pathlib import Path

from mops.service import profile as profiles
from mops.service.connect import Wanted
from mops.service.connect import connect as connect_service
from mops.service.profile import Profile


def connect(
    namespace: str | None = None,
    *,
    profile: str | None = None,
    context: str | None = None,
    kubeconfig: str | Path | None = None,
    release: str | None = None,
    dedicated: bool = False,
) -> Profile:
    """Connect to a cluster service, so that jobs run there, as ``mops connect`` does.

    Parameters
    ----------
    namespace, context, kubeconfig
        As for kubectl; None: the current ones.
    profile
        The name to save the service with; None: ``default``. With the name of a saved profile and nothing else, mops
        connects to that service again.
    release
        The release of the chart; None: mops.
    dedicated
        Run jobs on dedicated Dask clusters by default.

    Returns
    -------
    Profile
        What mops has saved: ``namespace``, ``context``, ``kubeconfig``, ``dedicated`` and ``service``.

    Raises
    ------
    UsageError
        The kubeconfig or the context does not exist, or the service has no dedicated clusters.
    ServiceError
        The cluster is out of reach, the service does not exist, or you may not use it.

    Examples
    --------
    >>> mops.connect("studies", profile="prod").service.storage
    """
    where = str(Path(kubeconfig).absolute()) if kubeconfig else None
    found, _ = connect_service(profile, Wanted(namespace, context, where, release, dedicated))
    return found


def disconnect(profile: str | None = None) -> None:
    """Run jobs on this machine again, as ``mops disconnect`` does.

    Parameters
    ----------
    profile
        Delete the profile of this name; None: keep all profiles.

    Raises
    ------
    UsageError
        No profile has this name.
    """
    if profile is not None:
        profiles.remove(profile)
    else:
        profiles.disconnect()
