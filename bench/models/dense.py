"""A model that spends its time in linear algebra: it solves dense systems, for which OpenBLAS uses all its threads.

| parameter | meaning |
|---|---|
| `size` | unknowns of one system |
| `solves` | systems of one simulation |
"""

import os

import numpy as np


def simulate(params, seed):
    """Return a number that depends on all solutions, and the process id."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((params["size"], params["size"]))
    state = rng.random(params["size"])
    for _ in range(params["solves"]):
        state = np.linalg.solve(matrix, state)
        state /= np.linalg.norm(state)
    return {"norm": float(np.linalg.norm(state)), "pid": os.getpid()}
