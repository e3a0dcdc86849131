"""Targets for an output `daily` with the column `infected`, as `counted.py` returns it."""

import math

import numpy as np


def number(params, replicates):
    """Return one number: the peak, averaged over replicates."""
    return float(np.mean(peaks(replicates)))


def mapping(params, replicates):
    """Return several losses by name."""
    return {"lowest": float(min(peaks(replicates))), "highest": float(max(peaks(replicates)))}


def loss_nan(params, replicates):
    """Return a number that is not finite."""
    return math.nan


def raising(params, replicates):
    """Fail."""
    raise ZeroDivisionError("no one was tested")


def exiting(params, replicates):
    """Exit the process."""
    raise SystemExit(3)


def peaks(replicates):
    """Return each replicate's highest number of infected."""
    return [int(replicate["daily"].column("infected").to_numpy().max()) for replicate in replicates]
