"""Connects to a Dask scheduler: the only module that makes a client."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client
from distributed.versions import VersionMismatchWarning

from mops.errors import ClusterError, UsageError

CONNECT_SECONDS = 10.0


def silence_dask() -> None:
    """Silence Dask's own log: what it knows of our tasks and connections, our own errors say."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", "tornado.application", *names):  # Dask's loop is tornado's: what fails in its callbacks
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def connect_to_look(address: str, timeout_s: float = CONNECT_SECONDS) -> Iterator[Client]:
    """Connect to a cluster that is running, to look at it and no more: also without workers, or with other versions.

    Raises
    ------
    ClusterError
        The scheduler does not answer, or goes meanwhile.
    """
    silence_dask()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # who looks says so
            client = Client(address, timeout=timeout_s, set_as_default=False)
        with client:
            yield client
    except (OSError, TimeoutError) as lost:
        raise ClusterError(
            f"the Dask scheduler does not answer ({' '.join(str(lost).split()) or type(lost).__name__})",
            where=address,
            hint="is it running, and of the same Dask as this client?",
        ) from lost


def check_address(address: str) -> None:
    """Raise UsageError unless this is the address of a Dask scheduler."""
    scheme, separator, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if not (separator and scheme in {"tcp", "tls", "ws", "wss"} and host and port.isdigit()):
        raise UsageError(
            f"{address!r} is not the address of a Dask scheduler",
            where="MODELOPS_SCHEDULER",
            hint="write it as Dask does, like tcp://host:8786; leave it unset to run on this machine",
        )
