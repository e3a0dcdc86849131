"""Retires a Dask worker before its pod ends: ``python -m mops.worker.retire``, a container's preStop hook.

The scheduler copies the results that only this worker holds to other workers, and moves its tasks to them. The hook
asks the scheduler's HTTP API, which needs the route ``distributed.http.scheduler.api`` (helm/mops enables it). The pod
ends even if the hook fails, and Dask computes lost results again. Standard library only: it starts as fast as Python.
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
    """The scheduler has refused a request."""


def main() -> None:
    """Retire the worker that the environment names, and print how it went."""
    parser = argparse.ArgumentParser(prog="mops.worker.retire", description="Retire this Dask worker.")
    parser.add_argument("--http-port", type=int, default=8787, help="port of the scheduler's HTTP server")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to wait for the scheduler")
    parser.add_argument(
        "--say-to", type=Path, help="a file to append the message to: Kubernetes keeps no hook's output"
    )
    options = parser.parse_args()
    try:
        host = urlsplit(os.environ["DASK_SCHEDULER_ADDRESS"]).hostname or ""
        outcome = _retire(host, options.http_port, os.environ["DASK_WORKER_NAME"], options.seconds)
    except KeyError as missing:
        outcome = f"not retired: {missing.args[0]} is not set"
    except (OSError, HTTPException, ValueError, _Refused) as fault:
        outcome = f"not retired, so Dask computes its results again: {type(fault).__name__}: {fault}"
    line = f"mops.worker.retire: {outcome}\n"
    sys.stderr.write(line)
    if options.say_to is not None:
        with contextlib.suppress(OSError), options.say_to.open("a") as log:  # stderr has the line already
            log.write(line)


def _retire(host: str, port: int, name: str, seconds: float) -> str:
    """Retire the worker of this name by the scheduler's HTTP server; return how it went, for people."""
    deadline = time.monotonic() + seconds
    known = _ask(host, port, deadline, "GET", "/api/v1/get_workers")["workers"]
    addresses = [worker["address"] for worker in known if str(worker["name"]) == name]
    if not addresses:
        return f"{name} is not among the scheduler's {len(known)} workers: nothing to retire"
    retired = _ask(host, port, deadline, "POST", "/api/v1/retire_workers", {"workers": addresses})
    if set(addresses) <= set(retired):
        return f"{name} is retired"
    return f"{name} is not retired: no other worker takes its results, so Dask computes them again"


def _ask(host: str, port: int, deadline: float, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Return the JSON object that the scheduler answers, past any proxy, which does not know the cluster's Services."""
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
