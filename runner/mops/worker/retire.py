"""Retires a Dask worker before its pod ends: ``python -m mops.worker.retire``, a container's preStop hook.

The scheduler copies the results that only this worker holds to other workers, and moves its tasks to them. The hook
asks the scheduler as a worker does: on Dask's port, with the certificate in the settings of Dask (``DASK_CONFIG``).
Dask's HTTP API would do the same for everyone who reaches its port. The pod ends even if the hook fails, and Dask
computes lost results again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from distributed import Security
from distributed.core import rpc

_CONNECT_SECONDS = 5.0  # Dask retries until then, also if nothing listens


def main() -> None:
    """Retire the worker that the environment names, and print how it went."""
    parser = argparse.ArgumentParser(prog="mops.worker.retire", description="Retire this Dask worker.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to wait for the scheduler")
    parser.add_argument(
        "--say-to", type=Path, help="a file to append the message to: Kubernetes keeps no hook's output"
    )
    options = parser.parse_args()
    try:
        address, name = os.environ["DASK_SCHEDULER_ADDRESS"], os.environ["DASK_WORKER_NAME"]
        outcome = asyncio.run(asyncio.wait_for(_retire(address, name), options.seconds))
    except KeyError as missing:
        outcome = f"not retired: {missing.args[0]} is not set"
    except TimeoutError:
        outcome = _failed(f"the scheduler has not answered within {options.seconds:g} s")
    except Exception as fault:  # noqa: BLE001 - also an error of the scheduler, which Dask raises here
        # Dask's own error says only how long it has tried. But its last attempt may have had too little time.
        cause = fault.__cause__
        reason = cause if str(cause or "") else fault
        outcome = _failed(f"{type(reason).__name__}: {reason}")
    line = f"mops.worker.retire: {outcome}\n"
    sys.stderr.write(line)
    if options.say_to is not None:
        with contextlib.suppress(OSError), options.say_to.open("a") as log:  # stderr has the line already
            log.write(line)


async def _retire(address: str, name: str) -> str:
    """Retire the worker of this name; return how it went, for people. The caller limits the time."""
    certificate = Security().get_connection_args("worker")
    async with rpc(address, timeout=_CONNECT_SECONDS, connection_args=certificate) as remote:
        if await remote.retire_workers(names=[name]):
            return f"{name} is retired"
        known = [str(worker["name"]) for worker in (await remote.identity(n_workers=-1))["workers"].values()]
    if name in known:
        return f"{name} is not retired: no other worker takes its results, so Dask computes them again"
    return f"{name} is not among the scheduler's {len(known)} workers: nothing to retire"


def _failed(reason: str) -> str:
    return f"not retired, so Dask computes its results again: {reason}"


if __name__ == "__main__":
    main()
