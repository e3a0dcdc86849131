"""Waits for ``helm test`` until a scheduler answers and has a number of workers, for up to two minutes."""

import re
import sys
import time
from urllib.request import ProxyHandler, build_opener

scheduler, n_needed = sys.argv[1], int(sys.argv[2])
opener = build_opener(ProxyHandler({}))  # a proxy for the outside does not know Services
deadline = time.monotonic() + 120
while True:
    try:
        with opener.open(f"{scheduler}/metrics", timeout=10) as response:
            states = re.findall(r"^dask_scheduler_workers{.*} (.+)$", response.read().decode(), re.MULTILINE)
        workers = int(sum(map(float, states)))
        trouble = "" if workers >= n_needed else f"workers connected: {workers} of {n_needed}"
    except OSError as error:  # also before its Service has an address
        trouble = f"the scheduler does not answer ({error})"
    if not trouble:
        break
    if time.monotonic() > deadline:
        sys.exit(f"{scheduler}: {trouble} for 120 s: run kubectl describe pod")
    time.sleep(2)
sys.stdout.write(f"{scheduler}: workers connected: {workers}\n")
