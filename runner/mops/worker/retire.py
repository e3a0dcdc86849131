"""Retires a Dask worker whose pod is to end: ``python -m mops.worker.retire``, a container's preStop hook.

The scheduler then copies the results that only this worker holds to others, and gives what it runs to them. It is
asked through its HTTP API, which needs the route ``distributed.http.scheduler.api`` (helm/mops has it). Whatever goes
wrong is said and nothing else: the pod ends anyway, and what is lost with it is computed again. Standard library only,
so that the hook takes no longer than Python to start.

``DASK_SCHEDULER_ADDRESS`` and ``DASK_WORKER_NAME`` say which worker it is, as dask-kubernetes sets them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class _Refused(Exception):
    """The scheduler answers, and not with what was asked for."""


def main() -> None:
    """Retire the worker that the environment names; say how it went."""
    options = _options()
    try:
        host = urlsplit(os.environ["DASK_SCHEDULER_ADDRESS"]).hostname or ""
        said = retire(host, options.http_port, os.environ["DASK_WORKER_NAME"], options.seconds)
    except KeyError as missing:
        said = f"not retired: {missing.args[0]} is not set"
    except (OSError, HTTPException, ValueError, _Refused) as fault:
        said = f"not retired, what it holds is computed again: {type(fault).__name__}: {fault}"
    _say(f"mops.worker.retire: {said}\n", options.say_to)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mops.worker.retire", description="Retire this Dask worker.")
    parser.add_argument("--http-port", type=int, default=8787, help="of the scheduler's HTTP server")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it may take")
    parser.add_argument(
        "--say-to", type=Path, help="a file that gets what is said, too: a hook's output is kept nowhere"
    )
    return parser.parse_args()


def _say(line: str, also_to: Path | None) -> None:
    sys.stderr.write(line)
    if also_to is not None:
        with contextlib.suppress(OSError), also_to.open("a") as log:  # it was said once already
            log.write(line)


def retire(host: str, port: int, name: str, seconds: float) -> str:
    """Retire the worker of a name; return how it went, for people.

    Parameters
    ----------
    host, port
        Of the scheduler's HTTP server.
    seconds
        How long it may take; the scheduler goes on afterwards.

    Raises
    ------
    OSError, HTTPException, ValueError
        The scheduler does not answer in time, or not as it should.
    """
    deadline = time.monotonic() + seconds
    known = _ask(host, port, deadline, "GET", "/api/v1/get_workers")["workers"]
    addresses = [worker["address"] for worker in known if str(worker["name"]) == name]
    if not addresses:
        return f"{name} is not among the scheduler's {len(known)} workers: nothing to retire"
    retired = _ask(host, port, deadline, "POST", "/api/v1/retire_workers", {"workers": addresses})
    if set(addresses) <= set(retired):
        return f"{name} is retired"
    return f"{name} is not retired: no other worker takes what it holds, which is computed again"


def _ask(host: str, port: int, deadline: float, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Return the JSON object that the scheduler answers. Past any proxy: it knows nothing of the cluster's Services."""
    connection = HTTPConnection(host, port, timeout=max(deadline - time.monotonic(), 0.1))
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    if response.status != 200:
        advice = "; it lacks the route distributed.http.scheduler.api" if response.status == 404 else ""
        raise _Refused(f"{method} {path}: {response.status} {response.reason}{advice}")
    answer = json.loads(text)
    if not isinstance(answer, dict):
        raise _Refused(f"{method} {path}: {text[:100]!r}")
    return answer


if __name__ == "__main__":
    main()
