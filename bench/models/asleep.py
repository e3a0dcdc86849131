"""A model that takes time and no CPU, to measure what the runner and Dask cost on many slots."""

import time


def run(params, seed):
    """Sleep, and return one row."""
    time.sleep(params["seconds"])
    return {"y": seed % 1000}
