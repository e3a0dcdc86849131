"""``mops.connect()``: the service on which jobs run."""

from __future__ import annotations

from pathlib import Path

from mops.service import profile as profiles
from mops.service.connect import connect as find_service
from mops.service.profile import Profile


def connect(
    namespace: str | None = None,
    *,
    context: str | None = None,
    kubeconfig: str | Path | None = None,
    release: str | None = None,
    dedicated: bool = False,
    off: bool = False,
) -> Profile | None:
    """Connect to a cluster service, so that jobs run there, as ``mops connect`` does.

    Parameters
    ----------
    namespace, context, kubeconfig
        As for kubectl; None: the current ones.
    release
        The release of the chart; None: mops.
    dedicated
        Run jobs on dedicated Dask clusters by default.
    off
        Disconnect: run jobs on this machine again.

    Returns
    -------
    Profile or None
        What mops has saved: ``namespace``, ``context``, ``kubeconfig``, ``dedicated`` and ``service``; None with
        ``off``.

    Raises
    ------
    UsageError
        The kubeconfig or the context does not exist, or the service has no dedicated clusters.
    ServiceError
        The cluster is out of reach, the service does not exist, or you may not use it.

    Examples
    --------
    >>> mops.connect("studies").service.storage
    """
    if off:
        profiles.remove()
        return None
    where = str(Path(kubeconfig).absolute()) if kubeconfig else None
    found = find_service(namespace, context, where, release, dedicated=dedicated)
    profiles.save(found)
    return found
