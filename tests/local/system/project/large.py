"""A model with half a megabyte of incompressible rows."""

import os
import random
import time
from pathlib import Path

import numpy as np


def simulate(params, seed):
    """Return 65,536 random numbers; count the call as the counted model does."""
    if path := os.environ.get("MOPS_TEST_CALLS"):
        with Path(path).open("a") as tally:
            tally.write(f"large {seed} {os.getpid()}\n")
    paced = os.environ.get("MOPS_TEST_PACED")
    if paced is None or Path(paced).exists():
        time.sleep(params.get("seconds", 0.3))  # gives mops time to find that a disk of a few MiB is too small
    return {"x": np.random.default_rng(random.getrandbits(32)).random(1 << 16)}
