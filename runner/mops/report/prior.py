"""The prior of the parameters of a calibration in bins, so that figures can compare it with the posterior."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from mops.figures.bins import LEAST_RATIO, MOST_BINS, bins_between, bins_of
from mops.figures.calibration import Prior
from mops.figures.columns import Floats, is_number
from mops.study.sampling.draw import column_of
from mops.study.sampling.prior import prior_mass_below
from mops.study.sampling.space import Choice, Range

_FINEST_BINS = 60
_BINS_OF_INTERVAL = 8


def prior_of(name: str, entry: Choice | Range, fitted: pa.Table, weights: Floats, most: int = MOST_BINS) -> Prior:
    """Return the prior of a parameter in at most this number of bins, which cover its whole range."""
    if isinstance(entry, Choice):
        values = column_of(entry.values)
        if is_number(values.type):
            bins = bins_of(name, values, most)
        else:  # a value that no trial has is one of the values too
            tried = pa.concat_arrays([values, *fitted[name].chunks])
            # Of more texts than bins, those with the greatest weights in the trials have a bin.
            bins = bins_of(name, tried, most, np.append(np.zeros(len(values)), weights))
        return Prior(bins, np.bincount(bins.index(values), minlength=len(bins)) / len(values))
    is_log = entry.is_log and entry.high >= LEAST_RATIO * entry.low
    bins = bins_between(name, entry.low, entry.high, most, is_log=is_log, is_integer=entry.is_int)
    edges = np.array([*bins.values, entry.high + 1.0]) if bins.kind == "values" else bins.edges
    return Prior(bins, np.diff(prior_mass_below(entry, edges)))


def n_bins_for(prior_mass: float | None) -> int:
    """Return into how many bins to divide a range, so that an interval with this prior probability is seen."""
    if not prior_mass:
        return MOST_BINS
    # About 8 bins for the interval, if 60 bins are enough for that.
    return int(min(max(math.ceil(_BINS_OF_INTERVAL / prior_mass), MOST_BINS), _FINEST_BINS))
