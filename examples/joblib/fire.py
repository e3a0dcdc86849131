"""A forest fire on a grid. before.py and model.py call it."""

import numpy as np


def burn(density, wind, seed, size=100):
    """Light the western edge; return the share of the trees that burn."""
    rng = np.random.default_rng(seed)
    trees = rng.random((size, size)) < density
    jumps = rng.random((size, size)) < wind  # from these trees, fire jumps over one cell to the east
    burning = np.zeros_like(trees)
    burning[:, 0] = trees[:, 0]
    while True:
        reached = burning.copy()
        reached[1:] |= burning[:-1]
        reached[:-1] |= burning[1:]
        reached[:, 1:] |= burning[:, :-1]
        reached[:, :-1] |= burning[:, 1:]
        reached[:, 2:] |= (burning & jumps)[:, :-2]
        reached &= trees
        if (reached == burning).all():
            return burning.sum() / trees.sum()
        burning = reached
