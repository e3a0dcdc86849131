"""What methods need that draw from the unit cube, in which every set of the space is equally likely."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mops.storage.calibration_records import Round
from mops.study.sampling.draw import Floats

LEAST_VARIANCE = 1e-12  # added to variances, so that a covariance of equal points has an inverse


def points_of(history: Sequence[Round]) -> Floats:
    """Return the points of all sets."""
    return np.concatenate([np.array(each.asked.state["points"], dtype=float) for each in history])


def inside_the_cube(
    propose: Callable[[int], Floats],  # draws this many points
    n: int,
) -> tuple[Floats, int]:
    """Draw points until ``n`` are in the cube; return these, and how many were drawn."""
    kept: list[Floats] = []
    n_kept = drawn = 0
    while n_kept < n:
        points = propose(n)
        places = np.flatnonzero(np.all((points >= 0) & (points < 1), axis=1))[: n - n_kept]
        n_kept += len(places)
        drawn += n if n_kept < n else int(places[-1]) + 1
        kept.append(points[places])
    return np.concatenate(kept), drawn


def effective_sample_size(weights: Floats) -> float:
    """Return how many sets of equal weight tell as much (Kish 1965, Survey Sampling, Wiley); 0: all weights are 0."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0
