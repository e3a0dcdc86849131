"""Makes clients of a Dask scheduler, and checks its address."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager

from distributed import Client
from distributed.versions import VersionMismatchWarning

from mops.cluster.dask_calls import DaskCalls
from mops.errors import ClusterError, NoAnswer, UsageError

CONNECT_SECONDS = 10.0


def silence_dask() -> None:
    """Silence Dask's log, because the errors of mops say the same about tasks and connections."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", "tornado.application", *names):  # for callbacks in Dask's event loop
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def connect_to_look(address: str, timeout_s: float = CONNECT_SECONDS) -> Iterator[DaskCalls]:
    """Connect to a running cluster to inspect it. It may have no workers, or other versions of mops and Dask.

    ClusterError: the scheduler does not answer, or the connection breaks.
    """
    silence_dask()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # the caller reports it
            client = Client(address, timeout=timeout_s, set_as_default=False)
        with closing(DaskCalls(client)) as calls:
            yield calls
    except NoAnswer as silent:
        raise NoAnswer(silent.what, where=address, hint=silent.hint) from silent
    except (OSError, TimeoutError) as lost:
        raise ClusterError(
            f"the Dask scheduler does not answer ({' '.join(str(lost).split()) or type(lost).__name__})",
            where=address,
            hint="check that it is running, with the same version of Dask as this client",
        ) from lost


def check_address(address: str) -> None:
    """Raise UsageError unless this is the address of a Dask scheduler."""
    scheme, separator, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if not (separator and scheme in {"tcp", "tls", "ws", "wss"} and host and port.isdigit()):
        raise UsageError(
            f"{address!r} is not the address of a Dask scheduler",
            where="MODELOPS_SCHEDULER",
            hint="use a form like tcp://host:8786, or unset MODELOPS_SCHEDULER to run on this machine",
        )
