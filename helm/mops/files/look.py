"""Checks for ``helm test`` that a scheduler answers and has a worker; waits up to two minutes for the first worker."""

import json
import sys
import time
from urllib.request import ProxyHandler, build_opener

scheduler = sys.argv[1]
opener = build_opener(ProxyHandler({}))  # a proxy for the outside does not know Services


def answer(path: str) -> bytes:
    """Return what the scheduler answers."""
    with opener.open(scheduler + path, timeout=10) as response:
        body: bytes = response.read()
    return body


answer("/health")
deadline = time.monotonic() + 120
while not (workers := json.loads(answer("/api/v1/get_workers"))["workers"]):
    if time.monotonic() > deadline:
        sys.exit(f"{scheduler} answers, but no worker has connected for 120 s: run kubectl describe pod")
    time.sleep(2)
sys.stdout.write(f"{scheduler} has {len(workers)} workers\n")
