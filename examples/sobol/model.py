"""The function of Ishigami, whose Sobol indices are known."""

import math


def ishigami(params, seed):
    """Return one number. Nothing is random, so the seed is not used."""
    x1, x2, x3 = params["x1"], params["x2"], params["x3"]
    return {"y": math.sin(x1) + 7 * math.sin(x2) ** 2 + 0.1 * x3**4 * math.sin(x1)}
