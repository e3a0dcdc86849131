"""Waits for ``helm test`` until a scheduler answers and has a worker, for up to two minutes."""

import re
import sys
import time
from urllib.request import ProxyHandler, build_opener

scheduler = sys.argv[1]
opener = build_opener(ProxyHandler({}))  # a proxy for the outside does not know Services
deadline = time.monotonic() + 120
while True:
    try:
        with opener.open(f"{scheduler}/metrics", timeout=10) as response:
            states = re.findall(r"^dask_scheduler_workers{.*} (.+)$", response.read().decode(), re.MULTILINE)
        workers, trouble = int(sum(map(float, states))), "no worker has connected"
    except OSError as error:  # also before its Service has an address
        workers, trouble = 0, f"the scheduler does not answer ({error})"
    if workers:
        break
    if time.monotonic() > deadline:
        sys.exit(f"{scheduler}: {trouble} for 120 s: run kubectl describe pod")
    time.sleep(2)
sys.stdout.write(f"{scheduler}: workers connected: {workers}\n")
