"""The benchmark's six targets. They are cheap, because the benchmark measures the runner."""

import numpy as np


def infected(replicates):
    """Return the replicates' curves as rows of one array."""
    return np.stack([replicate["output"].column("infected").to_numpy() for replicate in replicates])


def peak(params, replicates):
    return float(infected(replicates).max(axis=1).mean())


def peak_day(params, replicates):
    return float(infected(replicates).argmax(axis=1).mean())


def mean_infected(params, replicates):
    return float(infected(replicates).mean())


def spread(params, replicates):
    return float(infected(replicates).std(axis=0).mean())


def squared_error(params, replicates):
    return float(((infected(replicates).mean(axis=0) - 1_000.0) ** 2).mean())


def final_size(params, replicates):
    return float(np.mean([replicate["output"].column("susceptible")[-1].as_py() for replicate in replicates]))
