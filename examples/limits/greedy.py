"""A model whose memory grows with the square of a parameter."""

import numpy as np


def run(params, seed):
    """Return the mean distance of random points on a line of length 1, from all pairs at once."""
    points = np.random.default_rng(seed).random(params["points"])
    distances = np.abs(points[:, None] - points[None, :])
    return {"mean_distance": float(distances.mean())}
