"""A model in which one simulation kills its Dask worker each time."""

import hashlib
import json
import os
import signal

import psutil


def simulate(params, seed):
    """Return a row. If `kills` is set, kill the worker in the first replicate."""
    if params["kills"] and seed == first_seed(params):
        os.kill(worker(), signal.SIGKILL)
        signal.pause()
    return {"x": [seed]}


def worker():
    """Return the process of the Dask worker: the nearest ancestor that is not a child or template process of mops."""
    above = psutil.Process().parents()
    return next(process.pid for process in above if not any("mops.worker" in word for word in process.cmdline()))


def first_seed(params):
    """Return the seed that the contract defines for replicate 0."""
    text = "contracts:param:v1|" + json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    identity = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
    return int.from_bytes(hashlib.blake2b(f"{identity}:0".encode(), digest_size=8).digest(), "big") % 2**32
