"""The chain of cases that begins with one case: does it die out, or become an epidemic?"""

import numpy as np

EPIDEMIC = 1_000  # cases: from here on, a chain hardly ever dies out


def outbreak(params, seed):
    """Count cases, generation by generation. Each case infects a Poisson number of others, with mean `r`."""
    rng = np.random.default_rng(seed)
    cases, total, generations = 1, 1, 0
    while cases > 0 and total < EPIDEMIC:
        cases = rng.poisson(params["r"] * cases)
        total += cases
        generations += 1
    return {"died_out": cases == 0, "total": total, "generations": generations}
