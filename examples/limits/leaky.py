"""A model that keeps an array of each simulation, like a cache without a limit."""

import numpy as np

CACHE = {}


def run(params, seed):
    field = np.random.default_rng(seed).random((params["size"], params["size"]))
    CACHE[seed] = field  # never read, never removed
    return {"mean": float(field.mean())}
